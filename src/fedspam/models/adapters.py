"""Modules of Equinox, Flax NNX and PyTorch as models. They supply scores and gradients, never the method.

A module has its parameters already: ``model.init(key)`` returns them for every key. In training, dropout draws from the
keys of the run, and batch normalization sees the real rows of a batch alone; its running statistics follow a policy.
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from fedspam._internal import trees
from fedspam._internal.brief import Brief
from fedspam._internal.trees import Key, Params
from fedspam.clients import parted
from fedspam.models.aten import Batch
from fedspam.models.model import Model
from fedspam.models.normalization import batch_norm, group_norm, groups_of
from fedspam.models.policies import Normalization, normalization_of
from fedspam.models.torch_graph import TorchNetwork, check_momentum, statistics_of, with_group_norm


@dataclass(frozen=True, eq=False, repr=False)
class Adapted(Brief):
    """A network of another framework: its initial parameters, and its scores."""

    first: Params
    run: Callable[[Params, Any, Any, Batch, bool], tuple[Any, dict[str, Array]]]  # also the statistics after it

    def init(self, key: Key) -> Params:
        return self.first

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows ..."]:
        return self.run(params, None, inputs, Batch(jax.tree.leaves(inputs)[0].shape[0], None, None), False)[0]


@dataclass(frozen=True, eq=False, repr=False)
class AdaptedTraining(Adapted):
    """One that has batch normalization or dropout: training differs from prediction."""

    running: Mapping[str, Array]
    norms: tuple[str, ...]

    def statistics(self) -> dict[str, Array]:
        """The running statistics of batch normalization; {} if there are none."""
        return dict(self.running)

    def norm_params(self) -> tuple[str, ...]:
        """The affine parameters of batch normalization."""
        return self.norms

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows ..."]:
        return self.apply(params, self.statistics(), inputs)[0]

    def apply(
        self,
        params: Params,
        statistics: Mapping[str, Array] | None,
        inputs: Any,
        *,
        key: Key | None = None,
        kept: Bool[Array, " rows"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "rows ..."], dict[str, Array]]:
        """As `fedspam.models.StatefulNetwork.apply`."""
        batch = Batch(jax.tree.leaves(inputs)[0].shape[0], kept, key)
        scores, new = self.run(params, statistics, inputs, batch, train)
        return scores, new if train else dict(statistics or {})


def from_equinox(
    module: Any,
    state: Any = None,
    *,
    normalization: str | Normalization | None = None,
    dtype: str = "float32",
    regularization: float = 0.0,
) -> Model:
    """An Equinox module, which takes one example, as a model of rows; its float arrays are the parameters.

    Arguments:
        module: called as ``module(x)``, with ``key=`` and ``state`` if its ``__call__`` names them.
        state: that of ``equinox.nn.make_with_state``, for a module with batch normalization.
        normalization: what happens to its running statistics, as in `from_torch`.
        dtype, regularization: as in `Model`.

    >>> import equinox, jax
    >>> module = equinox.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    >>> model = from_equinox(module)
    >>> model.logits(model.init(0), jax.numpy.ones((5, 4))).shape
    (5, 3)
    """
    with _needs("equinox"):
        import equinox
    policy, takes = normalization_of(normalization), inspect.signature(type(module).__call__).parameters
    is_norm = lambda part: isinstance(part, equinox.nn.BatchNorm)
    is_state = lambda part: isinstance(part, equinox.nn.StateIndex)
    named, _ = jax.tree.flatten_with_path(module, is_leaf=lambda part: is_norm(part) or is_state(part))
    norms = {trees.path_name(path): part for path, part in named if is_norm(part)}
    strange = sorted(trees.path_name(path) for path, part in named if is_state(part))
    if strange:
        raise ValueError(
            f"{strange[0]} is state of another layer than equinox.nn.BatchNorm, and would stay as it is; leave that "
            "layer out"
        )
    if any(part.mode != "batch" for part in norms.values()):
        raise ValueError("equinox.nn.BatchNorm(mode='ema') trains by its running statistics; make it with mode='batch'")
    several = lambda axis: axis if isinstance(axis, list | tuple) else [axis]
    axes = {axis for part in norms.values() for axis in several(part.axis_name)}
    if len(axes) > 1:
        names = sorted(map(str, axes))
        raise ValueError(f"batch normalization goes over axes of several names, {names}; give all the same")
    drops = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, equinox.nn.Dropout))
    drops = [part for part in drops if isinstance(part, equinox.nn.Dropout) and part.p > 0]
    drawing = bool(drops) and "key" in takes
    if drops and not drawing:
        warnings.warn(
            f"{type(module).__name__} has dropout, which stays off, because its __call__ takes no key; give it one",
            stacklevel=2,
        )
    state = equinox.nn.State(module) if norms and state is None else state
    grouped, running = policy is not None and policy.policy == "group", {}
    for name, part in norms.items() if not grouped else ():
        (mean, var), count = state.get(part.batch_state_index), state.get(part.batch_counter)
        scale = jnp.where(count == 0, 1, 1 - part.momentum**count)  # as Equinox predicts
        running |= {f"{name}.mean": mean / scale, f"{name}.var": var / scale}
    params, rest = equinox.partition(equinox.nn.delete_init_state(module), equinox.is_inexact_array)

    def run(params: Params, statistics: Any, inputs: Any, batch: Batch, train: bool) -> tuple[Any, dict[str, Array]]:
        kind, still = _equinox_norm(), not train or batch.key is None or "key" not in takes
        replaced = lambda part: kind(part, batch.kept, train, statistics is None, grouped) if is_norm(part) else part
        inner = equinox.nn.inference_mode(equinox.combine(params, rest), value=still)
        inner = jax.tree.map(replaced, inner, is_leaf=is_norm)
        begun = jax.tree.map(lambda leaf: leaf, state)  # Equinox lets each state be used once
        for name, part in norms.items() if statistics else ():
            begun = begun.set(part.batch_state_index, (statistics[f"{name}.mean"], statistics[f"{name}.var"]))

        def one(row: Any, number: Any) -> tuple[Any, Any]:
            key = None if batch.key is None else jax.random.fold_in(batch.key, number)
            options = {"key": key} if "key" in takes else {}
            return inner(row, begun, **options) if "state" in takes else (inner(row, **options), begun)

        scores, after = jax.vmap(one, out_axes=(0, None), axis_name=next(iter(axes), None))(
            inputs, jnp.arange(batch.rows)
        )
        new = {}
        for name, part in norms.items() if not grouped else ():
            new[f"{name}.mean"], new[f"{name}.var"] = after.get(part.batch_state_index)
        return scores, new

    affine = tuple(
        f"{name}.{leaf}" for name, part in norms.items() if part.weight is not None for leaf in ("weight", "bias")
    )
    network = AdaptedTraining(params, run, running, affine) if norms or drawing else Adapted(params, run)
    return Model(network, dtype, regularization, normalization=policy)


@functools.cache
def _equinox_norm() -> Any:
    """Equinox's batch normalization over the real rows of a batch, or in groups."""
    import equinox

    class EquinoxNorm(equinox.nn.StatefulLayer):
        part: Any
        kept: Any
        train: bool = equinox.field(static=True)
        alone: bool = equinox.field(static=True)  # whether the new statistics are those of the batch
        grouped: bool = equinox.field(static=True)

        def __call__(self, x: Any, state: Any, *, key: Any = None, inference: Any = None) -> tuple[Any, Any]:
            part = self.part
            if self.grouped:
                groups = groups_of(part.input_size)
                return group_norm(x[None], part.weight, part.bias, groups, epsilon=part.eps, axis=1)[0], state
            mean, var = state.get(part.batch_state_index)
            whole, old = lax.all_gather(x, part.axis_name), None if self.alone else {"mean": mean, "var": var}
            y, new = batch_norm(
                whole, part.weight, part.bias, old, kept=self.kept, train=self.train, momentum=1 - part.momentum,
                epsilon=part.eps, axis=1, unbiased=False,
            )  # fmt: skip
            return y[lax.axis_index(part.axis_name)], state.set(part.batch_state_index, (new["mean"], new["var"]))

    return EquinoxNorm


