"""Clients without JAX: their rows, and a loss with its gradient in NumPy or PyTorch."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context

from fedspam_client import random
from fedspam_client._shared._internal import checks
from fedspam_client._shared.flower.client.buffers import check_buffers
from fedspam_client._shared.flower.wire.envelope import LONE
from fedspam_client._shared.flower.wire.node import RefusedError, partition_of

Named = dict[str, Any]  # arrays by the names of the parameters
Rows = Any  # an array, or a tuple, list or dictionary of arrays; the first axis is that of the rows


class RowsClient:
    """A client with rows. It draws the minibatches that ``fedspam.Ragged`` draws with the same key.

    Arguments:
        losses: the loss and what is derived from it.
        rows: of this client.
        batch: rows in a minibatch; None for all rows at every call.
        constants: what is known of the loss, such as its ``smoothness``.
    """

    def __init__(self, losses: "NumpyLoss | TorchLoss", rows: Rows, batch: int | None, constants: Mapping[str, float]):
        self.losses, self.rows, self.constants = losses, rows, constants
        self.count = len(next(iter(_arrays(rows))))
        self.batch = self.count if batch is None else min(batch, self.count)
        self.names: Sequence[str] = (LONE,)  # of the parameters

    def loss(self, params: list[np.ndarray], key: Any = None, number: Any = None) -> Any:
        return self.losses.loss(self._named(params), self._rows(key, number))

    def gradient(self, params: list[np.ndarray], key: Any = None, number: Any = None) -> tuple[Any, list[np.ndarray]]:
        value, gradient = self.losses.gradient(self._named(params), self._rows(key, number))
        return value, self._leaves(gradient, params)

    def hessian(self, params: list[np.ndarray], along: list[np.ndarray], key: Any, number: Any) -> list[np.ndarray]:
        product = self.losses.hessian(self._named(params), self._named(along), self._rows(key, number))
        return self._leaves(product, params)

    def solve(self, g: list[np.ndarray], step_size: Any) -> list[np.ndarray]:
        raise RefusedError(
            "the solver Exact needs quadratic clients with JAX; give the method another solver, as LBFGS()"
        )

    def fact(self, name: str) -> Any:
        if name in ("weight", "minibatches"):
            return self.count if name == "weight" else -(-self.count // self.batch)
        if name not in self.constants:
            raise RefusedError(
                f"the method needs the {name} of the client's loss; give the client constants={{{name!r}: ...}}, or "
                "the method a solver that does not need it"
            )
        return self.constants[name]

    def _rows(self, key: Any, number: Any) -> Rows:
        if key is None or self.batch == self.count:
            return self.rows
        begin = 0 if number is None else int(number) * self.batch
        slots = np.arange(begin, min(begin + self.batch, self.count))
        chosen = random.permuted(key, slots, self.count).astype(np.int64)
        return _mapped(lambda array: array[chosen], self.rows)

    def _named(self, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.names, leaves, strict=True))

    def _leaves(self, tree: dict[str, Any], like: list[np.ndarray]) -> list[np.ndarray]:
        if set(tree) != set(self.names):
            raise ValueError(f"the gradient has the arrays {sorted(tree)}, the parameters {sorted(self.names)}")
        found = [tree[name] for name in self.names]
        for name, part, due in zip(self.names, found, like, strict=True):
            if np.shape(part) != np.shape(due):
                raise ValueError(f"the gradient of {name} has shape {np.shape(part)}, expected {np.shape(due)}")
        return [np.asarray(part, due.dtype) for part, due in zip(found, like, strict=True)]


class NumpyLoss:
    """A loss and its derivatives as functions of parameters and rows, in NumPy."""

    def __init__(self, loss_and_gradient: Callable[..., Any], hessian_product: Callable[..., Any] | None) -> None:
        self._both, self._product = loss_and_gradient, hessian_product

    def loss(self, params: Named, rows: Rows) -> Any:
        return self._both(_lone(params), rows)[0]

    def gradient(self, params: Named, rows: Rows) -> tuple[Any, Named]:
        value, gradient = self._both(_lone(params), rows)
        return value, {LONE: gradient} if LONE in params else gradient

    def hessian(self, params: Named, along: Named, rows: Rows) -> Named:
        if self._product is None:
            raise RefusedError(
                "the solver needs products with the Hessian; give numpy_client hessian_product=, or the method another "
                "solver, as LBFGS()"
            )
        product = self._product(_lone(params), _lone(along), rows)
        return {LONE: product} if LONE in params else product


class TorchLoss:
    """A loss written in PyTorch, whose derivatives autograd computes, on the device of the module."""

    def __init__(self, module: Any, loss: Callable[..., Any]) -> None:
        self._module, self._loss = module, loss

    def loss(self, params: Named, rows: Rows) -> Any:
        import torch

        with torch.no_grad():
            return self._value(params, rows)[0].item()

    def gradient(self, params: Named, rows: Rows) -> tuple[Any, Named]:
        import torch

        value, leaves = self._value(params, rows)
        found = torch.autograd.grad(value, list(leaves.values()))
        return value.item(), self._arrays(leaves, found)

    def hessian(self, params: Named, along: Named, rows: Rows) -> Named:
        import torch

        value, leaves = self._value(params, rows)
        slopes = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
        ways = [torch.tensor(np.asarray(along[name])).to(slope) for name, slope in zip(leaves, slopes, strict=True)]
        slope = torch.stack([(part * way).sum() for part, way in zip(slopes, ways, strict=True)]).sum()
        return self._arrays(leaves, torch.autograd.grad(slope, list(leaves.values())))

    def _value(self, params: Named, rows: Rows) -> tuple[Any, dict[str, Any]]:
        import torch

        device = next(self._module.parameters()).device
        make = lambda array: torch.tensor(np.asarray(array), device=device, requires_grad=True)
        leaves = {name: make(array) for name, array in params.items()}
        dtype = next(iter(leaves.values())).dtype
        cast = lambda part: part.to(device, dtype) if part.is_floating_point() else part.to(device)
        predict = lambda *inputs, **named: torch.func.functional_call(self._module, leaves, inputs, named)
        return self._loss(predict, *(cast(torch.as_tensor(part)) for part in _arrays(rows))), leaves

    @staticmethod
    def _arrays(leaves: dict[str, Any], parts: Any) -> Named:
        return {name: part.detach().cpu().numpy() for name, part in zip(leaves, parts, strict=True)}


def numpy_client(
    loss_and_gradient: Callable[..., Any],
    data: Callable[[int], Rows],
    *,
    batch: int | None = None,
    hessian_product: Callable[..., Any] | None = None,
    constants: Mapping[str, float] | None = None,
) -> Callable[[Context], RowsClient]:
    """Clients whose loss is written in NumPy, for `fedspam_client.client_app`.

    Arguments:
        loss_and_gradient: (params, rows) -> mean loss over the rows, and its gradient with the structure of params: a
            dictionary by name, or a lone array.
        data: partition id -> the rows of that client, loaded once per process.
        batch: rows in a minibatch; None for all rows at every call.
        hessian_product: (params, along, rows) -> product of the Hessian with a direction, for Newton's method.
        constants: of the loss, such as ``{"smoothness": 2.0}``, for solvers that need them.

    >>> import numpy as np
    >>> loss = lambda x, rows: (0.5 * np.mean(np.sum((rows - x) ** 2, axis=1)), x - rows.mean(0))
    >>> client = numpy_client(loss, lambda id: np.ones((4, 3)))
    """
    return _client(NumpyLoss(loss_and_gradient, hessian_product), data, batch, constants)


def torch_client(
    module: Any,
    loss: Callable[..., Any],
    data: Callable[[int], Sequence[Any]],
    *,
    batch: int | None = None,
    constants: Mapping[str, float] | None = None,
) -> Callable[[Context], RowsClient]:
    """Clients whose loss is written in PyTorch, for `fedspam_client.client_app`.

    Arguments:
        module: the model; its own parameters are not changed. Losses are computed on its device. It keeps no running
            statistics: GroupNorm, or batch norm with ``track_running_stats=False``.
        loss: (predict, *rows) -> mean loss over the rows, where ``predict`` is the module with the received parameters.
        data: partition id -> the rows of that client, tensors with the rows as first axis; loaded once per process.
        batch, constants: as for `numpy_client`.
    """
    check_buffers(module)
    return _client(TorchLoss(module, loss), data, batch, constants)


def _client(losses: Any, data: Any, batch: int | None, constants: Any) -> Callable[[Context], RowsClient]:
    if batch is not None:
        checks.whole("batch", batch, 1)
    load = functools.cache(data)
    return lambda context: RowsClient(losses, load(partition_of(context)), batch, constants or {})


def _lone(params: Named) -> Any:
    """Parameters as a loss in NumPy takes them: by name, or as the lone array."""
    return params.get(LONE, params)


def _arrays(rows: Rows) -> Sequence[Any]:
    if isinstance(rows, dict):
        return list(rows.values())
    return rows if isinstance(rows, tuple | list) else [rows]


def _mapped(function: Callable[[Any], Any], rows: Rows) -> Rows:
    if isinstance(rows, dict):
        return {name: function(array) for name, array in rows.items()}
    return type(rows)(map(function, rows)) if isinstance(rows, tuple | list) else function(rows)
