"""`fedspam cite`: BibTeX entries for a method and for fedspam."""

import argparse
import sys

from fedspam.app.commands._arguments import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "cite",
        help="print BibTeX entries for a method and for fedspam",
        description="Print BibTeX entries for the papers of a method and for fedspam.",
        epilog=(
            "examples:\n"
            "  fedspam cite                          SPAM's paper and fedspam\n"
            "  fedspam cite scaffold >> paper.bib    SCAFFOLD's paper and fedspam"
        ),
    )
    command.add_argument("method", nargs="?", metavar="METHOD", help="a key of `fedspam methods` (SPAM)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.cite import cite

    sys.stdout.write(cite(options.method))
    return 0
