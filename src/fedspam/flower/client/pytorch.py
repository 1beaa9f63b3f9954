"""PyTorch clients whose loss is written in PyTorch: autograd computes losses and gradients, the method stays the same.

For a classifier with cross entropy, ``clients_with(from_torch(module).loss, data)`` needs no loss: PyTorch then
computes the scores, and everything else is as for a model in JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context

from fedspam.clients import HostedOracle
from fedspam.flower.client.app import partition_of, rows_of
from fedspam.flower.client.buffers import check_buffers


def torch_params(module: Any) -> dict[str, Any]:
    """The trained parameters of a module by name, for `client_app` and `to_arrays`. Modules with running statistics, as
    batch norm keeps them, are refused."""
    check_buffers(module)
    return {name: tensor.detach().numpy() for name, tensor in module.named_parameters() if tensor.requires_grad}


@dataclass(frozen=True)
class TorchAnswer:
    """(client, params, seed) -> (loss, gradient) with PyTorch. Answers with equal settings are equal, so that one
    compilation serves all clients of a process."""

    module: Any
    loss: Callable[..., Any]
    data: Callable[[int], tuple[Any, ...]]
    batch: int | None = None

    def __call__(self, client: int, params: dict[str, Any], seed: tuple[int, int] | None) -> tuple[Any, Any]:
        import torch

        leaves = {name: torch.tensor(np.asarray(value), requires_grad=True) for name, value in params.items()}
        dtype = next(iter(leaves.values())).dtype
        rows = [part.to(dtype) if part.is_floating_point() else part for part in rows_of(self.data, client)]
        count = len(rows[0])
        if seed is not None and self.batch is not None and self.batch < count:
            chosen = torch.from_numpy(np.random.default_rng(seed).choice(count, self.batch, replace=False))
            rows = [part[chosen] for part in rows]
        predict = lambda *inputs, **named: torch.func.functional_call(self.module, leaves, inputs, named)
        value = self.loss(predict, *rows)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        return value.item(), dict(zip(leaves, (part.numpy() for part in gradients), strict=True))


def torch_oracle(
    module: Any,
    loss: Callable[..., Any],
    data: Callable[[int], tuple[Any, ...]],
    *,
    batch: int | None = None,
) -> Callable[[Context], HostedOracle]:
    """The oracles of PyTorch clients, for `client_app`.

    Arguments:
        module: the model; its own parameters are not changed. It keeps no running statistics: GroupNorm, or batch norm
            with ``track_running_stats=False``.
        loss: (predict, *rows) -> mean loss over the rows, where ``predict`` is the module with the received parameters.
        data: partition id -> the rows of that client, tensors with the rows as first axis; loaded once per process.
        batch: rows in a minibatch; None for all rows at every call.
    """
    check_buffers(module)
    answer = TorchAnswer(module, loss, data, batch)

    def oracle(context: Context) -> HostedOracle:
        client = partition_of(context)
        rows = len(rows_of(data, client)[0])
        return HostedOracle(jnp.uint32(client), jnp.asarray(rows, jnp.result_type(float)), answer=answer)

    return oracle
