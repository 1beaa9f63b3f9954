"""How long a report of many runs takes: to write, to open in Chromium, and to answer.

python benchmarks/report.py               # 500 runs of 300 rounds
python benchmarks/report.py --runs 50

One run is made and copied with other numbers. Opening ends when all curves are drawn and painted. An answer ends when
the page is painted after a press: another axis, another metric, a curve hidden, values under the pointer, the folded
tables. The exit code is 1 if opening or an answer takes more than two seconds.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedspam.app import report
from fedspam.app.cli import main as fedspam
from fedspam.simulation import records
from fedspam.simulation.status import COMPLETED

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser

LIMIT = 2.0  # seconds
SETTINGS = (
    "run --data quadratics --data.clients 30 --data.dimension 5 --method spam_pp --method.cohort_size 5 "
    "--method.step_size 1 --method.fresh_weight 0.3 --prox gradient --prox.steps 5 --quiet"
)
PAINTED = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def many_runs(folder: Path, count: int, rounds: int) -> list[Path]:
    """Folders of so many runs that differ: one run, with its probes scaled."""
    first = folder / "first"
    assert fedspam([*SETTINGS.split(), "--rounds", str(rounds), "--out", str(first)]) == 0
    facts, rows, probes = records.read(first)
    made = []
    for number in range(count):
        made.append(folder / f"run-{number:03d}")
        factor = np.exp(np.random.default_rng(number).normal(size=rounds + 1) / 4 + number / count)
        scaled = {name: column * factor for name, column in probes.items()}
        identity = {**facts["identity"], "key": number}
        with records.Store(made[-1]) as store:
            store.begin(identity)
            store.append(rounds, jnp.zeros(1), rows, scaled)
            store.finish(COMPLETED)
        (made[-1] / "config.toml").write_bytes((first / "config.toml").read_bytes())
    return made


def answers(page: Any) -> dict[str, float]:
    """Seconds until the page is painted after each of some presses."""
    curves = page.locator("#curves")
    button = lambda name: curves.get_by_role("button", name=name, exact=True).click
    presses = {
        "another axis": button("bytes up"),
        "another metric": button("loss"),
        "a curve hidden": curves.locator(".legend button").first.click,
        "values under the pointer": lambda: page.hover("#curves .chart > svg", position={"x": 400, "y": 100}),
        "run it again": page.locator("#again summary").click,
        "configuration": page.locator("#configuration summary").click,
    }
    found = {}
    for name, press in presses.items():
        began = time.perf_counter()
        press()
        page.evaluate(PAINTED)
        found[name] = time.perf_counter() - began
    return found


def measure(count: int, rounds: int) -> dict[str, float]:
    """Seconds by what was done; also the size of the page in megabytes."""
    with tempfile.TemporaryDirectory() as name, browser.chromium() as chromium:
        folders = many_runs(Path(name), count, rounds)
        path = Path(name) / "report.html"
        began = time.perf_counter()
        report.write(folders, path)
        found = {"megabytes": path.stat().st_size / 1e6, "write": time.perf_counter() - began}
        began = time.perf_counter()
        with browser.opened(chromium, path.as_uri()) as page:
            browser.eventually(page, f"document.querySelectorAll('#curves .curve').length === {count}")
            page.evaluate(PAINTED)
            found["open"] = time.perf_counter() - began
            found |= answers(page)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--rounds", type=int, default=300)
    given = options.parse_args()
    found = measure(given.runs, given.rounds)
    for name, value in found.items():
        sys.stdout.write(f"{name:<26}{value:8.2f}\n")
    slow = [name for name, value in found.items() if value > LIMIT and name not in ("megabytes", "write")]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
