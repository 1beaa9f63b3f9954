"""`fedspam cite`: print BibTeX entries for a method and for fedspam.

Print BibTeX entries for the papers of a method and for fedspam.

examples:
  fedspam cite                          SPAM's paper and fedspam
  fedspam cite scaffold >> paper.bib    SCAFFOLD's paper and fedspam
"""

import argparse
import sys


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("method", nargs="?", metavar="METHOD", help="a key of `fedspam methods` (SPAM)")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.cite import cite

    sys.stdout.write(cite(options.method))
    return 0
