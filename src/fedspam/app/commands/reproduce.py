"""`fedspam reproduce`: run an experiment that others have published, and compare the numbers.

paper: the paper's ridge regression (section 6): three settings of SPAM, exact prox against
1 and 10 local steps. Draws the figure, and gives a number and a verdict for every sentence
of the paper's observations. Takes less than a minute; equal arguments give equal curves.
flamby-heart: FLamby's table of Fed-Heart-Disease with its split, scaling, methods and rates,
published numbers beside ours. Takes about a minute; the patients come with fedspam.
niid-bench: Fashion-MNIST in ten clients, split in three ways, four methods, as in Flower's
baseline. The whole table takes hours on a CPU; --scale small runs a slice of it in two minutes.

examples:
  fedspam reproduce                              the paper's experiment, into runs/reproduce-<date-time>
  fedspam reproduce --seeds 3 --out /tmp/try     a quick look
  fedspam reproduce --seed 100                   other seeds
  fedspam reproduce flamby-heart                 FLamby's table
  fedspam reproduce niid-bench --scale small     a slice of NIID-Bench

exit codes: 0 every sentence holds or every published cell is matched, 1 one does not or is not, or the
run failed, 2 wrong arguments
"""

import argparse

from fedspam._internal.nearest import nearest
from fedspam.app import UsageError
from fedspam.app.commands._arguments import MOST_SEEDS, add_devices, add_output, whole

TABLES = ("paper", "flamby-heart", "niid-bench")


def add(command: argparse.ArgumentParser) -> None:
    # `run` checks the name: with choices, a misspelled flag would be reported as a wrong table
    command.add_argument(
        "table", nargs="?", default="paper", metavar="TABLE", help=f"one of {', '.join(TABLES)} (paper)"
    )
    command.add_argument(
        "--seeds", type=whole(1, MOST_SEEDS), metavar="N",
        help="number of seeds to average over (20; flamby-heart 5; niid-bench 1)",
    )  # fmt: skip
    command.add_argument(
        "--rounds",
        type=whole(8),
        metavar="N",
        help="rounds; the paper's right panel has 2N (400; flamby-heart 15; niid-bench 50)",
    )
    command.add_argument(
        "--seed", type=whole(0), metavar="S", help="the first seed, S+1 the next, ... (0; the other tables 42)"
    )
    command.add_argument("--scale", choices=("full", "small"), help="niid-bench: the whole table, or a slice (full)")
    add_devices(command)
    add_output(command)


def run(options: argparse.Namespace) -> int:
    if options.table not in TABLES:
        near = nearest(options.table, TABLES)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"there is no table {options.table!r}; the tables are {', '.join(TABLES)}{hint}")
    named = ("seeds", "rounds", "seed")
    if options.table == "niid-bench":
        named = (*named, "scale")
    elif options.scale is not None:
        raise UsageError(f"--scale is not an option of {options.table}; leave it out")
    given = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.table == "paper":
        from fedspam.app.reproduce.terminal import show

        return show(options.out, quiet=options.quiet, **given)
    from fedspam.app.reproduce.tables import show_heart, show_niid

    show_other = show_heart if options.table == "flamby-heart" else show_niid
    return show_other(options.out, quiet=options.quiet, **given)
