"""The methods of this package on a real federation, over Flower.

On the server, `FedspamStrategy` takes the place of Flower's ``FedAvg``. On the clients, `client_app` makes the
``ClientApp``. Needs ``pip install 'flwr[simulation]'``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspam.flower.client.app import client_app, clients_of, clients_with
    from fedspam.flower.client.export import export_works
    from fedspam.flower.server.strategy import FedspamStrategy
    from fedspam.flower.testing.grid import LoopbackGrid
    from fedspam.flower.wire.arrays import to_arrays, to_params

__all__ = [
    "FedspamStrategy",
    "LoopbackGrid",
    "client_app",
    "clients_of",
    "clients_with",
    "export_works",
    "to_arrays",
    "to_params",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because the conformance kit does not need Flower."""
    if name not in __all__:
        raise AttributeError(f"module 'fedspam.flower' has no attribute {name!r}")
    try:
        from fedspam.flower.client import app, export
        from fedspam.flower.server import strategy
        from fedspam.flower.testing import grid
        from fedspam.flower.wire import arrays
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flwr":
            raise
        raise ModuleNotFoundError(
            f"fedspam.flower.{name} needs Flower, which is not installed: pip install 'flwr[simulation]'", name="flwr"
        ) from error
    return next(getattr(module, name) for module in (arrays, app, export, grid, strategy) if hasattr(module, name))
