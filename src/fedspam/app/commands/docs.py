"""`fedspam docs`: read a page of the documentation in the terminal.

Print a page of the documentation. Without a name, list the pages.

examples:
  fedspam docs                  all pages
  fedspam docs choosing         which method, and with which parameters
  fedspam docs run | less       as Markdown, if the output is not a terminal
"""

import argparse


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("page", nargs="?", metavar="PAGE", help="the name of a page (a list of all pages)")


def run(options: argparse.Namespace) -> int:
    from fedspam.app import pages

    return pages.show(options.page)
