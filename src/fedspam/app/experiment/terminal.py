"""`fedspam run` on a terminal: a bar while it runs, a few facts at its end, or JSON for scripts."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from fedspam.app import exit_codes
from fedspam.app.config import Config, ConfigError, read
from fedspam.app.config.schema import own_loss
from fedspam.app.experiment.execute import ExperimentOutcome, own_config, run
from fedspam.app.experiment.scores import LABELS, worst_clients
from fedspam.app.folders import new_folder
from fedspam.app.terminal import numbers_table, print_folder, print_plain, progress_bar
from fedspam.simulation.status import Status


def main(options: argparse.Namespace) -> int:
    """Read a configuration, replace the settings that flags name, run it, and return the exit code."""
    file, settings, out, resume = options.file, options.settings, options.out, options.resume
    if resume and out is None:
        raise ConfigError("--resume needs the folder of the run: --out FOLDER")
    if file is None and resume:
        file = Path(out or "") / "config.toml"
        if not file.is_file():
            raise ConfigError(f"--resume: {out} holds no run to continue; name a configuration, or another --out")
        own_config(file.parent)  # it must be as it was written
    if file is None and not any(name.partition(".")[0] == "data" for name, _ in settings):
        raise ConfigError("name a configuration: fedspam run FILE; to get one: fedspam run --example > experiment.toml")
    folder = out or new_folder("run" if file is None else file.stem)
    config = read(file, settings)
    try:
        return show(config, folder, resume=resume, quiet=options.quiet, as_json=options.json)
    except KeyboardInterrupt:
        sys.stderr.write(f"fedspam run: stopped; continue with: fedspam run --resume --out {folder}\n")
        return exit_codes.INTERRUPTED


def show(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    errors: Console | None = None,
) -> int:
    """Run an experiment, print its summary, and return the exit code."""
    console = console or Console()
    errors = errors or Console(stderr=True)
    quiet = quiet or jax.process_index() > 0
    bar = progress_bar(quiet or not errors.is_terminal, TextColumn("{task.fields[metrics]}"), console=errors)
    with bar:
        task = bar.add_task("reading, compiling", total=config.run.rounds, metrics="")

        def observe(done: int, sent: float, probes: Mapping[str, np.ndarray]) -> None:
            metrics = [f"{name} {probes[name][-1]:.4g}" for name in ("loss", "accuracy") if len(probes.get(name, ()))]
            bar.update(task, description="rounds", completed=done, metrics="  ".join([*metrics, decimal(int(sent))]))

        outcome = run(config, folder, resume=resume, observe=observe)
    if jax.process_index() > 0:
        return exit_codes.verdict(outcome.run.status.ok)  # the first process speaks for all
    if as_json:
        console.file.write(json.dumps(outcome.facts, allow_nan=False) + "\n")
        return exit_codes.verdict(outcome.run.status.ok)
    if not quiet:
        _print_tables(console, outcome)
    table_of_clients = ["clients.csv"] if outcome.clients else []
    files = ("model.safetensors", "summary.json", *table_of_clients, "config.toml", "manifest.json", "rows.bin")
    print_folder(console, folder, quiet, files)
    if not quiet and not config.data.has_loss:
        own = own_loss(config.model)
        print_plain(console, f"use it: fedspam predict {folder} NEW_ROWS" + (f" --model {own}" if own else ""))
    return exit_codes.verdict(outcome.run.status.ok)


UNPRINTED = ("rare_f1", "mae")  # summary.json has them
MOST_CLASSES = 10  # of a confusion matrix on the terminal
WORST = 5  # clients that are listed


def _print_tables(console: Console, outcome: ExperimentOutcome) -> None:
    """The facts of a run; where there are test rows, how well each class is recognized, and the worst clients."""
    facts, clients, names = outcome.facts, outcome.clients, outcome.classes
    console.print(table(facts))
    if not clients:
        return
    if "confusion" in facts and len(names) <= MOST_CLASSES:
        shares = ([name, *map(_value, values.values())] for name, values in facts["per_class"].items())
        console.print(numbers_table(("class", "test rows", "share", "precision", "recall", "F1"), shares))
        counts = ([name, *row] for name, row in zip(names, facts["confusion"], strict=True))
        console.print(numbers_table(("true \\ predicted", *names), counts))
    worst = ([*map(_value, row.values())] for row in worst_clients(clients, WORST))
    console.print(numbers_table([name.replace("_", " ") for name in clients[0]], worst))
    if len(clients) > WORST:
        console.print(f"These are the {WORST} worst of {len(clients)} clients; clients.csv has all.", highlight=False)


def table(facts: Mapping[str, Any]) -> Table:
    """The most important facts of a run, how good the model is first."""
    shown = Table(show_header=False, box=None)
    status = Status.from_json(facts["status"])
    told = Text(str(status), style="green" if status.ok else "bold red")
    shown.add_row(f"{facts['method']}, {facts['rounds']} rounds", told)
    if "accuracy" in facts:
        worst = f" (a tenth of the clients below {_value(facts['accuracy.q10'])})" if "accuracy.q10" in facts else ""
        shown.add_row("test accuracy", _value(facts["accuracy"]) + worst)
    if "per_class" in facts:
        name, most = max(facts["per_class"].items(), key=lambda each: each[1]["rows"])
        shown.add_row("if always the same", f"{_value(most['share'])} (predicting {name!r})")
    if "threshold" in facts:
        least = facts["threshold"]
        shown.add_row("threshold", f"{least['class']!r} from a probability of {_value(least['probability'])} on")
    for name, label in LABELS.items():
        if facts.get(name) is not None and name not in UNPRINTED:
            shown.add_row(label, _value(facts[name]))
    shown.add_row("loss", _value(facts.get("loss")))
    shown.add_row("gradient, relative", _value(facts.get("gradient")))
    shown.add_row("sent", f"{decimal(facts['bytes_up'])} up, {decimal(facts['bytes_down'])} down")
    if facts["client_gradients"] is not None:
        shown.add_row("client gradients", f"{facts['client_gradients']:g}")
    shown.add_row("time", f"{facts['compile_seconds']:.1f} s to compile, {facts['run_seconds']:.1f} s to run")
    target = facts.get("target")
    if target is not None:
        cost = f"after {target['round']} rounds" if target["round"] is not None else "not reached"
        if target["round"]:
            cost += f", {decimal(target['bytes_up'])} up, {decimal(target['bytes_down'])} down"
        shown.add_row(f"{target['metric']} {target['value']:g}", cost)
    return shown


def _value(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
