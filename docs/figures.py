"""Make the figures of docs/images again: ``python docs/figures.py [NAME]...``.

Each is made by the command that the gallery names. Two are drawn from tables, since their runs take long: that of the
sweep from docs/comparison.csv, and accuracy against megabytes from docs/megabytes.csv. Some guides show that of
a notebook. `python tests/browser.py` makes the pictures of the report and the lab.
"""

import base64
import contextlib
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedspam.app import figures
from fedspam.app.cli import main
from fedspam.app.compare import sweep
from fedspam.app.figures import style

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


@style.styled
def megabytes() -> Figure:
    """Accuracy against megabytes, as examples/megabytes.py wrote it: the mean of the seeds, and a band around all."""
    with (DOCS / "megabytes.csv").open() as file:
        rows = list(csv.DictReader(file))
    figure = style.new_figure(panels=2.6, texts=0.4)
    axis = figure.add_subplot()
    for number, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
        of_method = [row for row in rows if row["method"] == name]
        seeds = len({row["seed"] for row in of_method})
        numbers = lambda column: np.array([float(row[column]) for row in of_method]).reshape(seeds, -1)
        paid, accuracy = numbers("megabytes"), numbers("accuracy")
        tuned = f" ({of_method[0]['setting']})" if of_method[0]["setting"] else " (nothing tuned)"
        line = style.line_style(number)
        axis.plot(paid.mean(0), accuracy.mean(0), label=name + tuned, **line)
        axis.fill_between(paid.mean(0), accuracy.min(0), accuracy.max(0), color=line["color"], alpha=0.2, linewidth=0)
    axis.set(xlabel="megabytes, all clients, both ways", ylabel="accuracy on held-out images", ylim=(0.4, None))
    axis.set_xlim(0, None)
    axis.grid(visible=True)
    axis.legend(loc="lower right")
    figure.tight_layout()
    return figure


NOTEBOOKS = ("compression", "similarity", "your_table")


def of_notebook(name: str) -> bytes:
    """The first figure of a notebook."""
    shown = Path("shown.ipynb")
    source = DOCS / "notebooks" / f"{name}.py"
    subprocess.run([sys.executable, str(DOCS / "notebook.py"), str(source), str(shown)], check=True)
    outputs = [one for cell in json.loads(shown.read_text())["cells"] for one in cell.get("outputs", [])]
    return next(base64.b64decode(one["data"]["image/png"]) for one in outputs if "image/png" in one.get("data", {}))


DRAWN = {"comparison": comparison, "megabytes": megabytes}


def make(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [*COMMANDS, *DRAWN, *NOTEBOOKS]:
            out = Path(folder) / name
            if name in NOTEBOOKS:
                out.mkdir()
                with contextlib.chdir(out):
                    (out / "figure.png").write_bytes(of_notebook(name))
            elif name in DRAWN:
                out.mkdir()
                figures.save(DRAWN[name](), out, "figure")
            elif main([*COMMANDS[name].split(), "--out", str(out), "--quiet"]) != 0:
                raise SystemExit(f"fedspam {COMMANDS[name]} failed")
            (picture,) = out.glob("*.png")
            browser.keep(picture.read_bytes(), DOCS / "images" / f"{name}.png")


if __name__ == "__main__":
    make(sys.argv[1:])
