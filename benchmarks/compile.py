"""Seconds until the first round: tracing, lowering and compiling ten methods on three problems, and the first run.

    python benchmarks/compile.py [--methods spam auto ...] [--problems ridge softmax mlp] [--cohort 20] [--then 100]

Each row is one call of `simulate` with an empty cache of compiled programs. Tracing and lowering are work of Python,
and compiling is work of XLA; the seconds are JAX's own. `programs` counts what was compiled. `rest` is everything else:
checks, the ledger's dry run, transfers, and the round itself. With --then, so many rounds run again once they are
compiled, and the last column has the milliseconds of one.
"""

import argparse
import time
from collections import Counter, defaultdict

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import METHODS, Ragged, auto, simulate
from fedspam.models import mlp, softmax_regression
from fedspam.problems import ridge
from fedspam.solvers import GradientDescent

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
NAMES = ("fedavg", "fedprox", "scaffold", "fedadam", "mime", "spam", "spam_pp", "spam_ppa", "acc_s_dane", "auto")
ROUNDS = 5


def networks(model, features, classes, batch):
    generator = np.random.default_rng(0)
    rows = lambda: {
        "features": generator.normal(size=(160, features)).astype(np.float32),
        "label": generator.integers(0, classes, 160).astype(np.int32),
    }
    return Ragged.of([rows() for _ in range(60)], model.loss, batch=batch), model.init(0)


PROBLEMS = {
    "ridge": lambda: ridge(0, clients=20, dimension=50),
    "softmax": lambda: networks(softmax_regression(60, 10), 60, 10, None),
    "mlp": lambda: networks(mlp(784, 62, hidden=(200,)), 784, 62, 20),
}


def method_of(name, cohort):
    if name == "auto":
        return auto(cohort)
    example = {**METHODS[name].example}
    if "solver" in example:
        example["solver"] = GradientDescent(3, smoothness=1.0)
    return METHODS[name].build(**example)


def measure(name, problem, cohort, then):
    seconds, counts = defaultdict(float), Counter()

    def listen(event, duration, **_):
        if event in EVENTS:
            seconds[EVENTS[event]] += duration
            counts[EVENTS[event]] += 1

    clients, start = PROBLEMS[problem]()
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    began = time.perf_counter()
    go = lambda rounds: simulate(
        method_of(name, cohort), clients, jax.tree.map(jnp.asarray, start), rounds=rounds, key=0
    )
    jax.block_until_ready(go(ROUNDS).params)
    total = time.perf_counter() - began
    jax.monitoring.clear_event_listeners()
    again = [go(then).run_seconds for _ in range(2 * (then > 0))]
    return total, seconds, counts["compile"], [1e3 * again[-1] / then] if again else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="*", default=NAMES)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--cohort", type=int, default=5, help="of auto; the others have that of their example")
    parser.add_argument("--then", type=int, default=0, help="rounds to time once they are compiled")
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {ROUNDS} rounds\n")
    names = ("problem", "method", "trace", "lower", "compile", "rest", "total", "programs")
    names += ("ms per round",) if options.then else ()
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for problem in options.problems:
        for name in options.methods:
            total, seconds, programs, later = measure(name, problem, options.cohort, options.then)
            parts = [seconds[kind] for kind in ("trace", "lower", "compile")]
            shown = " | ".join(f"{value:.2f}" for value in (*parts, total - sum(parts), total))
            more = "".join(f" {value:.2f} |" for value in later)
            print(f"| {problem} | {name} | {shown} | {programs} |{more}", flush=True)


if __name__ == "__main__":
    main()