def from_flax(
    module: Any,
    *,
    normalization: str | Normalization | None = None,
    dtype: str = "float32",
    regularization: float = 0.0,
) -> Model:
    """A Flax NNX module as a model; the parameters are a dict of its ``nnx.Param``.

    Its convolutions are fast with one kernel per client if they are made with
    ``nnx.Conv(..., conv_general_dilated=fedspam.models.conv_general_dilated)``.

    Arguments:
        module: it takes rows first. It is copied.
        normalization: what happens to the running statistics of ``nnx.BatchNorm``, as in `from_torch`.
        dtype, regularization: as in `Model`.

    >>> import jax
    >>> from flax import nnx
    >>> model = from_flax(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    >>> model.logits(model.init(0), jax.numpy.ones((5, 4))).shape
    (5, 3)
    """
    with _needs("flax"):
        from flax import nnx
    policy, module = normalization_of(normalization), nnx.clone(module)
    grouped, norms = policy is not None and policy.policy == "group", {}
    for path, part in nnx.iter_graph(module):
        if isinstance(part, nnx.BatchNorm):
            norm: Any = part
            norm.__class__, norm.groups = _flax_norm(), groups_of(part.num_features) if grouped else 0
            norms[".".join(map(str, path))] = norm
    graph, *states = nnx.split(module, nnx.Param, nnx.BatchStat, ...)
    first, before, fixed = map(nnx.to_pure_dict, states)
    names = trees.names(before)
    strange = sorted({name.rpartition(".")[0] for name in names} - norms.keys())
    if strange:
        raise ValueError(f"{strange[0]} keeps an nnx.BatchStat and is not an nnx.BatchNorm; make it a constant")
    named, structure = dict(zip(names, jax.tree.leaves(before), strict=True)), jax.tree.structure(before)
    running = {} if grouped else named

    def run(params: Params, statistics: Any, inputs: Any, batch: Batch, train: bool) -> tuple[Any, dict[str, Array]]:
        leaves = [(statistics or named)[name] for name in names]
        filled = [copy.copy(part) for part in states]
        for part, values in zip(filled, (params, jax.tree.unflatten(structure, leaves), fixed), strict=True):
            nnx.replace_by_pure_dict(part, values)  # new variables, which this trace may change
        merged = nnx.merge(graph, *filled)
        merged.set_attributes(
            deterministic=not train or batch.key is None, use_running_average=not train, raise_if_not_found=False
        )
        for _, part in nnx.iter_graph(merged):
            if isinstance(part, _flax_norm()):
                object.__setattr__(part, "batch", (batch, statistics is None))
            elif isinstance(part, nnx.RngStream) and batch.key is not None:
                part.key[...], part.count[...] = batch.next_key(), jnp.zeros_like(part.count[...])
        scores = merged(inputs)
        after = nnx.to_pure_dict(nnx.state(merged, nnx.BatchStat))
        return scores, {} if grouped else dict(zip(names, jax.tree.leaves(after), strict=True))

    affine = tuple(
        f"{path}.{name}" if path else name
        for path, part in norms.items()
        for name in ("scale", "bias")
        if getattr(part, name) is not None
    )
    drawing = any(isinstance(part, nnx.RngStream) for _, part in nnx.iter_graph(module))
    network = AdaptedTraining(first, run, running, affine) if norms or drawing else Adapted(first, run)
    return Model(network, dtype, regularization, normalization=policy)


