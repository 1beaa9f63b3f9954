"""`fedspam run` as it is seen: a bar while it runs, a few facts at its end, or JSON for scripts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from fedspam.app.config import Config
from fedspam.app.experiment.execute import run
from fedspam.app.terminal import progress_bar
from fedspam.simulation import records


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
    """Run an experiment, print what came of it, and return the exit code: 0 if it ended well, 1 if it was stopped."""
    console = Console() if console is None else console
    errors = Console(stderr=True) if errors is None else errors
    bar = progress_bar(quiet or not errors.is_terminal, TextColumn("{task.fields[seen]}"), console=errors)
    sent = _sent(folder) if resume else 0
    with bar:
        task = bar.add_task("reading, compiling", total=config.run.rounds, seen="")

        def observe(done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]) -> None:
            nonlocal sent
            sent += int(rows["bytes_up"].sum() + rows["bytes_down"].sum())
            looks = [f"{name} {probes[name][-1]:.4g}" for name in ("loss", "accuracy") if len(probes.get(name, ()))]
            bar.update(task, description="rounds", completed=done, seen="  ".join([*looks, decimal(sent)]))

        made = run(config, folder, resume=resume, observe=observe)
    if as_json:
        console.file.write(json.dumps(made.facts, allow_nan=False) + "\n")
    elif quiet:
        console.print(str(made.folder), highlight=False, soft_wrap=True)
    else:
        console.print(table(made.facts))
        console.print(
            f"{made.folder}: config.toml, summary.json, manifest.json, rows.bin", highlight=False, soft_wrap=True
        )
    return 0 if made.fine else 1


def table(facts: Mapping[str, Any]) -> Table:
    """The facts that one looks for first."""
    shown = Table(show_header=False, box=None)
    status = Text(str(facts["status"]), style="bold red" if str(facts["status"]).startswith("stopped") else "green")
    shown.add_row(f"{facts['method']}, {facts['rounds']} rounds", status)
    shown.add_row("loss", _value(facts.get("loss")))
    shown.add_row("gradient, relative", _value(facts.get("gradient")))
    if "accuracy" in facts:
        worst = f" (a tenth of the clients below {_value(facts['accuracy.q10'])})" if "accuracy.q10" in facts else ""
        shown.add_row("test accuracy", _value(facts["accuracy"]) + worst)
    shown.add_row("sent", f"{decimal(facts['bytes_up'])} up, {decimal(facts['bytes_down'])} down")
    if facts["client_gradients"] is not None:
        shown.add_row("client gradients", f"{facts['client_gradients']:g}")
    shown.add_row("time", f"{facts['compile_seconds']:.1f} s to compile, {facts['run_seconds']:.1f} s to run")
    target = facts.get("target")
    if target is not None:
        paid = f"after {target['round']} rounds" if target["round"] is not None else "not reached"
        if target["round"]:
            paid += f", {decimal(target['bytes_up'])} up, {decimal(target['bytes_down'])} down"
        shown.add_row(f"{target['metric']} {target['value']:g}", paid)
    return shown


def _sent(folder: Path) -> int:
    """Bytes that the run of a folder has sent already."""
    try:
        rows = records.read(folder)[1]
    except (OSError, records.RecordError):
        return 0
    return sum(int(rows[name].sum()) for name in ("bytes_up", "bytes_down") if name in rows)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
