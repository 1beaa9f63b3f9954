"""`auto` on problems and networks that were kept apart while it was designed, against settings chosen in hindsight.

    python research/auto/held_out.py --hindsight FILE [--problems spins doses]   # the grid alone, without `auto`
    python research/auto/held_out.py [--set first] [--against FILE] [--json FILE]   # `auto` against that grid
    python research/auto/held_out.py --networks [--json FILE]  # `auto` against FedAvg's grid, on a GPU
    python research/auto/held_out.py --networks --set first [--seeds 3]  # FedAvg's grid, too
    python research/auto/held_out.py --networks --hindsight FILE  # FedAvg's grid alone
    python research/auto/held_out.py --networks --against FILE  # `auto` alone, against that grid

Grids of parts of a set, run side by side with `--problems`, are joined: `--against A B` reads several files, and what
they lack is run. With `--hindsight FILE` as well, all of it is written to one file.

Whole-gradient problems (`held_out_problems.py`, the first set, `fresh_problems.py`, the second, and
`third_problems.py`, the third): a target is a relative gradient norm, and `fedspam.app.arrival` says when a run has
arrived at it. Hindsight is the best of 63 settings of SPAM-PPA for each problem and each target: 7 step sizes, 3 fresh
weights, 3 ways to decay. The problems and the grid's rounds, in `held_out_hindsight.json`, `fresh_hindsight.json` and
`third_hindsight.json`, were written down before `auto` had run on any of them. The memory of `auto` was then chosen on
the first set, and its first step size on the first two.

Networks (`held_out_networks.py`, the first set, and `fresh_networks.py`, the second): hindsight is FedAvg's best of 12
settings. Targets are shares of the best accuracy of that grid, so that none was chosen by hand. The grid of the second
set, in `fresh_networks_hindsight.json`, was written down before `auto` had run on it. The first set was used to improve
the minibatch rule of `auto`.

Rounds and exchanges, and for networks megabytes and client gradients, are medians over seeds; exchanges and bytes
include those before the first round.
"""

import argparse
import json
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fresh_networks
import fresh_problems
import held_out_networks
import held_out_problems
import third_problems
from fedspam import simulate_many, spam_ppa
from fedspam.app.arrival import arrivals
from fedspam.methods import auto, fedavg
from fedspam.methods.schedules import Power
from fedspam.simulation import records

SETS = {"first": held_out_problems, "second": fresh_problems, "third": third_problems}
NETWORKS = {"first": held_out_networks, "second": fresh_networks}
HINDSIGHT = {
    "first": Path(__file__).with_name("held_out_hindsight.json"),
    "second": Path(__file__).with_name("fresh_hindsight.json"),
    "third": Path(__file__).with_name("third_hindsight.json"),
}
NETWORK_HINDSIGHT = {"second": Path(__file__).with_name("fresh_networks_hindsight.json")}
TARGETS = (1e-1, 1e-2, 3e-3)
FRESH_WEIGHTS = (0.9, 0.4, 0.1)
# powers of 1/(k + 1) in the step size and in the fresh weight
DECAYS = {"constant": (0.0, 0.0), "both decaying": (1 / 3, 2 / 3), "fresh weight decaying": (0.0, 0.5)}
SHARES = (0.8, 0.9, 0.96)  # of the accuracy that FedAvg's grid gains
STEPS, RATES = (10, 30, 60), (0.03, 0.1, 0.3, 1.0)
COSTS = ("rounds", "exchanges", "megabytes", "gradients")
SHOWN = {False: COSTS[:2], True: COSTS}  # of whole-gradient problems, and of networks


def grid(problem):
    """The settings of hindsight, by name: powers of 4 around 1/delta, so that problems share their step sizes."""
    middle = round(math.log(1 / problem.delta, 4))
    return {
        f"4^{power}, {p}, {decay}": spam_ppa(problem.cohort, Power(4.0**power, a), Power(p, b), solver=problem.solver)
        for power in range(middle - 3, middle + 4)
        for p in FRESH_WEIGHTS
        for decay, (a, b) in DECAYS.items()
    }


def paid(run):
    """What runs have paid before each probe: exchanges, megabytes and client gradients."""
    start = sum(exchange.cohort * (exchange.bytes_down + exchange.bytes_up) for exchange in run.plan.start)
    rounds = run.rows["bytes_up"]
    asked = [
        run.rows[f"{exchange.label}.asked"] > 0 if exchange.dynamic else np.ones(rounds.shape)
        for exchange in run.plan.round
    ]
    each = {
        "exchanges": (len(run.plan.start), sum(asked)),
        "megabytes": (start / 1e6, (run.rows["bytes_down"] + run.rows["bytes_up"]) / 1e6),
        "gradients": (0, run.rows["gradients"]),
    }
    paid = {"rounds": np.broadcast_to(np.arange(rounds.shape[-1] + 1), (*rounds.shape[:-1], rounds.shape[-1] + 1))}
    for name, (first, later) in each.items():
        before = np.full((*rounds.shape[:-1], 1), float(first))
        paid[name] = np.cumsum(np.concatenate([before, later], -1), -1)
    return paid