@functools.cache
def _flax_norm() -> Any:
    """Flax's batch normalization over the real rows of a batch."""
    from flax import nnx

    class FlaxNorm(nnx.BatchNorm):
        groups: int  # 0 for batch normalization
        batch: Any

        def __call__(self, x: Any, use_running_average: Any = None, *, mask: Any = None) -> Any:
            if mask is not None:
                raise ValueError("nnx.BatchNorm is called with a mask; leave it out: fedspam masks the rows of padding")
            (batch, alone), value = self.batch, lambda leaf: None if leaf is None else leaf[...]
            scale, bias = value(self.scale), value(self.bias)
            if self.groups:
                return group_norm(x, scale, bias, self.groups, epsilon=self.epsilon, axis=self.axis)
            average = self.use_running_average if use_running_average is None else use_running_average
            old = None if alone and not average else {"mean": self.mean[...], "var": self.var[...]}
            y, new = batch_norm(
                x, scale, bias, old, kept=batch.kept_of(x), train=not average, momentum=1 - self.momentum,
                epsilon=self.epsilon, axis=self.axis, unbiased=False,
            )  # fmt: skip
            self.mean[...], self.var[...] = new["mean"], new["var"]
            return y

    return FlaxNorm


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
    check_momentum(module)
    kinds = {str(leaf.dtype).removeprefix("torch.") for leaf in module.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"the module has parameters of {sorted(kinds)}; convert it to one dtype, as with .float()")
    dtype = next(iter(kinds), "float32")
    if compiled is False:
        if statistics_of(module):
            raise ValueError("batch normalization needs compiled=True or None: a callback returns no statistics")
        first = TorchNetwork(module).init(jax.random.key(0))
        host = _OnHost(module)
        run = lambda params, statistics, inputs, batch, train: (host(params, inputs), {})
        return Model(Adapted(first, run), dtype, regularization)
    host = None if compiled or statistics_of(module) else _OnHost(module)
    return Model(TorchNetwork(module, host), dtype, regularization, normalization=policy)


def state_dict(model: Any, params: Params) -> dict[str, Any]:
    """PyTorch's state dict of a model of `from_torch`: ``module.load_state_dict(state_dict(model, run.params))``.

    Arguments:
        model: of `from_torch`, or the PyTorch module itself, as clients of `fedspam.flower.torch_app` train it.
        params: its parameters, with the statistics beside them if there are some.

    >>> import torch
    >>> model = from_torch(torch.nn.Linear(4, 3))
    >>> [(name, tuple(leaf.shape)) for name, leaf in state_dict(model, model.init(0)).items()]
    [('weight', (3, 4)), ('bias', (3,))]
    """
    network = model.network if isinstance(model, Model) else TorchNetwork(model)
    if not isinstance(network, TorchNetwork) or not hasattr(network.module, "state_dict"):
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


@contextmanager
def _needs(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ImportError(f"{name} is not installed; install it with: pip install {name}") from None
