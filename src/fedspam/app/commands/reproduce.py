"""`fedspam reproduce`: run an experiment that others have published, and compare the numbers.

paper: the paper's ridge regression (section 6): three settings of SPAM, exact prox against
1 and 10 local steps. Draws the figure, and gives a number and a verdict for every sentence
of the paper's observations. Takes less than a minute; equal arguments give equal curves.
flamby-heart: FLamby's table of Fed-Heart-Disease with its split, scaling, methods and rates,
published numbers beside ours. Takes about a minute; the patients come with fedspam.
niid-bench: Fashion-MNIST in ten clients, split in three ways, four methods, as in Flower's
baseline. The whole table takes minutes on a GPU and hours on a CPU, and can be continued (--resume);
--scale small runs a slice of it in two minutes, --only some of its methods and columns.
leaf-femnist: LEAF's bytes uploaded and FLOPs until 75 % accuracy, for SGD and FedAvg, on the 105
writers at hand. Minutes on a GPU; --scale small runs a slice.
fedprox-mnist: FedProx's experiment with stragglers, power-law sizes and two digits per client, on
the digits at hand. Takes two minutes.

examples:
  fedspam reproduce                              the paper's experiment, into runs/reproduce-<date-time>
  fedspam reproduce --seeds 3 --out /tmp/try     a quick look
  fedspam reproduce --seed 100                   other seeds
  fedspam reproduce flamby-heart                 FLamby's table
  fedspam reproduce niid-bench --scale small     a slice of NIID-Bench
  fedspam reproduce niid-bench --only FedAvg,IID --out runs/bench --resume    one cell; continued if it was stopped

exit codes: 0 every sentence holds or every published cell is matched, 1 one does not or is not, or the
run failed, 2 wrong arguments
"""

import argparse

from fedspam._internal.nearest import nearest
from fedspam.app import UsageError
from fedspam.app.commands._arguments import MOST_SEEDS, add_devices, add_output, whole

# the options of each table, besides those of every command
TABLES: dict[str, tuple[str, ...]] = {
    "paper": ("seeds", "rounds", "seed"),
    "flamby-heart": ("seeds", "rounds", "seed"),
    "niid-bench": ("seeds", "rounds", "seed", "scale", "only", "resume"),
    "leaf-femnist": ("rounds", "seed", "scale", "only"),
    "fedprox-mnist": ("seeds", "rounds", "seed"),
}


def add(command: argparse.ArgumentParser) -> None:
    # `run` checks the name: with choices, a misspelled flag would be reported as a wrong table
    command.add_argument(
        "table", nargs="?", default="paper", metavar="TABLE", help=f"one of {', '.join(TABLES)} (paper)"
    )
    command.add_argument(
        "--seeds", type=whole(1, MOST_SEEDS), metavar="N",
        help="number of seeds to average over (20; flamby-heart 5; niid-bench 1; fedprox-mnist 2)",
    )  # fmt: skip
    command.add_argument(
        "--rounds",
        type=whole(8),
        metavar="N",
        help="rounds; the paper's right panel has 2N (400; others: as published)",
    )
    command.add_argument(
        "--seed", type=whole(0), metavar="S", help="the first seed, S+1 the next, ... (0; the other tables 42)"
    )
    command.add_argument(
        "--scale", choices=("full", "small"), help="the whole table, or a slice: niid-bench, leaf-femnist"
    )
    command.add_argument("--only", metavar="NAMES", help="methods and columns, separated by commas")
    command.add_argument(
        "--resume", action="store_true", default=None, help="niid-bench: continue the run of --out, or start it"
    )
    add_devices(command)
    add_output(command)


def run(options: argparse.Namespace) -> int:
    if options.table not in TABLES:
        near = nearest(options.table, TABLES)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"there is no table {options.table!r}; the tables are {', '.join(TABLES)}{hint}")
    names = TABLES[options.table]
    for name in sorted({name for each in TABLES.values() for name in each} - {*names}):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is not an option of {options.table}; leave it out")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.table == "paper":
        from fedspam.app.reproduce.terminal import show

        return show(options.out, quiet=options.quiet, **given)
    from fedspam.app.reproduce import tables

    shown = {
        "flamby-heart": tables.show_heart,
        "niid-bench": tables.show_niid,
        "leaf-femnist": tables.show_leaf,
        "fedprox-mnist": tables.show_fedprox,
    }
    return shown[options.table](options.out, quiet=options.quiet, **given)
