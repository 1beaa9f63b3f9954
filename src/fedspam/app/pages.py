"""What `fedspam docs` prints: the pages of the documentation, which come with the package."""

import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from fedspam._internal.nearest import did_you_mean
from fedspam.app import UsageError, exit_codes

HERE = Path(__file__).parents[1]
PLACES = (HERE / "pages", HERE.parents[1] / "docs")  # in an installed package; in a clone


def known() -> dict[str, Path]:
    """The pages by name."""
    for place in PLACES:
        if found := {path.stem: path for path in sorted(place.glob("*.md"))}:
            return found
    raise FileNotFoundError(f"the pages are neither in {PLACES[0]} nor in {PLACES[1]}; install fedspam again")


def title(text: str) -> str:
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "")


def show(name: str | None) -> int:
    """Print a page, or the list of them."""
    pages, console = known(), Console()
    if name is None:
        table = Table("page", "title", box=None, pad_edge=False)
        for each, path in pages.items():
            table.add_row(each, title(path.read_text(encoding="utf-8")))
        console.print(table)
        return exit_codes.DONE
    name = name.removesuffix(".md").removesuffix(".html")
    if name not in pages:
        raise UsageError(f"there is no page {name!r}; {did_you_mean(name, pages, 'see fedspam docs')}")
    text = pages[name].read_text(encoding="utf-8")
    if not console.is_terminal:
        sys.stdout.write(text)
        return exit_codes.DONE
    with console.pager(styles=True):
        console.print(Markdown(text, hyperlinks=False))
    return exit_codes.DONE
