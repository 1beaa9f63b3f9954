"""Run the public code of a method's authors beside ours, iterate by iterate in float64.

    git clone https://github.com/mlolab/S-DANE
    pip install torch
    python reproductions/replay.py --s-dane S-DANE

Nothing of their code is in this repository: you clone it, and its files must have the digests below. Read them before
you run them. Both sides get the same losses, parameters, start and coins; local work is gradient steps, so that nothing
depends on a solver's tolerance. A row is one method with the largest difference of the server's points over all rounds,
relative to the first of them. The command fails if one is above 1e-10.

One thing is changed in theirs: after a step that the search of adaptive Acc-S-DANE rejects, the center of the next
trial is another, but their code keeps the gradients at the old one. Here it evaluates them again, as the method says;
without that the two are 1e-2 apart.
"""

import argparse
import hashlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Ragged, simulate
from fedspam.methods import (
    acc_extragradient,
    acc_s_dane,
    adaptive_acc_s_dane,
    adaptive_s_dane,
    dane,
    dane_plus,
    fedavg,
    fedprox,
    fedred,
    fedred_memory,
    s_dane,
)
from fedspam.solvers import GradientDescent

DIGESTS = {  # of commit 577d002
    "sdane.py": "a81b16a373793c9d567bb4ed941f3fb6530b840009083017ffd6b484119ac357",
    "accgradsliding.py": "925268f4a0adb48e16118b53d3321a335e2155b99c66138ac230410e76ad000c",
    "fedred.py": "4418db6a213edac1954b7a209dfa7b782cb105cf128f4b2feb4406e551d4f8cb",
}
LIMIT = 1e-10
ROWS, DIMENSION, RIDGE, SEED = (7, 12, 5, 9, 15), 6, 0.05, 0  # the numbers of rows of five clients
ROUNDS, STEPS, RATE, PULL = 30, 5, 0.4, 0.3  # local steps of size RATE, and lambda


class Case(NamedTuple):
    """A method as we build it, and theirs: the class and its settings."""

    method: Any
    theirs: str
    settings: dict[str, Any]
    refresh: bool = False  # whether their gradients are evaluated again after a step that their search rejects


def cases() -> dict[str, Case]:
    """Every method that both have. Their lambda is 1/gamma, and their rate is that of the loss without its prox."""
    local = GradientDescent(STEPS, smoothness=1 / RATE, safeguard=False)
    stable = {"lr": RATE, "nb_local_steps": STEPS, "activate_stopping_criterion": False, "lambda_reguriz": PULL}
    stable |= {"batch_size_local_solver": "full", "mu": RIDGE, "adaptive_lambda": False}
    accelerated, search = stable | {"acceleration": True}, {"adaptive_lambda": True, "lambda_reguriz": 0.01}
    drift = {**stable, "no_prob": True, "control_variate": 1, "batch_size_control_variate": "full"}
    sliding = {**drift}
    del drift["mu"], drift["adaptive_lambda"], sliding["no_prob"], sliding["control_variate"]
    coins = drift | {"no_prob": False, "p": 0.3}
    gamma, few = 1 / PULL, len(ROWS)
    inexact: dict[str, Any] = {"convexity": RIDGE, "solver": local}
    return {
        "s_dane": Case(s_dane(None, gamma, **inexact), "SDANE", stable),
        "acc_s_dane": Case(acc_s_dane(None, gamma, **inexact), "SDANE", accelerated),
        "adaptive_s_dane": Case(adaptive_s_dane(100.0, **inexact), "SDANE", stable | search),
        "adaptive_acc_s_dane": Case(adaptive_acc_s_dane(100.0, **inexact), "SDANE", accelerated | search, refresh=True),
        "acc_extragradient": Case(acc_extragradient(gamma, **inexact), "AccGradSliding", sliding),
        "dane": Case(dane(gamma, solver=local), "FedRed", drift),
        "dane_plus": Case(dane_plus(gamma, solver=local), "FedRed", drift | {"averaging": "randomized"}),
        "fedred": Case(fedred(RATE, PULL, 0.3), "FedRed", coins),
        "fedred_memory": Case(fedred_memory(RATE, PULL, 0.3), "FedRed", coins | {"control_variate": 2}),
        "fedprox": Case(
            fedprox(few, gamma, local_steps=STEPS, local_rate=1 / (1 / RATE + PULL)), "FedRed",
            drift | {"control_variate": 0},
        ),
        "fedavg": Case(
            fedavg(few, STEPS, RATE), "FedRed", drift | {"control_variate": 0, "lambda_reguriz": 0.0}
        ),
    }  # fmt: skip


