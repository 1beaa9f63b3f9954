"""Make the figures of docs/images again: ``python docs/figures.py [NAME]...``.

Each is made by the command that the gallery names. The figure of the sweep is drawn from docs/comparison.csv, since the
sweep itself takes long. `python tests/browser.py` makes the pictures of the report and the lab.
"""

import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from fedspam.app import figures
from fedspam.app.cli import main
from fedspam.app.compare import sweep

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))
import browser  # noqa: E402

COMMANDS = {
    "ridge": "reproduce",
    "compare-ridge": "compare --problem ridge --methods spam_pp,spam_ppa,mvr,saber,fedavg --seeds 3 --budget 6",
    "bound": "theory --delta 1 --sigma 0.5 --gap 10 --cohort 5 --rounds 1000",
}


def comparison() -> Figure:
    """The figure of the sweep from its table."""
    rows = sweep.from_csv((DOCS / "comparison.csv").read_text())
    return figures.draw_sweep(sweep.lines_of(rows), sweep.note(sweep.PLAN))


def make(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [*COMMANDS, "comparison"]:
            out = Path(folder) / name
            if name == "comparison":
                out.mkdir()
                figures.save(comparison(), out, "figure")
            elif main([*COMMANDS[name].split(), "--out", str(out), "--quiet"]) != 0:
                raise SystemExit(f"fedspam {COMMANDS[name]} failed")
            (picture,) = out.glob("*.png")
            browser.keep(picture.read_bytes(), DOCS / "images" / f"{name}.png")


if __name__ == "__main__":
    make(sys.argv[1:])
