"""The output of `fedspam reproduce`: a progress bar while it runs, then a table of verdicts."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspam.app.folders import new_folder
from fedspam.app.reproduce import ROUNDS, SEEDS, SOLVERS, Observation, reproduce
from fedspam.app.terminal import progress_bar


def show(
    folder: Path | None = None,
    *,
    seeds: int = SEEDS,
    rounds: int = ROUNDS,
    seed: int = 0,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run the experiment, print the verdicts, and return the exit code: 0 if every sentence holds, else 1."""
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
    if quiet:
        console.print(str(made.folder), highlight=False, soft_wrap=True)
    else:
        console.print(table(made.observations, seeds))
        console.print(summary(made.observations))
        names = "figure.png, figure.svg, curves.csv, observations.csv, manifest.json, command"
        console.print(f"{made.folder}: {names}", highlight=False, soft_wrap=True)
    return 0 if all(observation.holds for observation in made.observations) else 1


def table(observations: list[Observation], seeds: int) -> Table:
    """One row per sentence: what the paper says, what was measured, the rule, and the verdict."""
    title = f"The paper's observations on its figure, measured over {seeds} seed{'s' if seeds > 1 else ''}"
    shown = Table(title=title, title_justify="left", show_lines=True)
    shown.add_column("panel")
    shown.add_column("the paper says", ratio=2)
    shown.add_column("measured", ratio=3)
    shown.add_column("verdict")
    for observation in observations:
        measured = Text(observation.measured)
        measured.append(f"\nholds if: {observation.rule}", style="dim")
        verdict = Text("holds", style="green") if observation.holds else Text("fails", style="bold red")
        shown.add_row(observation.panel, observation.sentence, measured, verdict)
    return shown


def summary(observations: list[Observation]) -> Text:
    holding = sum(observation.holds for observation in observations)
    whole = holding == len(observations)
    return Text(f"{holding} of {len(observations)} sentences hold", style="bold green" if whole else "bold red")