def clients() -> tuple[Ragged, list[tuple[np.ndarray, np.ndarray]]]:
    """Logistic regression, whose objective is the mean over all rows; and the rows."""
    random = np.random.default_rng(SEED)
    model = random.standard_normal(DIMENSION)
    rows = []
    for count in ROWS:
        features = random.standard_normal(DIMENSION) / 2 + random.standard_normal((count, DIMENSION))
        rows.append((features, np.sign(features @ (model + random.standard_normal(DIMENSION) / 2))))
    loss = lambda x, row: jnp.logaddexp(0, -row["label"] * (row["features"] @ x)) + RIDGE / 2 * x @ x
    parts = [{"features": features, "label": labels} for features, labels in rows]
    return Ragged.of(parts, loss, weighted=True), rows


def ours(case: Case, population: Ragged) -> tuple[np.ndarray, list[int]]:
    """The server's points, the start first, and the local steps of each round."""
    run = simulate(
        case.method, population, jnp.ones(DIMENSION), rounds=ROUNDS, key=SEED, probe=lambda x: {"x": x},
    )  # fmt: skip
    return run.probes["x"], [int(steps) for steps in run.rows.get("steps", np.full(ROUNDS, STEPS))]


def theirs(
    case: Case, module: Any, rows: list[tuple[np.ndarray, np.ndarray]], points: np.ndarray, steps: list[int]
) -> Iterator[np.ndarray]:
    """The points of their code, after every round; its coins fall as ours did, and the client that ours chose moves."""
    import torch

    names, total = np.repeat(np.arange(len(rows)), ROWS), np.cumsum((0, *ROWS))
    features, labels = (torch.tensor(np.concatenate(each)) for each in zip(*rows, strict=True))
    data = [{"images": a, "labels": b} for a, b in zip(features, labels, strict=True)]
    users = {i: np.arange(total[i], total[i + 1]) for i in range(len(rows))}
    assert len(names) == len(data)
    model = torch.nn.Linear(DIMENSION, 1, bias=False).double()
    model.weight.data = torch.ones(1, DIMENSION, dtype=torch.float64)

    def loss(model: Any, images: Any, labels: Any, sigma2: Any = None, backwards: bool = False) -> Any:
        value = torch.nn.functional.softplus(-labels * model(images).view(-1), threshold=1000).mean()
        value = value + RIDGE / 2 * (model.weight**2).sum()
        if backwards:
            value.backward()
        return value

    optimizer = getattr(module, case.theirs)(model.parameters(), data, users, model, loss, **case.settings)
    combine: Any = getattr(module, "linear_combination", None)

    def center(*given: Any) -> None:
        combine(*given)
        optimizer._update_control_variate(range(len(rows)), False, False)

    if case.refresh:
        module.linear_combination = center
    for number in range(ROUNDS):
        module.compute_expected_nb_local_steps = lambda p, count=steps[number]: count
        chosen: Callable[..., int] = lambda *_, goal=points[number + 1]: min(
            optimizer.state["iterates_list"],
            key=lambda i: float(np.abs(optimizer.state["iterates_list"][i][0].numpy().ravel() - goal).max()),
        )
        module.np = types.SimpleNamespace(**{**vars(np), "random": types.SimpleNamespace(
            choice=np.random.choice, randint=chosen)})  # fmt: skip
        optimizer.step()
        yield model.weight.detach().numpy().ravel().copy()
    if case.refresh:
        module.linear_combination = combine


def load(clone: Path, name: str) -> Any:
    """One of their files as a module, if it is the one that was compared."""
    path = clone / "src" / "optimizers" / name
    if not path.is_file():
        raise SystemExit(f"{path} does not exist; clone https://github.com/mlolab/S-DANE and give its folder")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != DIGESTS[name]:
        raise SystemExit(f"{path} has the digest {found}, not {DIGESTS[name]}; check out commit 577d002")
    if importlib.util.find_spec("tqdm") is None:  # their progress bars are off
        stub: Any = types.ModuleType("tqdm")
        stub.tqdm, stub.__spec__ = lambda rows, **_: rows, importlib.machinery.ModuleSpec("tqdm", None)
        sys.modules["tqdm"] = stub
    spec = importlib.util.spec_from_file_location(f"authors_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the code of a method's authors beside ours.")
    parser.add_argument("--s-dane", type=Path, required=True, metavar="FOLDER", help="a clone of mlolab/S-DANE")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    population, rows = clients()
    classes = zip(("AccGradSliding", "FedRed", "SDANE"), sorted(DIGESTS), strict=True)
    modules = {name: load(options.s_dane, file) for name, file in classes}
    worst = 0.0
    for name, case in cases().items():
        points, steps = ours(case, population)
        other = np.stack([points[0], *theirs(case, modules[case.theirs], rows, points, steps)])
        apart = float(np.abs(points - other).max() / np.abs(points[0]).max())
        moved = float(np.abs(points[-1] - points[0]).max())
        worst = max(worst, apart)
        verdict = "" if apart <= LIMIT else "  DIFFERS"
        print(f"{name:20} {apart:8.1e} apart after {ROUNDS} rounds, moved {moved:.2f}{verdict}")
    raise SystemExit(int(not worst <= LIMIT))


if __name__ == "__main__":
    main()
