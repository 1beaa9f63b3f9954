"""`fedspam docs`: read a page of the documentation in the terminal.

Print a page of the documentation. Without a name, list the pages.

examples:
  fedspam docs                  all pages
  fedspam docs choosing         which method, and with which parameters
  fedspam docs run | less       as Markdown, if the output is not a terminal
"""

import argparse
import sys
from pathlib import Path

from fedspam._internal.nearest import did_you_mean
from fedspam.app import UsageError, exit_codes

PACKAGE = Path(__file__).parents[2]
PLACES = (PACKAGE / "pages", PACKAGE.parents[1] / "docs")  # in an installed package; in a clone


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("page", nargs="?", metavar="PAGE", help="the name of a page (a list of all pages)")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table

    pages, console = known(), Console()
    if options.page is None:
        table = Table("page", "title", box=None, pad_edge=False)
        for each, path in pages.items():
            table.add_row(each, title(path.read_text(encoding="utf-8")))
        console.print(table)
        return exit_codes.DONE
    name = options.page.removesuffix(".md").removesuffix(".html")
    if name not in pages:
        raise UsageError(f"there is no page {name!r}; {did_you_mean(name, pages, 'see fedspam docs')}")
    text = pages[name].read_text(encoding="utf-8")
    if console.is_terminal:
        with console.pager(styles=True):
            console.print(Markdown(text, hyperlinks=False))
    else:
        sys.stdout.write(text)
    return exit_codes.DONE


def known() -> dict[str, Path]:
    """The pages by name."""
    for place in PLACES:
        if found := {path.stem: path for path in sorted(place.glob("*.md"))}:
            return found
    raise FileNotFoundError(f"the pages are neither in {PLACES[0]} nor in {PLACES[1]}; install fedspam again")


def title(text: str) -> str:
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "")
