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

from fedspam.app.commands._arguments import MOST_SEEDS, add_shared, positive, whole


def add(command: argparse.ArgumentParser) -> None:
    number = lambda flag, kind, metavar, default, words: command.add_argument(
        flag, type=kind, default=default, metavar=metavar, help=words
    )
    number("--delta", positive, "X", 1.0, "similarity of Hessians")
    number("--sigma", positive, "X", 0.5, "spread of gradients")
    number("--gap", positive, "F", 10.0, "f(x_0) - inf f")
    number("--cohort", whole(1), "B", 5, "clients per round")
    number("--rounds", whole(10, 10**7), "K", 1000, "rounds per run")
    number("--smoothness", positive, "L", None, "smoothness of f (10 delta)")
    number("--epsilon", positive, "E", None, "a target for |grad f|² (1 %% of its start)")
    number("--clients", whole(2, 10**6), "N", 40, "number of clients")
    number("--dimension", whole(2, 10_000), "D", 10, "number of parameters")
    number("--seeds", whole(2, MOST_SEEDS), "N", 20, "runs to average over")
    number("--seed", whole(0), "S", 0, "the first seed")
    command.add_argument("--verify", action="store_true", help="only check the proofs of the tight constants")
    add_shared(command, "--out", "--quiet", "--device", "--no-cache")


def run(options: argparse.Namespace) -> int:
    if options.verify:
        from fedspam.app.theory import proofs

        return proofs.verify()
    from fedspam.app.theory.bounds import show

    return show(options)