def medians(run, errors, targets):
    """Of every method and target the median over seeds of each cost at its arrival."""
    costs, found = paid(run), {name: [] for name in COSTS}
    for target in targets:
        at = arrivals(errors, target)
        for name in COSTS:
            there = np.take_along_axis(costs[name], np.where(np.isfinite(at), at, 0).astype(int)[..., None], -1)[..., 0]
            found[name].append(np.median(np.where(np.isfinite(at), there, np.inf), axis=1))
    return {name: np.stack(values, -1) for name, values in found.items()}


def best_of(costs, names=None, shown=COSTS):
    """For each target the setting with the fewest rounds, and what it costs."""
    best = costs["rounds"].argmin(0)
    found = {name: costs[name][best, range(len(best))].tolist() for name in shown}
    if names is not None:
        reached = np.isfinite(found["rounds"])
        found["settings"] = [names[i] if there else None for i, there in zip(best, reached, strict=True)]
    return found


def run_problem(methods, problem, seeds):
    probe = jax.tree_util.Partial(lambda x: {"error": problem.error(x)})
    run = simulate_many(
        methods, problem.population, jnp.asarray(problem.start), rounds=problem.rounds, keys=range(seeds), probe=probe,
        record=("gradients",), side_by_side=False,  # a solver that needs many steps then holds up no other run
    )  # fmt: skip
    return medians(run, run.probes["error"], TARGETS)


def hindsight(problem, seeds):
    settings = grid(problem)
    return best_of(run_problem(list(settings.values()), problem, seeds), list(settings), SHOWN[False])


def run_network(task, methods, rounds, seeds):
    clients = task.train.population(task.model.loss, batch=task.batch)
    probe = jax.tree_util.Partial(lambda test, params: {"accuracy": task.model.accuracy(params, test)}, task.test)
    return simulate_many(
        methods, clients, task.model.init(1), rounds=rounds, keys=range(seeds), probe=probe, record=("gradients",)
    )


def tuned(task, rounds, seeds, most):
    """FedAvg's best setting for each target, and the targets: shares of what its best setting gains."""
    rates = RATES[:most]
    runs = {m: run_network(task, [fedavg(task.cohort, m, rate) for rate in rates], rounds, seeds) for m in STEPS}
    curves = {m: np.nan_to_num(run.probes["accuracy"]) for m, run in runs.items()}
    first = float(curves[STEPS[0]][0, 0, 0])
    best = max(float(np.median(curve, axis=1).max()) for curve in curves.values())
    targets = [round(first + share * (best - first), 3) for share in SHARES]
    each = [medians(runs[m], 1 - curves[m], [1 - target for target in targets]) for m in STEPS]
    names = [f"{m} steps, rate {rate:g}" for m in STEPS for rate in rates]
    costs = {name: np.concatenate([part[name] for part in each]) for name in COSTS}
    return {"targets": targets, "best accuracy": best, **best_of(costs, names)}


def untuned(task, targets, rounds, seeds):
    """`auto` on the same targets."""
    run = run_network(task, [auto(task.cohort)], rounds, seeds)
    accuracy = np.nan_to_num(run.probes["accuracy"])
    found = best_of(medians(run, 1 - accuracy, [1 - target for target in targets]))
    lost = int(np.isnan(run.probes["accuracy"][..., -1]).sum())
    return {**found, "best accuracy": float(np.median(accuracy[0], axis=0).max()), "ended in NaN": lost}


def cell(values):
    """Numbers in a row; a dash for what is never reached."""
    return " ".join("–" if not np.isfinite(v) else f"{v:.0f}" if v >= 10 or v == int(v) else f"{v:.2g}" for v in values)


def ratio_cell(own, best):
    pairs = zip(own, best, strict=True)
    return " ".join("–" if not np.isfinite(b) else "never" if not np.isfinite(o) else f"{o / b:.2f}" for o, b in pairs)


def row(name, found, costs, more=""):
    ours, best = found["auto"], found["hindsight"]
    cells = [f"{cell(best[cost])} / {cell(ours[cost])}" for cost in costs]
    ratios = [ratio_cell(ours[cost], best[cost]) for cost in ("rounds", "exchanges")]
    print(f"| {' | '.join([name + more, *cells, *ratios])} |", flush=True)


def head(first, rival, costs):
    cells = [first, *(f"{cost}, {rival} / auto" for cost in costs), "ratio of rounds", "of exchanges"]
    print(f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}")


