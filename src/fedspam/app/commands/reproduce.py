"""`fedspam reproduce`: the paper's experiment."""

import argparse
from pathlib import Path

from fedspam.app.commands._arguments import Commands, whole


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "reproduce",
        help="run the paper's experiment and test what it observes",
        description=(
            "Run the paper's ridge regression (section 6): three settings of SPAM, exact prox against\n"
            "1 and 10 local steps. Draws the figure, and gives a number and a verdict for every sentence\n"
            "of the paper's observations. Takes less than a minute; equal arguments give equal curves."
        ),
        epilog=(
            "examples:\n"
            "  fedspam reproduce                              the whole experiment, into runs/reproduce-<date-time>\n"
            "  fedspam reproduce --seeds 3 --out /tmp/try     a quick look\n"
            "  fedspam reproduce --seed 100                   other seeds\n\n"
            "exit codes: 0 every sentence holds, 1 one does not or the run failed, 2 wrong arguments"
        ),
    )
    command.add_argument("--seeds", type=whole(1), default=20, metavar="N", help="number of seeds to average over (20)")
    command.add_argument(
        "--rounds", type=whole(8), default=400, metavar="N", help="rounds; the right panel has 2N (400)"
    )
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="the first seed, S+1 the next, ... (0)")
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the folder of the results (runs/reproduce-<date-time>)"
    )
    command.add_argument("--quiet", action="store_true", help="print only the folder")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.reproduce.terminal import show

    return show(options.out, seeds=options.seeds, rounds=options.rounds, seed=options.seed, quiet=options.quiet)
