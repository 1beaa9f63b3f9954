"""The methods of this package on a real federation, over Flower.

On the server, `FedspamStrategy` takes the place of Flower's ``FedAvg``. On the clients, `client_app` makes the
``ClientApp``. Needs ``pip install 'flwr[simulation]' prometheus-client``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspam.flower.client.app import client_app, clients_of, clients_with
    from fedspam.flower.client.export import export_works
    from fedspam.flower.client.pytorch import torch_app, torch_clients, torch_params
    from fedspam.flower.server.plain import own_training
    from fedspam.flower.server.replies import Replies
    from fedspam.flower.server.strategy import FedspamStrategy
    from fedspam.flower.testing.grid import LoopbackGrid
    from fedspam.flower.wire.arrays import to_arrays, to_params

__all__ = [
    "FedspamStrategy",
    "LoopbackGrid",
    "Replies",
    "client_app",
    "clients_of",
    "clients_with",
    "export_works",
    "own_training",
    "to_arrays",
    "to_params",
    "torch_app",
    "torch_clients",
    "torch_params",
]


_MODULES = ("client.app", "client.export", "client.pytorch", "server.plain", "server.replies", "server.strategy",
            "testing.grid", "wire.arrays")  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: parts of the room need neither a server nor Prometheus."""
    if name not in __all__:
        raise AttributeError(f"module 'fedspam.flower' has no attribute {name!r}")
    try:
        modules = [importlib.import_module(f"fedspam.flower.{module}") for module in _MODULES]
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in ("flwr", "prometheus_client"):
            raise
        raise ModuleNotFoundError(
            f"fedspam.flower.{name} needs {missing}, which is not installed: "
            "pip install 'flwr[simulation]' prometheus-client",
            name=missing,
        ) from error
    return next(getattr(module, name) for module in modules if hasattr(module, name))
