"""`fedspam compare`: several methods on one problem or on your own data, all tuned equally.

Run several methods on one problem, or on the data and model of a TOML file of `fedspam run`. Every
method tries equally many settings of its own step sizes; the best setting for each target is run again
on seeds not used in tuning. Prints rounds, bytes and client gradients to each target, and draws the
curves. With --sweep: where SPAM-PP wins and where it loses against each rival as clients become less
similar.

problems: ridge, ridge-similar, quadratics; with data (see --data): a9a, a9a-nonconvex, mushrooms,
  mushrooms-nonconvex, har, heart

examples:
  fedspam compare                                        ten methods on similar quadratics
  fedspam compare --problem ridge --methods spam_pp,mvr  two of them on the paper's ridge
  fedspam compare experiment.toml --methods auto,fedavg,spam_pp --metric accuracy --targets 0.8,0.85
  fedspam compare experiment.toml --metric loss --targets 0.3 --run.seed 0,1,2
  fedspam compare --problem har --metric accuracy --targets 0.9,0.95
  fedspam compare --method-file my_method.py --methods my_method,fedavg --budget 12
  fedspam compare --sweep
  fedspam compare --sweep --part 3/16 --out parts/3      one of sixteen jobs
  fedspam compare --merge parts/* --out runs/sweep       when all have ended
"""

import argparse

from fedspam.app import UsageError, refusing
from fedspam.app.commands._arguments import (
    MOST_SEEDS,
    add_shared,
    file_path,
    finite,
    listed,
    whole,
)

PLANNED = ("methods", "seeds", "seed", "rounds", "cohort", "budget", "targets", "metric")
METRICS = ("loss", "gradient", "accuracy", "balanced_accuracy", "f1", "rare_f1", "auc", "rmse")
ALONE = ("problem", "sweep", "exact")  # not with a file


def add(command: argparse.ArgumentParser) -> None:
    add_shared(command, "file", "--set", "--method-file")
    command.add_argument("--problem", metavar="NAME", help="the problem (quadratics)")
    command.add_argument("--methods", type=listed(str), metavar="A,B,...", help="keys of fedspam methods, or all (ten)")
    command.add_argument("--sweep", action="store_true", help="the sweep over delta/L instead of one problem")
    command.add_argument(
        "--seeds", type=whole(1, MOST_SEEDS), metavar="N", help="number of seeds (5; sweep: 10; FILE: 3)"
    )
    command.add_argument("--seed", type=whole(0), metavar="S", help="the first seed (0)")
    command.add_argument("--rounds", type=whole(1), metavar="N", help="rounds per run (by problem)")
    command.add_argument("--cohort", type=whole(1), metavar="B", help="clients per round (by problem)")
    command.add_argument("--budget", type=whole(1), metavar="N", help="settings per method (24; sweep: 36)")
    command.add_argument("--targets", type=listed(finite), metavar="X,Y,...", help="values to reach (by problem)")
    command.add_argument(
        "--metric", choices=METRICS, metavar="NAME",
        help="gradient (the relative norm, default) or accuracy; with FILE also loss, balanced_accuracy, f1, rare_f1, "
        "auc or rmse (default that of evaluate.target)",
    )  # fmt: skip
    command.add_argument("--exact", action="store_true", help="closed-form prox of quadratics, counted as one gradient")
    add_shared(command, "--data", "--style", "--devices", "--out", "--quiet", "--device", "--no-cache")
    jobs = command.add_argument_group("array jobs", "run every part with the same arguments, then merge the folders")
    jobs.add_argument("--part", type=part, metavar="I/N", help="the I-th of N shares: methods, or problems of --sweep")
    jobs.add_argument("--merge", nargs="+", type=file_path, metavar="FOLDER", help="join the parts, and run nothing")


def part(text: str) -> tuple[int, int]:
    """The type of --part: which part, of how many."""
    number, slash, of = text.partition("/")
    if not (slash and number.isascii() and of.isascii() and number.isdecimal() and of.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} must be I/N, such as 3/16")
    if not 1 <= int(number) <= int(of):
        raise argparse.ArgumentTypeError(f"{text!r}: parts are numbered from 1 to N")
    return int(number), int(of)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.compare import DEFAULT, terminal
    from fedspam.app.compare.options import checked

    if options.merge is not None:
        given = [name for name in ("file", "settings", "part", *PLANNED, *ALONE) if getattr(options, name)]
        if given:
            raise UsageError(f"--merge takes its settings from the parts; leave out {given[0]}")
        return terminal.merge(options)
    if options.method_file is not None:
        from fedspam.app.experiment.model import load_methods

        own = load_methods(options.method_file)
        options.methods = options.methods or [*own, *DEFAULT]
    if options.file is None and options.settings:
        raise UsageError("settings belong to a configuration; name it: fedspam compare FILE --SECTION.KEY VALUE")
    for name in ALONE if options.file is not None else []:
        if getattr(options, name):
            raise UsageError(f"--{name} is for problems by name; leave it out, or leave out {options.file}")
    with refusing():
        wanted = checked(**{name: getattr(options, name) for name in ("file", "settings", *PLANNED, *ALONE)})
    return terminal.show(wanted, options)
