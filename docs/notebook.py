"""Run a notebook: ``python docs/notebook.py docs/notebooks/ten_lines.py OUT.ipynb``.

For Colab and other places without fedspam, say what its first cell installs: ``--install 'fedspam @ git+https://...'``.

The source is a Python file in the percent format of Jupytext: ``# %%`` begins a cell of code, ``# %% [markdown]`` one
of text. This program runs it from top to bottom, and writes a Jupyter notebook with what the cells printed, the value
of the last expression of each, and their figures. The site shows the result as a page (see docs/pages.py).
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import re
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def cells(text: str) -> list[tuple[str, str, int]]:
    """The kind, the text, and the first line of every cell."""
    found = []
    marks = [*CELL.finditer(text)]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else len(text)]
        kind = "markdown" if "[markdown]" in mark[1] else "code"
        if kind == "markdown":
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        found.append((kind, body.strip("\n"), text.count("\n", 0, mark.end())))
    return found


class Notebook:
    """Runs the cells of a notebook in one module, and keeps what each of them shows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = types.ModuleType("notebook")
        sys.modules["notebook"] = self.module  # where classes look up the names of their annotations

    def run(self, code: str, line: int) -> list[dict[str, Any]]:
        """The outputs of one cell."""
        tree = ast.parse(code, str(self.path))
        ast.increment_lineno(tree, line)  # errors, and whoever reads the source of a function, find it in the file
        value = None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, str(self.path), "exec"), vars(self.module))  # noqa: S102  a notebook of this folder
            if isinstance(last, ast.Expr):
                shown = ast.Interactive([ast.Assign([ast.Name("_", ast.Store())], last.value)])
                shown = ast.fix_missing_locations(ast.copy_location(shown, last))
                exec(compile(shown, str(self.path), "single"), vars(self.module))  # noqa: S102
                value = vars(self.module)["_"]
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
        outputs += [picture(png) for png in figures()]
        if value is not None and not outputs:
            data = {"text/plain": repr(value)}
            if hasattr(value, "_repr_html_"):  # a data frame
                data["text/html"] = value._repr_html_()
            outputs.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data})
        return outputs


def figures() -> list[bytes]:
    """The figures that the cell has drawn, as PNG, which are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=140, bbox_inches="tight")
        drawn.append(picture.getvalue())
    plt.close("all")
    return drawn


def picture(png: bytes) -> dict[str, Any]:
    data = {"image/png": base64.b64encode(png).decode()}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def execute(path: Path) -> dict[str, Any]:
    """The notebook with its outputs, in the format of Jupyter."""
    notebook = Notebook(path)
    made = []
    for number, (kind, text, line) in enumerate(cells(path.read_text())):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": notebook.run(text, line)}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def installing(notebook: dict[str, Any], what: str) -> dict[str, Any]:
    """The notebook for a place where fedspam is not installed, such as Colab: its first cell of code installs it."""
    code = {"cell_type": "code", "id": "install", "metadata": {}, "execution_count": None, "outputs": []}
    code["source"] = f'%pip install --quiet "{what}"'
    first, *others = notebook["cells"]
    return {**notebook, "cells": [first, code, *others]}


def main() -> None:
    import matplotlib as mpl

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the notebook, a Python file")
    parser.add_argument("out", type=Path, help="the .ipynb file to write")
    parser.add_argument("--install", metavar="WHAT", help="what pip installs in the first cell, for Colab")
    options = parser.parse_args()
    source, out = options.source.resolve(), options.out.resolve()
    mpl.use("Agg")
    mpl.rcParams.update({"figure.figsize": (6.4, 3.6), "axes.spines.top": False, "axes.spines.right": False})
    warnings.simplefilter("error")  # a notebook that warns would teach what is deprecated
    warnings.filterwarnings("ignore", "'click", DeprecationWarning)  # Flower uses old names of it
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):  # a notebook may write files
        found = execute(source)
    found = installing(found, options.install) if options.install else found
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
