"""`fedspam data`: list the data sets that fedspam knows, check their files, and download them.

List the data sets that fedspam knows by name. With a name, say where its files come from, under which license and where
they must be, and check those that are there. Only the data set heart comes with fedspam.

examples:
  fedspam data                  all data sets, and which are here
  fedspam data a9a              the origin, the license and the files of a9a
  fedspam data a9a --download   download its files to ./data, or to the folder of FEDSPAM_DATA
"""

import argparse

from fedspam.app.commands._arguments import add_shared


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="a data set (all)")
    command.add_argument("--download", action="store_true", help="download the files that are missing")
    add_shared(command, "--data")


def run(options: argparse.Namespace) -> int:
    from fedspam.app import data

    return data.show(options)