def summary(kept, costs):
    """How many of the targets that hindsight reaches `auto` reaches, and at which cost."""
    for cost in costs:
        own = np.concatenate([found["auto"][cost] for found in kept.values()])
        best = np.concatenate([found["hindsight"][cost] for found in kept.values()])
        ratios = own[np.isfinite(best)] / best[np.isfinite(best)]
        if not ratios.size:
            print(f"{cost}: hindsight reaches no target")
            continue
        print(
            f"{cost}: {np.isfinite(ratios).sum()} of {ratios.size} targets reached on {len(kept)} problems; over "
            f"hindsight: median {np.median(ratios):.2f}, worst {ratios.max():.2f}, "
            f"worst of those reached {ratios[np.isfinite(ratios)].max(initial=0):.2f}"
        )


def read(paths, parser):
    """Grids of parts of a set as one; their seeds, and of networks their rounds and rates, must be the same."""
    parts = [json.loads(path.read_text()) for path in paths]
    facts = [{name: value for name, value in part.items() if name != "hindsight"} for part in parts]
    if any(other != facts[0] for other in facts):
        parser.error(f"the files of --against were run with {facts}; join those with the same settings")
    joined = {name: best for part in parts for name, best in part["hindsight"].items()}
    return {**facts[0], "hindsight": joined}


def write(path, numbers):
    path.write_text(json.dumps(numbers, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=[""], help="only those whose name holds one of these")
    parser.add_argument("--set", choices=SETS, help="the third of problems and the second of networks, if not given")
    parser.add_argument("--hindsight", type=Path, help="run the grid alone and write it here")
    parser.add_argument("--against", type=Path, nargs="+", help="files of --hindsight, instead of that of the set")
    parser.add_argument("--networks", action="store_true", help="networks instead of whole-gradient problems")
    parser.add_argument("--rounds", type=int, default=80, help="of the networks; those of --against, if given")
    parser.add_argument("--rates", type=int, default=len(RATES), help="how many of FedAvg's four to try; likewise")
    parser.add_argument("--seeds", type=int, default=3, help="likewise")
    parser.add_argument("--data", type=Path, help="the folder of the real data ($FEDSPAM_DATA, else ./data)")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", not options.networks)

    which = options.set or ("second" if options.networks else "third")
    if options.networks and which not in NETWORKS:
        parser.error(f"there is no {which} set of networks; take one of {', '.join(NETWORKS)}")
    everything = (NETWORKS[which].tasks if options.networks else SETS[which].problems)(options.data)
    chosen = lambda name: any(part.lower() in name.lower() for part in options.problems)
    wanted = {name: make for name, make in everything.items() if chosen(name)}
    own = (NETWORK_HINDSIGHT if options.networks else HINDSIGHT).get(which)
    against = options.against or ([] if options.hindsight or own is None else [own])
    for path in against:
        if not path.is_file():
            parser.error(f"there is no {path}; write it with --set {which} --hindsight {path}")
    stored = {"seeds": options.seeds, "hindsight": {}}
    if options.networks:
        stored |= {"rounds": options.rounds, "rates": options.rates}
    if against:
        stored |= read(against, parser)
    seeds, rounds, shown = stored["seeds"], stored.get("rounds"), SHOWN[options.networks]
    if not options.hindsight:
        first = ("task, targets", "FedAvg") if options.networks else (f"problem, to {cell(TARGETS)}", "hindsight")
        head(*first, shown)
    kept = {}
    for name, make in wanted.items():
        began, problem, more = time.process_time(), make(), ""
        if name in stored["hindsight"]:
            best = stored["hindsight"][name]
        elif options.networks:
            best = tuned(problem, rounds, seeds, stored["rates"])
        else:
            best = hindsight(problem, seeds)
        if options.hindsight:
            kept[name] = best
            seconds = time.process_time() - began
            write(options.hindsight, {**stored, "hindsight": kept})  # each time: a grid takes long
            print(f"{name}: {cell(best['rounds'])} with {best['settings']}, {seconds:.0f} s of CPU", flush=True)
            continue
        if options.networks:
            ours = untuned(problem, best["targets"], rounds, seeds)
            targets = " ".join(f"{target:.3f}" for target in best["targets"])
            more = f", {targets} (best {best['best accuracy']:.3f} / {ours['best accuracy']:.3f})"
            more += f", {ours['ended in NaN']} ended in NaN" if ours["ended in NaN"] else ""
        else:
            method = auto(problem.cohort, solver=problem.solver)
            ours = best_of(run_problem([method], problem, seeds))
        kept[name] = {"hindsight": best, "auto": ours}
        row(name, kept[name], shown, more)
    if options.hindsight:
        return
    print()
    summary(kept, shown)
    if options.json:
        write(options.json, {"manifest": records.manifest(), "found": kept})


if __name__ == "__main__":
    main()
