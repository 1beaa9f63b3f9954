"""`fedspam compare`: several methods on one problem."""

import argparse
from pathlib import Path

from fedspam.app import UsageError
from fedspam.app.commands._arguments import EXIT_CODES, Commands, listed, whole


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "compare",
        help="several methods on one problem, all tuned equally",
        description=(
            "Run several methods on one problem. Every method tries equally many settings of its own step\n"
            "sizes; the best setting for each target is run again on seeds not used in tuning. Prints rounds,\n"
            "bytes and client gradients to each target, and draws the curves. With --sweep: where SPAM-PP\n"
            "wins and where it loses against each rival as clients become less similar."
        ),
        epilog=(
            "problems: ridge, ridge-similar, quadratics; with data (see --data): a9a, a9a-nonconvex, mushrooms,\n"
            "  mushrooms-nonconvex, har, heart\n\n"
            "examples:\n"
            "  fedspam compare                                        ten methods on similar quadratics\n"
            "  fedspam compare --problem ridge --methods spam_pp,mvr  two of them on the paper's ridge\n"
            "  fedspam compare --problem har --metric accuracy --targets 0.9,0.95\n"
            "  fedspam compare --sweep\n\n"
            f"{EXIT_CODES}"
        ),
    )
    command.add_argument("--problem", metavar="NAME", help="the problem (quadratics)")
    command.add_argument(
        "--methods",
        type=listed(str),
        metavar="A,B,...",
        help="keys of `fedspam methods`, or all (default: ten methods)",
    )
    command.add_argument("--sweep", action="store_true", help="the sweep over delta/L instead of one problem")
    command.add_argument("--seeds", type=whole(1), metavar="N", help="number of seeds (5; sweep: 10)")
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="the first seed (0)")
    command.add_argument("--rounds", type=whole(1), metavar="N", help="rounds per run (by problem)")
    command.add_argument("--cohort", type=whole(1), metavar="B", help="clients per round (by problem)")
    command.add_argument("--budget", type=whole(1), metavar="N", help="settings per method (24; sweep: 36)")
    command.add_argument("--targets", type=listed(float), metavar="X,Y,...", help="values to reach (by problem)")
    command.add_argument(
        "--metric", choices=("gradient", "accuracy"), default="gradient", help="relative gradient norm, or accuracy"
    )
    command.add_argument(
        "--exact", action="store_true", help="closed-form prox of quadratic clients, counted as one gradient"
    )
    command.add_argument("--data", type=Path, metavar="FOLDER", help="the data sets ($FEDSPAM_DATA, else ./data)")
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the folder of the results (runs/compare-<date-time>)"
    )
    command.add_argument("--quiet", action="store_true", help="print only the folder")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.compare import terminal
    from fedspam.app.compare.options import checked

    names = ("problem", "methods", "sweep", "seeds", "seed", "rounds", "cohort", "budget", "targets", "metric", "exact")
    try:
        wanted = checked(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        raise UsageError(str(error)) from None
    return terminal.show(wanted, data=options.data, folder=options.out, command=options.line, quiet=options.quiet)
