"""What server, clients and simulation have in common: the loss in JAX, and the methods by kind."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedspam import fedavg, spam_pp
from fedspam.flower import own_training
from fedspam.methods import ef21_pp, fedadam, fedavgm, feddyn, fedprox, mime, s_dane, scaffold
from fedspam.solvers import GradientDescent
from parity_app.data import CLIENTS, FEATURES, RATE, STEPS

SEED = 7
LOCAL: dict[str, Any] = {"local_steps": STEPS, "local_rate": RATE}
SOLVER = GradientDescent(steps=STEPS, smoothness=4.0)


def loss(params: dict[str, Any], rows: dict[str, Any]) -> Any:
    """One loss per row, as in data.py."""
    return 0.5 * (rows["features"] @ params["weight"][0] + params["bias"][0] - rows["target"]) ** 2


def first() -> dict[str, Any]:
    return {"bias": jnp.zeros(1), "weight": jnp.ones((1, FEATURES))}


def spam() -> Any:
    return spam_pp(2, step_size=0.5, fresh_weight=0.3, solver=SOLVER)


# by kind, three methods each; in apps of others a client has no id of its own, so that everyone takes part
METHODS: dict[str, dict[str, Callable[[], Any]]] = {
    "one exchange": {
        "fedavg": lambda: fedavg(2, **LOCAL),
        "fedadam": lambda: fedadam(2, **LOCAL, server_step_size=0.1),
        "fedprox": lambda: fedprox(2, 0.5, **LOCAL),
    },
    "several exchanges": {
        "spam_pp": spam,
        "s_dane": lambda: s_dane(2, 0.5, solver=SOLVER),
        "mime": lambda: mime(2, **LOCAL),
    },
    "client state": {
        "scaffold": lambda: scaffold(2, **LOCAL),
        "feddyn": lambda: feddyn(2, 0.5, **LOCAL),
        "ef21_pp": lambda: ef21_pp(2, 0.1),
    },
    "PyTorch": {"spam_pp": spam, "scaffold": lambda: scaffold(2, **LOCAL), "fedavg": lambda: fedavg(2, **LOCAL)},
    "without JAX": {"spam_pp": spam, "scaffold": lambda: scaffold(2, **LOCAL), "fedavg": lambda: fedavg(2, **LOCAL)},
    "apps of others": {
        "fedavg": lambda: fedavg(CLIENTS, **LOCAL),
        "fedadam": lambda: fedadam(CLIENTS, **LOCAL, server_step_size=0.1),
        "fedavgm": lambda: fedavgm(CLIENTS, **LOCAL),
    },
}
# the same as `own_training` has them, whose clients train by code of their own
SERVED: dict[str, Callable[[], Any]] = {
    "fedavg": lambda: own_training(fedavg, CLIENTS),
    "fedadam": lambda: own_training(fedadam, CLIENTS, server_step_size=0.1),
    "fedavgm": lambda: own_training(fedavgm, CLIENTS),
}


def served(kind: str, name: str) -> Any:
    """The method that the server runs."""
    return SERVED[name]() if kind == "apps of others" else METHODS[kind][name]()
