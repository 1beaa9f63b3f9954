"""A sweep of settings and seeds in one compiled call, compared with one run after another, and over several devices.

    python benchmarks/sweep.py [--settings 160] [--seeds 5] [--rounds 400] [--alone 10] [--devices 2] [--ends]

SPAM-PP on the paper's ridge regression, with a grid of step sizes and fresh weights. One by one, `--alone` runs are
timed with a program that is compiled already, and the time of all of them is estimated from the median. With
`--devices N` a CPU is divided into N devices, and the same sweep is timed on one of them and on all.

`--ends` instead times the grid of `auto.py` on a ridge regression, 160 settings of SPAM-PPA: with all rounds, and with
runs that end once they have arrived at a target or diverge. The ways take turns.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import simulate, simulate_many, spam_pp
from fedspam.problems import ridge
from fedspam.solvers import GradientDescent

COHORT, REPEATS = 5, 3


def grid(count, delta):
    """So many settings: step sizes between 0.1 and 100 over delta, fresh weights between 0.01 and 1."""
    wide = int(np.ceil(np.sqrt(count)))
    pairs = [(gamma, p) for gamma in np.geomspace(0.1, 100, wide) for p in np.geomspace(0.01, 1, wide)]
    return [spam_pp(COHORT, gamma / delta, p, solver=GradientDescent(5)) for gamma, p in pairs[:count]]


def sweep_seconds(methods, clients, start, options, devices, side_by_side):
    """Seconds to compile, and the fewest seconds of a run."""
    runs = [
        simulate_many(
            methods, clients, start, rounds=options.rounds, keys=range(options.seeds), record=(),
            devices=devices, side_by_side=side_by_side,
        )
        for _ in range(REPEATS)
    ]  # fmt: skip
    return runs[0].compile_seconds, min(run.run_seconds for run in runs), runs[0]


def seconds_alone(methods, clients, start, options):
    """Median seconds of one call of `simulate`, with everything around its rounds, once its program is compiled."""
    taken = []
    for number in range(options.alone + 1):
        began = time.perf_counter()
        method = methods[number % len(methods)]
        simulate(method, clients, start, rounds=options.rounds, key=number, record=()).params.block_until_ready()
        taken.append(time.perf_counter() - began)
    return taken[0], statistics.median(taken[1:])


def until_they_end(options):
    """The same sweep with whole runs and with runs that end."""
    sys.path.append(str(Path(__file__).parents[1] / "research" / "auto"))
    import auto  # asks for float64
    from fedspam import Target, Watch

    problem = auto.ridge_problem(3, 1.0)
    _, methods = auto.hindsight(problem)
    start = jnp.asarray(problem.start)
    relative = lambda norm, unit, x: {"gradient": norm(x) / unit}
    probe = jax.tree_util.Partial(relative, problem.norm, problem.norm(start))
    kinds = (True, False) if jax.default_backend() == "cpu" else (True,)
    ways = {(None, beside): {} for beside in kinds}
    for target, beside in itertools.product((0.01, 0.1), kinds):
        until = Target("gradient", at_most=target, evaluations=10)
        ways[target, beside] = {"until": until, "watch": Watch(growth=1e3, probe="gradient")}
    found = {way: [] for way in ways}
    for way in [way for _ in range(REPEATS) for way in ways]:
        found[way].append(
            simulate_many(
                methods, problem.population, start, rounds=options.rounds, keys=range(options.seeds), probe=probe,
                record=(), side_by_side=way[1], **ways[way],
            )
        )  # fmt: skip
    what = f"{len(methods)} settings of SPAM-PPA x {options.seeds} seeds, {options.rounds} rounds"
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {what}\n")
    print("| a run ends | runs | compile s | run s | of whole runs | rounds done | ended early |")
    print("|---|---|---|---|---|---|---|")
    for (target, beside), runs in found.items():
        seconds = [min(run.run_seconds for run in found[way]) for way in ((target, beside), (None, beside))]
        done = runs[0].rounds_done
        name = "after its last round" if target is None else f"at {target:g}, or if it diverges"
        how = "side by side" if beside else "one after another"
        print(
            f"| {name} | {how} | {runs[0].compile_seconds:.1f} | {seconds[0]:.2f} | {seconds[0] / seconds[1]:.2f} | "
            f"{done.mean() / options.rounds:.0%} | {np.mean(done < options.rounds):.0%} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--settings", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--alone", type=int, default=10, help="runs that are timed one by one")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--ends", action="store_true", help="time runs that end early instead")
    options = parser.parse_args()
    if options.ends:
        until_they_end(options)
        return
    if options.devices > 1:
        jax.config.update("jax_num_cpu_devices", options.devices)
    clients, start = ridge(0, clients=10, dimension=options.dimension)
    start = jnp.asarray(start)
    methods, runs = grid(options.settings, clients.delta), options.settings * options.seeds
    print(
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}: {options.settings} settings x "
        f"{options.seeds} seeds, {options.rounds} rounds, d = {options.dimension}\n"
    )
    print("| sweep | devices | compile s | run s | ms per run |\n|---|---|---|---|---|")
    line = lambda name, devices, compiled, ran: print(
        f"| {name} | {devices} | {compiled:.2f} | {ran:.3f} | {1000 * ran / runs:.3f} |", flush=True
    )
    times = {}
    ways = {True: "side by side", False: "one after another, one program"}
    if jax.default_backend() != "cpu":
        del ways[False]  # 400,000 rounds that leave an accelerator idle
    for side_by_side, name in ways.items():
        compiled, ran, one = sweep_seconds(methods, clients, start, options, None, side_by_side)
        line(name, 1, compiled, ran)
        times[name] = compiled, ran
        if jax.device_count() > 1:
            compiled, shared, several = sweep_seconds(methods, clients, start, options, jax.devices(), side_by_side)
            line(name, jax.device_count(), compiled, shared)
            same = np.array_equal(np.asarray(one.params), np.asarray(several.params))
            print(f"|  |  |  | {ran / shared:.2f} times as fast | parameters: {'the same' if same else 'other'} bits |")
    first, alone = seconds_alone(methods, clients, start, options)
    line(f"one by one, estimated from {options.alone} of {runs}", 1, first - alone, alone * runs)
    compiled, ran = min(times.values(), key=lambda pair: pair[1])
    print(
        f"\nthe sweep is {alone * runs / ran:.1f} times as fast as one by one, and "
        f"{(alone * runs + first - alone) / (ran + compiled):.1f} times with the time to compile"
    )


if __name__ == "__main__":
    main()
