"""`fedspam theory`: the bounds of the theorems next to what runs reach.

For given constants, evaluate every theorem of the paper, as printed and corrected, and run the
theorem's method on generated quadratics that have these constants. Prints both, the rounds and bytes
that a target needs, and statistics of the certificates of inexact answers; draws the figure.

examples:
  fedspam theory                                         delta 1, sigma 0.5, F 10, cohorts of 5
  fedspam theory --delta 0.1 --sigma 2 --rounds 2000     similar and noisy clients
  fedspam theory --verify                                check the proofs of the tight constants, in seconds
"""

import argparse

from fedspam.app.commands._arguments import MOST_SEEDS, add_output, positive, whole


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("--delta", type=positive, default=1.0, metavar="X", help="similarity of Hessians (1)")
    command.add_argument("--sigma", type=positive, default=0.5, metavar="X", help="spread of gradients (0.5)")
    command.add_argument("--gap", type=positive, default=10.0, metavar="F", help="f(x_0) - inf f (10)")
    command.add_argument("--cohort", type=whole(1), default=5, metavar="B", help="clients per round (5)")
    command.add_argument("--rounds", type=whole(10, 10**7), default=1000, metavar="K", help="rounds per run (1000)")
    command.add_argument("--smoothness", type=positive, metavar="L", help="smoothness of f (10 delta)")
    command.add_argument("--epsilon", type=positive, metavar="E", help="a target for |grad f|² (1 %% of its start)")
    command.add_argument("--clients", type=whole(2, 10**6), default=40, metavar="N", help="number of clients (40)")
    command.add_argument(
        "--dimension", type=whole(2, 10_000), default=10, metavar="D", help="number of parameters (10)"
    )
    command.add_argument(
        "--seeds", type=whole(2, MOST_SEEDS), default=20, metavar="N", help="runs to average over (20)"
    )
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="the first seed (0)")
    command.add_argument("--verify", action="store_true", help="only check the proofs of the tight constants")
    add_output(command)


def run(options: argparse.Namespace) -> int:
    if options.verify:
        from fedspam.app.theory import proofs

        return proofs.verify()
    from fedspam.app.theory.bounds import TheoryOptions, show

    names = TheoryOptions.__dataclass_fields__
    given = TheoryOptions(**{name: getattr(options, name) for name in names})
    return show(given, options.out, command=options.line, quiet=options.quiet)
