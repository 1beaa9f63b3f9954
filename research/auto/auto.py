"""Rounds that `auto` needs, against the best constant or decaying step size and fresh weight chosen in hindsight.

    python research/auto/auto.py [--problems ridge] [--seeds 5] [--data FOLDER] [--json FILE] [--merge | --again FILE]

A target is a relative gradient norm; `fedspam.app.arrival` says when a run has arrived at it. For every problem and
every target the hindsight grid has 160 settings of SPAM-PPA: 8 step sizes, 5 fresh weights, 4 ways to decay (84 where
losses are not quadratic: 7, 4, 3), judged on the seeds they are compared on. Beside it stand the theorem's constants
with the true delta, and the one pair of step size and fresh weight that is best over all problems.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Ragged, datasets, simulate_many, spam_ppa
from fedspam.app.arrival import arrivals
from fedspam.app.named_problems import load, of_regression
from fedspam.methods import auto
from fedspam.methods.schedules import FreshWeightOf, Power, effective_cohort
from fedspam.problems import logistic, quadratics, ridge, synthetic_logistic
from fedspam.simulation import records
from fedspam.solvers import LBFGS, Exact

jax.config.update("jax_enable_x64", True)
TARGETS = (1e-1, 1e-2, 3e-3)
DECAYS = ((0.0, 0.0), (1 / 3, 2 / 3), (0.0, 0.5), (0.0, 1.0))  # of the step size, of the fresh weight
FRESH_WEIGHTS = (0.9, 0.5, 0.2, 0.05, 0.01)
NEVER = [math.inf] * len(TARGETS)


class Problem(NamedTuple):
    """Clients, where to start, the cohort size, and what is known of them."""

    population: object
    start: np.ndarray
    cohort: int
    delta: float
    norm: object  # params -> norm of the gradient, in any unit
    solver: object
    rounds: int = 600
    small: bool = False  # whether the hindsight grid is the smaller one


def exact(population, start, cohort):
    norm = jax.tree_util.Partial(lambda population, x: jnp.linalg.norm(population.gradient(x)), population)
    return Problem(population, start, cohort, population.delta, norm, Exact())


def ridge_problem(seed, scale, clients=100, dimension=40, cohort=10):
    return exact(*ridge(seed, clients=clients, dimension=dimension, scale=scale), cohort)


def quadratic_problem(seed, *, delta, cohort=10, dimension=30, condition=100.0, noise=1.0, nonconvex=False):
    options = {"delta": delta, "condition": condition, "noise": noise, "nonconvex": nonconvex}
    population = quadratics(seed, clients=150, dimension=dimension, **options)
    return exact(population, 3 * np.random.default_rng(seed).normal(size=dimension), cohort)


def real(made, cohort, rounds=150):
    """A regression of `fedspam compare`, its constants measured."""
    norm = jax.tree_util.Partial(lambda probe, x: probe(x)["gradient"], made.probe)
    return Problem(made.population, made.start, cohort, made.delta, norm, LBFGS(), rounds, small=True)


def binary_har(nonconvex, data):
    """Whether a person of HAR moves."""
    har = datasets.read_har(data)
    owners, _ = datasets.by_key(har.person)
    features = (har.features - har.features.mean(0)) / har.features.std(0)
    population = logistic(features, (har.labels < 3).astype(int), owners, regularization=1e-3, nonconvex=nonconvex)
    return of_regression("har", "moving or not", population, np.zeros(features.shape[1]))


def heart_problem(nonconvex, data):
    heart = datasets.read_heart(data)
    features = (heart.features - heart.features.mean(0)) / heart.features.std(0)
    population = logistic(features, heart.labels, heart.hospital, regularization=0.01, nonconvex=nonconvex)
    return of_regression("heart", "heart disease", population, np.zeros(features.shape[1]))


def synthetic(seed, cohort, heterogeneity):
    population = synthetic_logistic(
        seed, clients=60, dimension=15, rows=30, heterogeneity=heterogeneity, regularization=0.05, nonconvex=True
    )
    return real(of_regression("synthetic", "", population, np.random.default_rng(seed).normal(size=15)), cohort, 300)


def welsch(seed, cohort, spread):
    """Robust regression, 1 - exp(-r^2 / 2) of every residual r: not convex where residuals are large.

    Its gradient vanishes far away, where all residuals are large: who flees there has not arrived.
    """
    random = np.random.default_rng(seed)
    clients, rows, dimension = 80, 40, 12
    truth = random.normal(size=dimension)
    parts = []
    for _ in range(clients):
        inputs = random.normal(size=(rows, dimension)) * np.exp(spread * random.normal(size=dimension))
        outliers = 5 * random.normal(size=rows) * (random.random(rows) < 0.1)
        own = truth + spread * random.normal(size=dimension)
        parts.append({"input": inputs, "output": inputs @ own + 0.3 * random.normal(size=rows) + outliers})
    loss = lambda x, row: 1 - jnp.exp(-0.5 * (row["input"] @ x - row["output"]) ** 2)
    inputs, outputs = (jnp.asarray(np.stack([part[name] for part in parts])) for name in ("input", "output"))
    mean = lambda x: jnp.mean(loss(x, {"input": inputs, "output": outputs}))
    start = truth + 0.5 * random.normal(size=dimension)
    own = jax.vmap(lambda i, o: jax.hessian(lambda x: jnp.mean(loss(x, {"input": i, "output": o})))(start))
    hessians = own(inputs, outputs)
    delta = float(jnp.linalg.norm(hessians - hessians.mean(0), 2, axis=(1, 2)).max())
    norm = jax.tree_util.Partial(
        lambda x: jnp.where(mean(x) <= mean(start), jnp.linalg.norm(jax.grad(mean)(x)), jnp.inf)
    )
    return Problem(Ragged.of(parts, loss), start, cohort, delta, norm, LBFGS(), 300, small=True)


def problems(data):
    """All problems, by name; those on real data need its folder."""
    found = {
        f"ridge, scale {scale:g}": lambda seed=seed, scale=scale: ridge_problem(seed, scale)
        for seed, scale in enumerate((0.01, 0.05, 0.3, 1.0, 3.0))
    } | {
        "ridge, d = 80, B = 5": lambda: ridge_problem(5, 0.5, dimension=80, cohort=5),
        "ridge, d = 10, B = 20": lambda: ridge_problem(6, 0.1, dimension=10, cohort=20),
        "ridge, d = 100, 10 clients, B = 3": lambda: ridge_problem(7, 1.0, clients=10, dimension=100, cohort=3),
        "convex, delta = 0.3": lambda: quadratic_problem(10, delta=0.3),
        "convex, delta = 3": lambda: quadratic_problem(11, delta=3.0),
        "convex, delta = 30": lambda: quadratic_problem(12, delta=30.0),
        "convex, much noise": lambda: quadratic_problem(13, delta=0.3, noise=30.0),
        "convex, condition 10^4": lambda: quadratic_problem(14, delta=100.0, condition=1e4),
        "non-convex clients, delta = 3": lambda: quadratic_problem(20, delta=3.0, nonconvex=True),
        "non-convex clients, delta = 10": lambda: quadratic_problem(21, delta=10.0, nonconvex=True),
        "non-convex clients, B = 5": lambda: quadratic_problem(22, cohort=5, delta=5.0, noise=3.0, nonconvex=True),
        "non-convex clients, B = 20": lambda: quadratic_problem(
            23, cohort=20, dimension=60, delta=20.0, nonconvex=True
        ),
    }
    found |= {
        f"a9a{kind}, B = {cohort}": lambda kind=kind, cohort=cohort: real(load(f"a9a{kind}", data), cohort)
        for kind, cohort in (("", 10), ("-nonconvex", 20))
    } | {
        f"mushrooms{kind}, B = {cohort}": lambda kind=kind, cohort=cohort: real(load(f"mushrooms{kind}", data), cohort)
        for kind, cohort in (("", 5), ("-nonconvex", 10))
    }
    return found | {
        "har, softmax, B = 6": lambda: real(load("har", data), 6),
        "har, logistic, B = 6": lambda: real(binary_har(False, data), 6),
        "har, non-convex logistic, B = 10": lambda: real(binary_har(True, data), 10),
        "heart, logistic, B = 2": lambda: real(heart_problem(False, data), 2, 800),
        "heart, non-convex logistic, B = 2": lambda: real(heart_problem(True, data), 2, 800),
        "synthetic non-convex logistic, alike": lambda: synthetic(1, 10, 0.3),
        "synthetic non-convex logistic, unlike": lambda: synthetic(2, 10, 1.0),
        "synthetic non-convex logistic, B = 5": lambda: synthetic(3, 5, 0.6),
        "robust regression, alike": lambda: welsch(1, 10, 0.1),
        "robust regression, unlike": lambda: welsch(2, 10, 0.4),
        "robust regression, B = 5": lambda: welsch(3, 5, 0.2),
    }


def run(methods, problem, seeds):
    """Median over seeds of the rounds to each target, one row a method."""
    probe = jax.tree_util.Partial(lambda norm, x: {"norm": norm(x) ** 2}, problem.norm)
    many = simulate_many(
        methods, problem.population, jnp.asarray(problem.start), rounds=problem.rounds, keys=range(seeds), probe=probe,
        record=(),
    )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        relative = np.sqrt(many.probes["norm"] / many.probes["norm"][..., :1])
    return np.median(np.stack([arrivals(relative, target) for target in TARGETS], -1), axis=1)


def hindsight(problem):
    """The settings of the grid, as power, fresh weight and decay, and their methods."""
    middle = round(math.log(1 / problem.delta, 4))  # powers of 4: all problems have their step sizes from one grid
    powers = range(middle - 4, middle + (3 if problem.small else 4))
    fresh_weights = (0.9, 0.5, 0.2, 0.05) if problem.small else FRESH_WEIGHTS
    decays = DECAYS[:3] if problem.small else DECAYS
    pairs = [(power, p, decay) for power in powers for p in fresh_weights for decay in decays]
    make = lambda power, p, a, b: spam_ppa(problem.cohort, Power(4.0**power, a), Power(p, b), solver=problem.solver)
    return pairs, [make(power, p, *decay) for power, p, decay in pairs]


def measure(problem, seeds):
    """The rounds of hindsight, `auto` and theory, and of every constant pair of the grid."""
    delta, cohort, (pairs, grid) = problem.delta, problem.cohort, hindsight(problem)
    quarter = Power(0.25 / delta, 0.0)
    theory = spam_ppa(cohort, quarter, FreshWeightOf(quarter, delta, effective_cohort(cohort)), solver=problem.solver)
    tried = run(grid, problem, seeds)
    return {
        "hindsight": tried.min(0).tolist(),
        "auto": run([auto(cohort, solver=problem.solver)], problem, seeds)[0].tolist(),
        "theory": run([theory], problem, seeds)[0].tolist(),
        "constant": {
            f"4^{power}, {p}": rounds.tolist()
            for (power, p, decay), rounds in zip(pairs, tried, strict=True)
            if decay == DECAYS[0]
        },
    }


def ratios(kept, rounds_of):
    """Rounds over those of hindsight, wherever hindsight arrives."""
    own = np.concatenate([rounds_of(found) for found in kept.values()])
    best = np.concatenate([found["hindsight"] for found in kept.values()])
    return own[np.isfinite(best)] / best[np.isfinite(best)]


def best_pair(kept):
    """The constant pair that reaches most targets over all problems; among those the one with the least rounds."""
    pairs = {pair for found in kept.values() for pair in found["constant"]}

    def score(pair):
        own = ratios(kept, lambda found: found["constant"].get(pair, NEVER))
        reached = own[np.isfinite(own)]
        return -reached.size, float(np.log(reached).mean()) if reached.size else math.inf

    return min(sorted(pairs), key=score)


def summarise(kept):
    pair = best_pair(kept)
    print(f"\nthe one pair: step size and fresh weight {pair}")
    for who in ("auto", "theory", "one pair"):
        own = ratios(kept, lambda found: found["constant"].get(pair, NEVER) if who == "one pair" else found[who])
        finite = own[np.isfinite(own)]
        print(
            f"{who}: {finite.size} of {own.size} targets reached on {len(kept)} problems; rounds over hindsight: "
            f"median {np.median(own):.2f}, geometric mean {np.exp(np.log(finite).mean()):.2f} of those reached, "
            f"worst {own.max():.2f}"
        )


def show(name, found):
    cells = [
        " ".join("-" if np.isinf(r) else f"{r:.0f}" for r in found[who]) for who in ("hindsight", "auto", "theory")
    ]
    print(f"{name:42}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="", help="only those whose name holds this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="the folder of the real data ($FEDSPAM_DATA, else ./data)")
    parser.add_argument("--json", help="also write the numbers here")
    parser.add_argument("--again", nargs="+", default=[], help="files of --json whose problems `auto` alone runs anew")
    parser.add_argument("--merge", nargs="+", default=[], help="files of --json to put together instead of running")
    options = parser.parse_args()

    kept = {}
    head = "rounds to " + ", ".join(f"{target:g}" for target in TARGETS)
    print(f"{head:42}{'hindsight':>16}{'auto':>16}{'theory':>16}")
    everything = problems(options.data)
    for path in (*options.merge, *options.again):
        for name, found in json.loads(Path(path).read_text())["rounds"].items():
            if options.again:
                problem = everything[name]()
                ours = [auto(problem.cohort, solver=problem.solver)]
                found["auto"] = run(ours, problem, options.seeds)[0].tolist()
            kept[name] = found
            show(name, found)
    for name, make in everything.items():
        if kept or options.problems not in name:
            continue
        began = time.perf_counter()
        kept[name] = measure(make(), options.seeds)
        show(name, kept[name])
        print(f"{'':42}{time.perf_counter() - began:.0f} s", flush=True)
    summarise(kept)
    if options.json:
        Path(options.json).write_text(json.dumps({"manifest": records.manifest(), "rounds": kept}, indent=1))


if __name__ == "__main__":
    main()
