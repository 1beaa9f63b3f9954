"""Microseconds per round on the paper's ridge problem, against a plain NumPy loop of the same method in the same run.

    python benchmarks/ridge.py [--rounds 4000] [--repeats 7]

Both sides compute in float32 and have the prox factorized for the step size beforehand. Ours is timed without and with
the certificate of every prox, which NumPy does not compute at all. Compilation is reported apart. The last part runs
SPAM-PP on an endless population and prints the memory it takes.
"""

import argparse
import json
import platform
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Generated, Keep, simulate, simulate_many, spam, spam_pp, spam_ppa
from fedspam.problems import ridge
from fedspam.simulation import records
from fedspam.solvers import Exact, GradientDescent

COHORT = 5
MOMENTUM = 0.2


def numpy_rounds(method, clients, inverses, x, rounds, seed=0):
    """The method as one would write it in NumPy, with the prox (H + I/gamma)^-1 inverted beforehand."""
    hessians, linears = np.asarray(clients.hessians), np.asarray(clients.linears)
    rng, count = np.random.default_rng(seed), len(hessians)
    keep = np.float32(1 - MOMENTUM)
    previous, g = x, np.zeros_like(x)
    began = time.perf_counter()
    for _ in range(rounds):
        if method == "spam":
            i = rng.integers(count)
            hessian, linear = hessians[i], linears[i]
            g = (hessian @ x - linear) + keep * (g - (hessian @ previous - linear))
            new = x - inverses[i] @ g
        else:
            cohort = rng.choice(count, COHORT, replace=False)
            total = np.zeros_like(x)
            for i in cohort:
                total += (hessians[i] @ x - linears[i]) - keep * (hessians[i] @ previous - linears[i])
            g = total / np.float32(COHORT) + keep * g
            if method == "spam_pp":
                new = x - inverses[cohort[rng.integers(COHORT)]] @ g
            else:
                new = np.zeros_like(x)
                for i in cohort:
                    new += x - inverses[i] @ g
                new /= np.float32(COHORT)
        previous, x = x, new
    return (time.perf_counter() - began) / rounds * 1e6


def methods(gamma):
    return {
        "spam": spam(gamma, MOMENTUM, solver=Exact(), start="zero"),
        "spam_pp": spam_pp(COHORT, gamma, MOMENTUM, solver=Exact(), start="zero"),
        "spam_ppa": spam_ppa(COHORT, gamma, MOMENTUM, solver=Exact(), start="zero"),
    }


def one_run(dimension, rounds, repeats):
    clients, start = ridge(0, dimension=dimension)
    gamma = 0.5 / clients.delta
    clients, x = clients.factorized(gamma), jnp.asarray(start, jnp.float32)
    inverses = np.asarray(clients.inverses)
    rows = []
    for name, method in methods(gamma).items():
        bare, recorded, numpy, compile_seconds = [], [], [], []
        for repeat in range(repeats):  # in turn, so that whatever else the machine does falls on all of them
            run = simulate(method, clients, x, rounds=rounds, key=repeat, record=(), keep=Keep(every=rounds))
            bare.append(run.run_seconds / rounds * 1e6)
            compile_seconds.append(run.compile_seconds)
            run = simulate(method, clients, x, rounds=rounds, key=repeat, keep=Keep(every=rounds))
            recorded.append(run.run_seconds / rounds * 1e6)
            numpy.append(numpy_rounds(name, clients, inverses, np.asarray(x), rounds // 4, repeat))
        rows.append(
            {
                "method": name,
                "dimension": dimension,
                "ours_us": min(bare),
                "ours_with_certificates_us": min(recorded),
                "numpy_us": min(numpy),
                "ratio": min(numpy) / min(bare),
                "compile_s": max(compile_seconds),
            }
        )
    return rows


def many_runs(dimension, seeds, rounds, repeats):
    clients, start = ridge(0, dimension=dimension)
    gamma = 0.5 / clients.delta
    clients, x = clients.factorized(gamma), jnp.asarray(start, jnp.float32)
    inverses = np.asarray(clients.inverses)
    rows = []
    for name, method in methods(gamma).items():
        ours, numpy = [], []
        for repeat in range(repeats):
            run = simulate_many(method, clients, x, rounds=rounds, keys=range(repeat, repeat + seeds), record=())
            ours.append(run.run_seconds / rounds / seeds * 1e6)
            numpy.append(numpy_rounds(name, clients, inverses, np.asarray(x), rounds, repeat))
        rows.append(
            {
                "method": name,
                "dimension": dimension,
                "seeds": seeds,
                "ours_us": min(ours),
                "numpy_us": min(numpy),
                "ratio": min(numpy) / min(ours),
            }
        )
    return rows


def make_client(key):
    """A client nobody has seen: a curvature and a centre of its own."""
    first, second = jax.random.split(key)
    return jnp.exp(0.1 * jax.random.normal(first, (100,))), jax.random.normal(second, (100,))


def client_loss(x, data):
    curvature, centre = data
    return 0.5 * jnp.sum(curvature * (x - centre) ** 2)


def endless(rounds, cohort):
    """SPAM-PP on clients with ids among 2^32, none of which is stored: memory before and after."""
    clients = Generated(make=make_client, loss=client_loss)
    method = spam_pp(cohort, 0.5, 0.1, solver=GradientDescent(steps=5, smoothness=1.5))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    run = simulate(method, clients, jnp.zeros(100), rounds=rounds, key=0, record=())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "clients": 2**32,
        "cohort": cohort,
        "contacts": rounds * cohort,
        "us_per_round": run.run_seconds / rounds * 1e6,
        "memory_before_mb": before,
        "memory_after_mb": after,
    }


def table(rows):
    names = list(rows[0])
    text = [[f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *text, strict=True)]
    for line in [names, *text]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args()

    print(f"{platform.processor() or platform.machine()}, jax {jax.__version__}, numpy {np.__version__}, float32\n")
    single = one_run(100, options.rounds, options.repeats) + one_run(10, options.rounds, options.repeats)
    table(single)
    many = many_runs(10, 100, options.rounds // 4, 3)
    table(many)
    memory = [endless(rounds, cohort) for rounds, cohort in ((100, 100), (10_000, 100))]
    table(memory)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"manifest": records.manifest(), "one": single, "many": many, "endless": memory}, file, indent=1)


if __name__ == "__main__":
    main()
