"""Federated optimization that benefits from clients being alike: SPAM, its variants, and its rivals."""

import importlib
from typing import TYPE_CHECKING, Any

from fedspam._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from fedspam import (
        app,
        clients,
        datasets,
        federation,
        flower,
        methods,
        models,
        problems,
        simulation,
        solvers,
        theory,
    )
    from fedspam.clients import Faults, Generated, Hosted, Ragged
    from fedspam.federation import on_client
    from fedspam.methods import METHODS, auto, fedavg, spam, spam_pp, spam_ppa
    from fedspam.models import load
    from fedspam.simulation import Evaluation, Keep, Patience, Run, Target, Watch, simulate, simulate_many

# Where each public name lives. It is imported when it is first used, so that the command line starts at once.
_HOMES = {
    "clients": ("Faults", "Generated", "Hosted", "Ragged"),
    "federation": ("on_client",),
    "methods": ("METHODS", "auto", "fedavg", "spam", "spam_pp", "spam_ppa"),
    "models": ("load",),
    "simulation": ("Evaluation", "Keep", "Patience", "Run", "Target", "Watch", "simulate", "simulate_many"),
}
_ROOM_OF = {name: room for room, names in _HOMES.items() for name in names}
_ROOMS = (
    "app", "clients", "datasets", "federation", "flower", "methods", "models", "problems", "simulation", "solvers",
    "theory",
)  # fmt: skip

__all__ = [
    "METHODS",
    "Evaluation",
    "Faults",
    "Generated",
    "Hosted",
    "Keep",
    "Patience",
    "Ragged",
    "Run",
    "Target",
    "Watch",
    "app",
    "auto",
    "clients",
    "datasets",
    "fedavg",
    "federation",
    "flower",
    "load",
    "methods",
    "models",
    "on_client",
    "problems",
    "simulate",
    "simulate_many",
    "simulation",
    "solvers",
    "spam",
    "spam_pp",
    "spam_ppa",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        return getattr(importlib.import_module(f"fedspam.{_ROOM_OF[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"fedspam.{name}")
    if not name.startswith("_"):  # the constructor of any method, which lives in fedspam.methods
        for method in importlib.import_module("fedspam.methods").METHODS.values():
            if method.build.__name__ == name:
                return method.build
    raise AttributeError(f"module 'fedspam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
