"""The output of `fedspam reproduce`: a progress bar while it runs, then a table of verdicts."""

from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedspam.app import exit_codes
from fedspam.app.folders import new_folder
from fedspam.app.reproduce import ROUNDS, SEEDS, SOLVERS, Observation, reproduce
from fedspam.app.terminal import print_folder, progress_bar


def show(
    folder: Path | None = None,
    *,
    seeds: int = SEEDS,
    rounds: int = ROUNDS,
    seed: int = 0,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run the experiment, print the verdicts, and return the exit code."""
    console = Console() if console is None else console
    with progress_bar(quiet) as bar:
        task = bar.add_task("compiling and running", total=seeds * len(SOLVERS))
        made = reproduce(
            new_folder("reproduce") if folder is None else folder,
            seeds=seeds,
            rounds=rounds,
            seed=seed,
            progress=lambda: bar.advance(task),
        )
    if not quiet:
        console.print(table(made.observations, seeds))
        holding, count = sum(observation.holds for observation in made.observations), len(made.observations)
        style = "bold green" if holding == count else "bold red"
        console.print(Text(f"{holding} of {count} sentences hold", style=style))
    files = ("figure.png", "figure.svg", "curves.csv", "observations.csv", "manifest.json", "command")
    print_folder(console, made.folder, quiet, files)
    return exit_codes.verdict(all(observation.holds for observation in made.observations))


def table(observations: list[Observation], seeds: int) -> Table:
    """One row per sentence: what the paper says, what was measured, the rule, and the verdict."""
    title = f"The paper's observations on its figure, measured over {seeds} seed{'s' if seeds > 1 else ''}"
    columns = ("panel", Column("the paper says", ratio=2), Column("measured", ratio=3), "verdict")
    shown = Table(*columns, title=title, title_justify="left", show_lines=True)
    for observation in observations:
        measured = Text(observation.measured)
        measured.append(f"\nholds if: {observation.rule}", style="dim")
        verdict = Text("holds", style="green") if observation.holds else Text("fails", style="bold red")
        shown.add_row(observation.panel, observation.sentence, measured, verdict)
    return shown
