"""`fedspam run`: run an experiment of your own: a TOML file, and flags that change it.

Run an experiment: data, model, method. A TOML file describes it; a flag --section.key VALUE replaces
a setting of the file. The run folder holds the resolved configuration, the rows of all rounds,
checkpoints and a summary. A run can be resumed.

examples:
  fedspam run --example > experiment.toml          a file to begin with
  fedspam run experiment.toml
  fedspam run experiment.toml --method.cohort_size 20 --rounds 200 --out runs/x
  fedspam run --resume --out runs/x --rounds 500   continue it, up to 500 rounds in all
  fedspam run --data ridge --method spam --method.step_size 0.1 --method.fresh_weight 0.2
  fedspam run experiment.toml --json | jq .accuracy
  srun fedspam run experiment.toml --distributed --out runs/x      on several hosts
"""

import argparse
import sys

from fedspam.app import UsageError
from fedspam.app.commands._arguments import add_shared, file_path, whole


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", type=file_path, metavar="FILE", help="the configuration, a TOML file")
    add_shared(command, "--set")
    for flag, name, metavar, words in (
        ("--data", "data", "NAME", "a problem of `fedspam compare`, a kind of data, or a table; replaces the section"),
        ("--model", "model", "NAME", "a model, or my_model.py:loss; replaces the section"),
        ("--method", "method", "NAME", "a key of `fedspam methods`; replaces the section"),
        ("--prox", "prox", "NAME", "a local solver; replaces the section"),
        ("--rounds", "run.rounds", "N", "the same as --run.rounds"),
        ("--seed", "run.seed", "S", "the same as --run.seed"),
    ):
        named = lambda text, name=name: (name, text)
        command.add_argument(flag, dest="settings", action="append", type=named, metavar=metavar, help=words)
    command.add_argument("--out", type=file_path, metavar="FOLDER", help="the run folder (runs/<file>-<date-time>)")
    command.add_argument("--resume", action="store_true", help="continue the run of --out, or start it")
    command.add_argument("--quiet", action="store_true", help="print only the folder, and no progress bar")
    command.add_argument("--json", action="store_true", help="print only the summary, as one JSON object")
    add_shared(command, "--method-file", "--device", "--no-cache")
    several = command.add_argument_group("several hosts", "start the same command on every host, with the same --out")
    several.add_argument(
        "--distributed", action="store_true",
        help="one of several processes; Slurm, Open MPI and TPUs say which, elsewhere the next three flags do",
    )  # fmt: skip
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where the first process listens for the others")
    several.add_argument("--processes", type=whole(1), metavar="N", help="how many there are")
    several.add_argument("--process", type=whole(0), metavar="I", help="which of them this is: 0 to N - 1")
    text = command.add_mutually_exclusive_group()
    text.add_argument("--example", action="store_true", help="print a commented configuration, and run nothing")
    text.add_argument("--settings", dest="list", action="store_true", help="print every setting, and run nothing")


def run(options: argparse.Namespace) -> int:
    if options.example or options.list:
        from fedspam.app.config import EXAMPLE, settings_table

        sys.stdout.write(EXAMPLE if options.example else settings_table())
        return 0
    from fedspam.app.experiment.model import load_methods
    from fedspam.app.experiment.terminal import main

    if options.distributed and options.out is None:
        raise UsageError("--distributed needs --out FOLDER, the same for all processes; the first one writes there")
    if options.method_file is not None:
        load_methods(options.method_file)
    return main(options)
