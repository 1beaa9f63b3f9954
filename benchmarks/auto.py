"""Rounds that `auto` needs, against the best constant or decaying step size and momentum chosen in hindsight.

    python benchmarks/auto.py [--problems ridge] [--seeds 5] [--rounds 600] [--json FILE]

A target is a relative gradient norm; it is reached when the mean of the squared norm over three rounds is below its
square. For every problem and every target the hindsight grid has 160 settings of SPAM-PPA: 8 step sizes, 5 momenta, 4
ways to decay, judged on the very seeds they are compared on. Beside it stand the theorem's constants with the true
delta.
"""

import argparse
import json
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import records, simulate_many, spam_ppa
from fedspam.algorithms import auto
from fedspam.problems import quadratics, ridge
from fedspam.prox import Exact
from fedspam.schedules import MomentumOf, Power, effective_cohort

jax.config.update("jax_enable_x64", True)
TARGETS = (1e-1, 1e-2, 3e-3)
DECAYS = ((0.0, 0.0), (1 / 3, 2 / 3), (0.0, 0.5), (0.0, 1.0))  # of the step size, of the momentum


class Problem(NamedTuple):
    """Clients, where to start, and how many are asked a round."""

    people: object
    start: np.ndarray
    cohort: int


def ridge_problem(seed, scale, clients=100, dimension=40, cohort=10):
    people, start = ridge(seed, clients=clients, dimension=dimension, scale=scale)
    return Problem(people, start, cohort)


def quadratic_problem(seed, *, delta, cohort=10, dimension=30, condition=100.0, noise=1.0, nonconvex=False):
    options = {"delta": delta, "condition": condition, "noise": noise, "nonconvex": nonconvex}
    people = quadratics(seed, clients=150, dimension=dimension, **options)
    return Problem(people, 3 * np.random.default_rng(seed).normal(size=dimension), cohort)


PROBLEMS = {
    "ridge, scale 0.01": lambda: ridge_problem(0, 0.01),
    "ridge, scale 0.05": lambda: ridge_problem(1, 0.05),
    "ridge, scale 0.3": lambda: ridge_problem(2, 0.3),
    "ridge, scale 1": lambda: ridge_problem(3, 1.0),
    "ridge, scale 3": lambda: ridge_problem(4, 3.0),
    "ridge, d = 80, B = 5": lambda: ridge_problem(5, 0.5, dimension=80, cohort=5),
    "convex, delta = 0.3": lambda: quadratic_problem(10, delta=0.3),
    "convex, delta = 3": lambda: quadratic_problem(11, delta=3.0),
    "convex, delta = 30": lambda: quadratic_problem(12, delta=30.0),
    "convex, much noise": lambda: quadratic_problem(13, delta=0.3, noise=30.0),
    "convex, condition 10^4": lambda: quadratic_problem(14, delta=100.0, condition=1e4),
    "non-convex clients, delta = 3": lambda: quadratic_problem(20, delta=3.0, nonconvex=True),
    "non-convex clients, delta = 10": lambda: quadratic_problem(21, delta=10.0, nonconvex=True),
    "non-convex clients, B = 5": lambda: quadratic_problem(22, cohort=5, delta=5.0, noise=3.0, nonconvex=True),
    "non-convex clients, B = 20": lambda: quadratic_problem(23, cohort=20, dimension=60, delta=20.0, nonconvex=True),
}


def rounds_to(squared_norms):
    """The first round at which the mean over three rounds is below each target; infinity if none."""
    mean = (squared_norms[..., 2:] + squared_norms[..., 1:-1] + squared_norms[..., :-2]) / 3
    reached = []
    for target in TARGETS:
        below = mean <= target**2 * squared_norms[..., :1]
        reached.append(np.where(below.any(-1), below.argmax(-1) + 2, np.inf))
    return np.stack(reached, -1)


def run(methods, problem, rounds, seeds):
    """Median over seeds of the rounds to each target, one row a method."""
    people = problem.people
    probe = jax.tree_util.Partial(lambda people, x: {"norm": jnp.sum(people.gradient(x) ** 2)}, people)
    many = simulate_many(
        methods, people, jnp.asarray(problem.start), rounds=rounds, keys=range(seeds), probe=probe, record=()
    )
    with np.errstate(over="ignore"):
        return np.median(rounds_to(many.probes["norm"]), axis=1)


def measure(problem, rounds, seeds):
    delta, cohort = problem.people.delta, problem.cohort
    grid = [
        spam_ppa(cohort, Power(c / delta, a), Power(p, b), solver=Exact())
        for c in 4.0 ** np.arange(-4, 4)
        for p in (0.9, 0.5, 0.2, 0.05, 0.01)
        for a, b in DECAYS
    ]
    quarter = Power(0.25 / delta, 0.0)
    theory = spam_ppa(cohort, quarter, MomentumOf(quarter, delta, effective_cohort(cohort)), solver=Exact())
    best = run(grid, problem, rounds, seeds).min(0)
    return {
        "hindsight": best,
        "auto": run([auto(cohort, solver=Exact())], problem, rounds, seeds)[0],
        "theory": run([theory], problem, rounds, seeds)[0],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="", help="only those whose name holds this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args()

    ratios, kept = {"auto": [], "theory": []}, {}
    print(
        f"{'rounds to ' + ', '.join(f'{target:g}' for target in TARGETS):34}{'hindsight':>18}{'auto':>18}{'theory':>18}"
    )
    for name, make in PROBLEMS.items():
        if options.problems not in name:
            continue
        began = time.perf_counter()
        found = measure(make(), options.rounds, options.seeds)
        cells = [
            " ".join("-" if np.isinf(r) else f"{r:.0f}" for r in found[who]) for who in ("hindsight", "auto", "theory")
        ]
        print(
            f"{name:34}" + "".join(f"{cell:>18}" for cell in cells) + f"   {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        kept[name] = {who: rounds.tolist() for who, rounds in found.items()}
        reachable = np.isfinite(found["hindsight"])
        for who in ratios:
            ratios[who].extend((found[who] / found["hindsight"])[reachable])
    for who, values in ratios.items():
        values = np.array(values)
        finite = values[np.isfinite(values)]
        print(
            f"{who}: {finite.size} of {values.size} targets reached; rounds over hindsight: "
            f"median {np.median(values):.2f}, geometric mean {np.exp(np.log(finite).mean()):.2f} of those reached, "
            f"worst {values.max():.2f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"manifest": records.manifest(), "rounds": kept}, file, indent=1)


if __name__ == "__main__":
    main()
