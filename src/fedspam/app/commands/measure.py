"""`fedspam measure`: delta, sigma, L and mu of a problem or of your own data, with intervals.

Measure how similar the clients of a problem, or of a TOML file of `fedspam run`, are: delta by Lanczos on
Hessian-vector products of f_i - f, in mean square, and from secants of gradients; sigma, L and the lowest
curvature. Prints a confidence interval for each, and the client gradients and bytes that it took.

problems: ridge, ridge-similar, quadratics; with data (see --data): a9a, a9a-nonconvex, mushrooms,
  mushrooms-nonconvex, har, heart

examples:
  fedspam measure                                  all clients of the quadratics
  fedspam measure experiment.toml                  your own data and model
  fedspam measure --problem a9a --clients 20       from 20 of its 100 clients
  fedspam measure --problem heart --wire           every message encoded
"""

import argparse

from fedspam.app import UsageError
from fedspam.app.commands._arguments import add_shared, real, whole

MOST_STEPS, MOST_CANDIDATES = 10_000, 10**6
confidence = real("a number from 0.5 to 0.999", lambda value: 0.5 <= value <= 0.999)


def add(command: argparse.ArgumentParser) -> None:
    add_shared(command, "file", "--set", "--data", "--device", "--no-cache")
    command.add_argument("--problem", metavar="NAME", help="what to measure (quadratics)")
    command.add_argument("--clients", type=whole(4), metavar="N", help="number of clients to measure (all)")
    command.add_argument("--steps", type=whole(2, MOST_STEPS), default=24, metavar="N", help="Lanczos steps")
    compared = "clients compared one by one with the mean"
    command.add_argument("--candidates", type=whole(1, MOST_CANDIDATES), default=16, metavar="M", help=compared)
    command.add_argument("--confidence", type=confidence, default=0.95, metavar="C", help="of each interval")
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="seed")
    command.add_argument("--wire", action="store_true", help="encode every message instead of simulating; slower")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.theory.measure import show

    if options.file is None and options.settings:
        raise UsageError("settings belong to a configuration; name it: fedspam measure FILE --SECTION.KEY VALUE")
    if options.file is not None and options.problem is not None:
        raise UsageError(f"--problem is for problems by name; leave it out, or leave out {options.file}")
    return show(options)
