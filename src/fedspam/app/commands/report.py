"""`fedspam report`: an HTML page about one run or several; figures and tables for papers.

Make one HTML page from the folders of `fedspam run`, `simulate(folder=...)`, `fedspam compare` and
`fedspam reproduce`: curves against rounds, bytes, gradients and time, costs to reach targets,
certificates, clients, configuration, and how to run it again. The page loads nothing from elsewhere.

examples:
  fedspam report runs/compare-20250101-120000
  fedspam report runs/spam runs/fedavg --out both.html --targets 0.1,0.01
  fedspam report runs/spam --figures paper/figures --csv curves.csv --parquet curves.parquet
  fedspam report runs/compare --latex table.tex --figures paper/figures --style column
  fedspam report runs/spam --bound delta=0.3,sigma=0.1,gap=2      (see `fedspam measure`)
"""

import argparse
import sys
from pathlib import Path

from fedspam.app import UsageError, refusing
from fedspam.app.commands._arguments import add_shared, file_path, finite, listed


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("folders", nargs="+", type=file_path, metavar="RUN_FOLDER", help="the folder of a run")
    command.add_argument("--out", type=file_path, default=Path("report.html"), metavar="FILE", help="the page")
    command.add_argument("--title", metavar="TEXT", help="the title of the page (the name of the run)")
    command.add_argument("--targets", type=listed(finite), default=[], metavar="X,Y,...", help="values to reach")
    command.add_argument(
        "--bound",
        metavar="delta=D,gap=F,...",
        help="draw the bound of the theory over the curves; also sigma, error, cohort, unit, metric, version",
    )
    command.add_argument("--figures", type=file_path, metavar="FOLDER", help="also write the figures, as PNG and PDF")
    command.add_argument("--csv", type=file_path, metavar="FILE", help="also write all points of all curves, as CSV")
    command.add_argument("--parquet", type=file_path, metavar="FILE", help="the same as Parquet (needs pyarrow)")
    command.add_argument("--latex", type=file_path, metavar="FILE", help="also write the tables, as LaTeX (booktabs)")
    command.add_argument("--quiet", action="store_true", help="print nothing")
    add_shared(command, "--style")


def run(options: argparse.Namespace) -> int:
    from fedspam.app import report

    with refusing("argument --bound"):
        bound = None if options.bound is None else report.BoundOverlay.of(options.bound)
    for folder in options.folders:
        if not folder.is_dir() and (len(options.folders) == 1 or not folder.exists()):
            raise UsageError(f"there is no folder {folder}; name the folder of a run")
    given = {name: getattr(options, name) for name in ("title", "targets", "figures", "csv", "parquet", "latex")}
    for path in report.write(options.folders, options.out, bound=bound, **given):
        if not options.quiet:
            sys.stdout.write(f"{path}\n")
    return 0
