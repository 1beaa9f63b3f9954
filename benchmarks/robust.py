"""What faults and adversaries do to a run, and what the rules of aggregation do about it.

    python benchmarks/robust.py [--rounds 200] [--seeds 2] [--data FOLDER]

First SPAM-PP with a fifth of all replies lost and a tenth of them NaN. Then SPAM-PPA, which asks the same cohort for
the gradient and for the prox, with clients that attack in every exchange: a run converges if the gradient of the honest
clients' mean loss falls to a tenth of what it was (the median over seeds, each the median over the last tenth of the
rounds). HAR is the softmax regression of 30 persons in FEDSPAM_DATA, in the second table with 80 rows of each to save
time; without the data the ridge runs alone.
"""

import argparse
import time
from datetime import UTC, datetime

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Faults, datasets, simulate_many, spam_pp, spam_ppa
from fedspam._internal.trees import struct
from fedspam.clients.faults import Attack, Drift, Huge, SignFlip
from fedspam.federation.aggregation import CenteredClipping, Clipped, GeometricMedian, Mean, Median, TrimmedMean
from fedspam.problems import ridge, softmax
from fedspam.solvers import Exact, GradientDescent

COHORT = 15
ROWS = 80
ATTACKS = {"sign flip x 10": 0, "huge, 10^4": 1, "drift by 1": 2}


@struct
class Chosen:
    """One of three attacks by its number: a number is traced, so one compilation serves them all."""

    number: int

    def __call__(self, reply):
        attacks: tuple[Attack, ...] = (SignFlip(10.0), Huge(1e4), Drift(1.0))
        return jax.lax.switch(self.number, attacks, reply)


RULES = {
    "mean": lambda radius: Mean(),
    "clipped": lambda radius: Clipped(10 * radius),
    "trimmed mean": lambda radius: TrimmedMean(0.4),
    "median": lambda radius: Median(),
    "geometric median": lambda radius: GeometricMedian(),
    "centred clipping": CenteredClipping,
}


def gradient_norm(clients, honest, x):
    """Of the mean loss of the honest clients."""
    losses = lambda x: jax.vmap(lambda id: clients.client(id)(x))(jnp.arange(clients.size, dtype=jnp.uint32))
    return {"norm": jnp.linalg.norm(jax.grad(lambda x: jnp.mean(losses(x), where=honest))(x))}


def ridge_problem():
    """The paper's ridge regression with 30 clients that are more alike than the paper's."""
    clients, start = ridge(0, clients=30, dimension=10, scale=0.1)
    return clients, jnp.asarray(start), 0.5 / clients.delta, Exact(), 0.3


def har_problem(folder, rows=None):
    """Six activities, 123 features and an intercept, scaled so that rows have norm 1 in mean square."""
    activity = datasets.read_har(folder)
    scaled = (activity.features - activity.features.mean(0)) / (activity.features.std(0) + 1e-9)
    features = np.c_[scaled, np.ones(len(scaled))]
    features /= np.sqrt((features**2).sum(1).mean())
    order = np.random.default_rng(0).permutation(len(scaled))
    if rows is not None:  # so many of each person
        order = np.concatenate([order[activity.person[order] == one][:rows] for one in np.unique(activity.person)])
    clients = softmax(features[order], activity.labels[order], activity.person[order], regularization=1e-3)
    return clients, jnp.zeros((features.shape[1], 6)), 10.0, GradientDescent(10, smoothness=1.0), 0.02


def run(method, clients, start, arguments, faults=None, rule=None):
    ids = jnp.arange(clients.size, dtype=jnp.uint32)
    honest = jnp.ones(clients.size, bool) if faults is None else ~faults.is_adversary(ids)
    probe = jax.tree_util.Partial(gradient_norm, clients, honest)
    return simulate_many(
        method, clients, start, rounds=arguments.rounds, keys=range(arguments.seeds), probe=probe, every=10, record=(),
        faults=faults, aggregate=rule, side_by_side=False,
    )  # fmt: skip


def left(found):
    """What is left of the first gradient norm: the median over seeds of the median over the last tenth."""
    norms = found.probes["norm"][0]
    tail = norms[:, -max(1, norms.shape[1] // 10) :]
    return float(np.median(np.median(tail, axis=1) / norms[:, 0]))


def faulty(name, clients, start, gamma, solver, _, arguments):
    method = spam_pp(COHORT, gamma, 0.2, solver=solver)
    for label, faults in (("none", None), ("20 % lost, 10 % NaN", Faults(dropout=0.2, nan=0.1))):
        found = run(method, clients, start, arguments, faults)
        rows = {key: int(np.sum(column)) for key, column in found.rows.items()}
        rounds = arguments.rounds * arguments.seeds
        asked = rounds * (COHORT + 1)  # the cohort, and the client that computes the prox
        count = lambda what: sum(rows.get(f"{work}.{what}", asked) for work in ("difference", "prox"))
        replied, accepted = (count("replied"), count("accepted")) if faults else (asked, asked)
        print(
            f"| {name} | {label} | {asked} | {replied} ({replied / asked:.1%}) | {accepted} ({accepted / asked:.1%}) "
            f"| {rows['void']} of {rounds} | {left(found):.1e} |"
        )


def attacked(name, clients, start, gamma, solver, radius, arguments):
    method = spam_ppa(COHORT, gamma, 0.2, solver=solver)
    for share in (0.1, 0.2):
        for label, attack in ATTACKS.items():
            faults = Faults(adversarial=share, attack=Chosen(attack))
            count = int(faults.is_adversary(jnp.arange(clients.size, dtype=jnp.uint32)).sum())
            cells = []
            for rule in RULES.values():
                rest = left(run(method, clients, start, arguments, faults, rule(radius)))
                cells.append(f"**{rest:.0e}**" if rest <= 0.1 else f"{rest:.0e}")
            print(f"| {name} | {count} of {clients.size} | {label} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", help="the folder of the data sets; by default that of FEDSPAM_DATA")
    arguments = parser.parse_args()
    began = time.perf_counter()
    problems = {"ridge": (ridge_problem(), ridge_problem())}
    try:
        problems["HAR"] = (har_problem(arguments.data), har_problem(arguments.data, ROWS))
    except FileNotFoundError as error:
        print(f"HAR is left out: {error}\n")
    print(
        f"{datetime.now(UTC).date()}, jax {jax.__version__} on {jax.devices()[0].device_kind}, "
        f"{arguments.rounds} rounds, {arguments.seeds} seeds, cohort {COHORT}\n"
    )
    print("| problem | faults | asked | replied | counted | void rounds | gradient norm, end / start |")
    print("|---|---|---|---|---|---|---|")
    for name, (problem, _) in problems.items():
        faulty(name, *problem, arguments)
    print(f"\n| problem | adversaries | attack | {' | '.join(RULES)} |\n|---|---|---{'|---' * len(RULES)}|")
    for name, (_, problem) in problems.items():
        attacked(name, *problem, arguments)
    print(f"\n{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
