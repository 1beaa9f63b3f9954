"""`fedspam theory`: what the theorems promise, next to what runs did."""

import argparse
import math
from pathlib import Path

from fedspam.app.commands._arguments import EXIT_CODES, Commands, whole


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "theory",
        help="what the theorems promise next to what runs did",
        description=(
            "For given constants, evaluate every theorem of the paper, as printed and corrected, and run the\n"
            "method it speaks of on generated quadratics that have these constants. Prints both, the rounds and\n"
            "bytes that a target needs, and what the certificates of inexact answers are worth; draws the figure."
        ),
        epilog=(
            "examples:\n"
            "  fedspam theory                                         delta 1, sigma 0.5, F 10, cohorts of 5\n"
            "  fedspam theory --delta 0.1 --sigma 2 --rounds 2000     clients alike and noisy\n\n"
            f"{EXIT_CODES}"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--delta", type=positive, default=1.0, metavar="X", help="similarity of Hessians (1)")
    command.add_argument("--sigma", type=positive, default=0.5, metavar="X", help="spread of gradients (0.5)")
    command.add_argument("--gap", type=positive, default=10.0, metavar="F", help="f(x_0) - inf f (10)")
    command.add_argument("--cohort", type=whole(1), default=5, metavar="B", help="clients asked in a round (5)")
    command.add_argument("--rounds", type=whole(10), default=1000, metavar="K", help="of every run (1000)")
    command.add_argument("--smoothness", type=positive, metavar="L", help="of f (10 delta)")
    command.add_argument("--epsilon", type=positive, metavar="E", help="a target for |grad f|² (1 %% of its start)")
    command.add_argument("--clients", type=whole(2), default=40, metavar="N", help="of the generated problem (40)")
    command.add_argument("--dimension", type=whole(2), default=10, metavar="D", help="of the generated problem (10)")
    command.add_argument("--seeds", type=whole(2), default=20, metavar="N", help="runs to average over (20)")
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="the first of them (0)")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go (runs/theory-<date-time>)")
    command.add_argument("--quiet", action="store_true", help="print the folder and nothing else")
    command.set_defaults(run=run, refuse=command.error)


def positive(text: str) -> float:
    """An argument that must be a number greater than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number greater than 0")
    return value


def run(options: argparse.Namespace) -> int:
    from fedspam.app.theory.promised import TheoryOptions, show

    names = ("delta", "sigma", "gap", "cohort", "rounds", "smoothness", "epsilon", "clients", "dimension", "seeds")
    try:
        asked = TheoryOptions(**{name: getattr(options, name) for name in names}, seed=options.seed)
    except ValueError as error:
        return options.refuse(str(error))  # which leaves with exit code 2
    return show(asked, options.out, command=options.line, quiet=options.quiet)
