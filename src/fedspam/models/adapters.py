"""Modules of Equinox, Flax NNX and PyTorch as models. They supply scores and gradients, never the method.

A module has its parameters already: ``model.init(key)`` returns them for every key. Those of PyTorch train with dropout
and batch normalization. Those of Flax and Equinox have neither yet: dropout is off, and batch normalization refused.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from fedspam._internal.brief import Brief
from fedspam._internal.trees import Key, Params
from fedspam.clients import parted
from fedspam.models.model import Model
from fedspam.models.policies import Normalization, normalization_of
from fedspam.models.torch_graph import TorchNetwork, statistics_of, with_group_norm


@dataclass(frozen=True, eq=False, repr=False)
class Adapted(Brief):
    """A network of another framework: its initial parameters, and its scores."""

    first: Params
    scores: Callable[[Params, Any], Any]

    def init(self, key: Key) -> Params:
        return self.first

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows ..."]:
        return self.scores(params, inputs)


def from_equinox(module: Any, *, dtype: str = "float32", regularization: float = 0.0) -> Model:
    """An Equinox module, which takes one example, as a model of rows; its float arrays are the parameters.

    >>> import equinox, jax
    >>> module = equinox.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    >>> model = from_equinox(module)
    >>> model.logits(model.init(0), jax.numpy.ones((5, 4))).shape
    (5, 3)
    """
    with _needs("equinox"):
        import equinox
    parts = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, equinox.nn.BatchNorm))
    _refuse_batch_norm(part for part in parts if isinstance(part, equinox.nn.BatchNorm))
    drops = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, equinox.nn.Dropout))
    _warn_of_dropout(part.p for part in drops if isinstance(part, equinox.nn.Dropout))
    params, rest = equinox.partition(equinox.nn.inference_mode(module), equinox.is_inexact_array)
    return Model(Adapted(params, lambda params, x: jax.vmap(equinox.combine(params, rest))(x)), dtype, regularization)


def from_flax(module: Any, *, dtype: str = "float32", regularization: float = 0.0) -> Model:
    """A Flax NNX module as a model; the parameters are a dict of its ``nnx.Param``.

    Its convolutions are fast with one kernel per client if they are made with
    ``nnx.Conv(..., conv_general_dilated=fedspam.models.conv_general_dilated)``.

    >>> import jax
    >>> from flax import nnx
    >>> model = from_flax(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    >>> model.logits(model.init(0), jax.numpy.ones((5, 4))).shape
    (5, 3)
    """
    with _needs("flax"):
        from flax import nnx
    _refuse_batch_norm(part for _, part in nnx.iter_graph(module) if isinstance(part, nnx.BatchNorm))
    _warn_of_dropout(part.rate for _, part in nnx.iter_graph(module) if isinstance(part, nnx.Dropout))
    graph, state, rest = nnx.split(module, nnx.Param, ...)
    first = nnx.to_pure_dict(state)

    def scores(params: Params, inputs: Any) -> Any:
        filled = copy.copy(state)
        nnx.replace_by_pure_dict(filled, params)
        merged = nnx.merge(graph, filled, rest)
        merged.eval()
        return merged(inputs)

    return Model(Adapted(first, scores), dtype, regularization)


def from_torch(
    module: Any,
    *,
    normalization: str | Normalization | None = None,
    regularization: float = 0.0,
    compiled: bool | None = None,
) -> Model:
    """A PyTorch module as a model: traced by ``torch.export``, compiled by JAX, with dropout and batch statistics.

    The parameters are a dict with PyTorch's names, in PyTorch's layouts, and so are the statistics beside them.
    `state_dict` makes PyTorch's own dict of them. Training uses dropout from the keys of the run, and prediction has
    none. A module that cannot be traced runs in a callback to the host, one client after another, with a warning.

    Arguments:
        module: it takes rows first (channels second), or a dict of them by name, and returns their scores. It is
            copied.
        normalization: what happens to the running statistics of batch normalization: 'averaged', 'local',
            'recalibrated' or 'group' (`POLICIES`). Needed where there is some.
        regularization: as in `Model`.
        compiled: True to refuse a module that cannot be compiled; False for the host.

    >>> import jax, torch
    >>> model = from_torch(torch.nn.Linear(4, 3))
    >>> model.logits(model.init(0), jax.numpy.ones((5, 4))).shape
    (5, 3)
    """
    with _needs("torch"):
        import torch  # noqa: F401
    module = copy.deepcopy(module)
    policy = normalization_of(normalization)
    if policy is not None and policy.policy == "group":
        module = with_group_norm(module)
    kinds = {str(leaf.dtype).removeprefix("torch.") for leaf in module.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"the module has parameters of {sorted(kinds)}; convert it to one dtype, as with .float()")
    dtype = next(iter(kinds), "float32")
    if compiled is False:
        if statistics_of(module):
            raise ValueError("batch normalization needs compiled=True or None: a callback returns no statistics")
        first = TorchNetwork(module).init(jax.random.key(0))
        return Model(Adapted(first, _OnHost(module)), dtype, regularization)
    host = None if compiled or statistics_of(module) else _OnHost(module)
    return Model(TorchNetwork(module, host), dtype, regularization, normalization=policy)


def state_dict(model: Model, params: Params) -> dict[str, Any]:
    """PyTorch's state dict of a model of `from_torch`: ``module.load_state_dict(state_dict(model, run.params))``.

    >>> import torch
    >>> model = from_torch(torch.nn.Linear(4, 3))
    >>> [(name, tuple(leaf.shape)) for name, leaf in state_dict(model, model.init(0)).items()]
    [('weight', (3, 4)), ('bias', (3,))]
    """
    network = model.network
    if not isinstance(network, TorchNetwork):
        raise ValueError("the model is not a PyTorch module; give one of from_torch")
    own, statistics = parted(params)
    return network.state_dict(own, statistics or {})


@dataclass(frozen=True, eq=False)
class _OnHost:
    """The scores of a PyTorch module, by callbacks to the host; dropout is off."""

    module: Any

    @property
    def torch(self) -> Any:
        import torch

        return torch

    def __call__(self, params: Params, inputs: Any) -> Any:
        with self.torch.no_grad():
            blank = self.torch.zeros(inputs.shape, dtype=getattr(self.torch, str(inputs.dtype)))
            shape = tuple(self.module.eval()(blank).shape)
        like = jax.ShapeDtypeStruct(shape, jax.tree.leaves(params)[0].dtype)

        @jax.custom_vjp
        def scores(params: Params) -> Any:
            call = lambda params, x: self._scores(params, x).astype(like.dtype)
            return jax.pure_callback(call, like, params, inputs, vmap_method="sequential")

        def back(params: Params, cotangent: Any) -> tuple[Params]:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
            return (jax.pure_callback(self._pullback, shapes, params, inputs, cotangent, vmap_method="sequential"),)

        scores.defvjp(lambda params: (scores(params), params), back)
        return scores(params)

    def _scores(self, params: dict[str, Any], inputs: Any) -> np.ndarray:
        with self.torch.no_grad():
            return self._run({name: self._tensor(leaf) for name, leaf in params.items()}, inputs).numpy()

    def _pullback(self, params: dict[str, Any], inputs: Any, cotangent: Any) -> dict[str, np.ndarray]:
        leaves = {name: self._tensor(leaf).requires_grad_() for name, leaf in params.items()}
        with self.torch.enable_grad():
            scores = self._run(leaves, inputs)
        found = self.torch.autograd.grad(
            scores, list(leaves.values()), self._tensor(cotangent), allow_unused=True, materialize_grads=True
        )
        return {name: gradient.numpy() for name, gradient in zip(leaves, found, strict=True)}

    def _tensor(self, array: Any) -> Any:
        return self.torch.from_numpy(np.array(array))  # a copy, because JAX's arrays are read-only

    def _run(self, params: dict[str, Any], inputs: Any) -> Any:
        return self.torch.func.functional_call(self.module.eval(), params, (self._tensor(inputs),))


def _refuse_batch_norm(found: Iterable[Any]) -> None:
    for part in found:
        raise ValueError(
            f"the module holds a {type(part).__name__}, whose statistics depend on the whole batch and are no "
            "parameters, so clients cannot be averaged; use GroupNorm or LayerNorm instead"
        )


def _warn_of_dropout(rates: Iterable[Any]) -> None:
    if any(rate > 0 for rate in rates):
        warnings.warn(
            "the module holds Dropout, which stays off, because a difference of two gradients needs the same loss at "
            "both points; remove it from the module to say so yourself, or use regularization= instead",
            stacklevel=3,
        )


@contextmanager
def _needs(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ImportError(f"{name} is not installed; install it with: pip install {name}") from None
