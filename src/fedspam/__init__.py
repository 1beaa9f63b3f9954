"""Federated optimization that benefits from clients being alike: SPAM, its variants, and its rivals."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedspam import algorithms, problems, prox, schedules
    from fedspam.algorithms import METHODS, spam, spam_pp, spam_ppa
    from fedspam.federation import Faults, on_client
    from fedspam.population import Generated, Hosted, Ragged
    from fedspam.simulation import Run, simulate, simulate_many

# Where each public name lives. They are imported when first used, so that the command line starts at once.
_HOMES = {
    "METHODS": "algorithms",
    "Faults": "federation",
    "Generated": "population",
    "Hosted": "population",
    "Ragged": "population",
    "Run": "simulation",
    "on_client": "federation",
    "simulate": "simulation",
    "simulate_many": "simulation",
    "spam": "algorithms",
    "spam_pp": "algorithms",
    "spam_ppa": "algorithms",
}
_ROOMS = ("algorithms", "problems", "prox", "schedules")

__all__ = [
    "METHODS",
    "Faults",
    "Generated",
    "Hosted",
    "Ragged",
    "Run",
    "algorithms",
    "on_client",
    "problems",
    "prox",
    "schedules",
    "simulate",
    "simulate_many",
    "spam",
    "spam_pp",
    "spam_ppa",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedspam.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"fedspam.{name}")
    raise AttributeError(f"module 'fedspam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
