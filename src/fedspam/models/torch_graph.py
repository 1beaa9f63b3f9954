"""A PyTorch module as a network of JAX: traced once by ``torch.export``, then run operation by operation.

The trace holds core ATen operations, whose JAX counterparts are in the table `OPERATIONS`. Buffers that batch
normalization changes come out as new statistics, and dropout draws from the key that is given.
"""

import copy
import functools
import operator
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedspam._internal.brief import Brief
from fedspam._internal.trees import Key, Params
from fedspam.models.aten import IGNORED, OPERATIONS, WHOLE, WITH_BATCH, Batch, dtype_of
from fedspam.models.normalization import groups_of


class NotCompiledError(NotImplementedError):
    """A module cannot run in JAX: PyTorch cannot trace it, or it uses an operation that the table does not have."""


@dataclass(frozen=True, eq=False, repr=False)
class TorchNetwork(Brief):
    """A PyTorch module, compiled. Use `fedspam.models.from_torch` to build it.

    Parameters and statistics are dicts with PyTorch's names. A module is traced once for each shape of its inputs, in
    training and in evaluation mode.
    """

    module: Any
    host: Any = None  # (params, inputs) -> scores, where the module cannot be compiled
    layers: str = ""  # of the module, as it prints itself, for the manifest of a run

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", str(self.module))

    def init(self, key: Key) -> Params:
        return {name: _array(leaf) for name, leaf in self.module.named_parameters()}

    def statistics(self) -> dict[str, Array]:
        """The running statistics of batch normalization; {} if there are none."""
        return {name: _array(leaf) for name, leaf in statistics_of(self.module).items()}

    def norm_params(self) -> tuple[str, ...]:
        """The affine parameters of batch normalization."""
        kinds = batch_norms()
        return tuple(
            f"{path}.{name}" if path else name
            for path, part in self.module.named_modules()
            if isinstance(part, kinds)
            for name, _ in part.named_parameters(recurse=False)
        )

    def with_group_norm(self) -> "TorchNetwork":
        """The same module with group normalization in place of batch normalization."""
        return TorchNetwork(with_group_norm(self.module))

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
        if train and jax.tree.leaves(inputs)[0].shape[0] == 1:  # which PyTorch's batch normalization refuses
            twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), inputs)
            scores, new = self.apply(params, statistics, twice, key=key, kept=jnp.array([True, False]), train=True)
            return scores[:1], new
        try:
            trace = self._trace(inputs, train)
        except NotCompiledError as error:
            if self.host is None:
                raise
            warnings.warn(
                f"{error}; so PyTorch computes it in callbacks to the host, one client after another and without "
                "dropout: many times slower. from_torch(..., compiled=False) says so yourself",
                stacklevel=2,
            )
            return self.host(params, inputs), {}
        return trace.run(params, statistics, inputs, key, kept)

    def state_dict(self, params: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """PyTorch's state dict, with its names, buffers and tied weights."""
        import torch

        same = {id(leaf): name for name, leaf in self.module.named_parameters()}
        every = dict(self.module.named_parameters(remove_duplicate=False))
        found = {}
        for name, leaf in self.module.state_dict().items():
            ours = params[same[id(every[name])]] if name in every else statistics.get(name)
            found[name] = leaf if ours is None else torch.from_numpy(np.array(ours)).to(leaf.dtype)
        return found

    def _trace(self, inputs: Any, train: bool) -> "Trace":
        leaves, structure = jax.tree.flatten(inputs)
        at = (structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), train)
        traces = _TRACES.setdefault(self.module, {})
        if at not in traces:
            traces[at] = Trace.of(self.module, inputs, train)
        return traces[at]


_TRACES: "weakref.WeakKeyDictionary[Any, dict[Any, Trace]]" = weakref.WeakKeyDictionary()  # of each module


@dataclass(frozen=True)
class Step:
    """One operation of a trace."""

    name: str  # of its result
    operation: Any  # the function of the table, or the steps of a part of the graph
    args: tuple[Any, ...]
    with_batch: bool = False


class Name(str):
    """The name of an earlier result, as an argument."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The operations of a module for inputs of one shape, in training or in evaluation."""

    steps: tuple[Step, ...]
    inputs: Mapping[str, tuple[str, Any]]  # name -> what it is (params, statistics, constant, input) and which
    output: Name
    moved: Mapping[str, Name]  # statistic -> its new value

    @classmethod
    def of(cls, module: Any, inputs: Any, train: bool) -> "Trace":
        """Trace the module, or raise `NotCompiledError`."""
        import torch

        module = copy.deepcopy(module).train(train)
        args, named = _arguments(jax.tree.map(_blank, inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about PyTorch's own insides
            whole = {operator.attrgetter(name)(torch.ops.aten) for name in WHOLE}
            table = {op: rule for op, rule in torch.export.default_decompositions().items() if op not in whole}
            try:
                program = torch.export.export(module, args, named, strict=False)
                _keep_stops(program)
                program = program.run_decompositions(table)
            except Exception as error:  # of many kinds, also ValueError of the module itself
                with torch.no_grad():
                    copy.deepcopy(module)(*args, **named)  # an error of the module itself is clearer
                why = str(error).strip().splitlines()[0]
                raise NotCompiledError(f"PyTorch cannot trace the module ({why})") from error
        signature = program.graph_signature
        canonical = {id(leaf): name for name, leaf in module.named_parameters()}
        every = dict(module.named_parameters(remove_duplicate=False))
        known = statistics_of(module)
        own: dict[Any, tuple[str, Any]] = {}
        buffers = dict(module.named_buffers())
        for name, target in signature.inputs_to_parameters.items():
            own[name] = ("params", canonical[id(every[target])])
        for name, target in signature.inputs_to_buffers.items():
            value = buffers[target] if target in buffers else program.constants[target]
            own[name] = ("statistics", target) if target in known else ("constant", _array(value))
        for name, target in signature.inputs_to_lifted_tensor_constants.items():
            own[name] = ("constant", _array(program.constants[target]))
        own |= {name: ("input", number) for number, name in enumerate(signature.user_inputs)}
        changed = {target: Name(name) for name, target in signature.buffers_to_mutate.items()}
        strange = sorted(changed.keys() - known.keys())
        if strange:
            raise ValueError(
                f"the module changes its buffer {strange[0]!r} in training, which is not a statistic of batch "
                "normalization; make it a parameter, or compute it from the inputs"
            )
        if len(signature.user_outputs) != 1:
            raise ValueError(
                f"the module returns {len(signature.user_outputs)} arrays; wrap it in a module that returns the scores"
            )
        steps = tuple(_steps(program.graph_module))
        return cls(steps, own, Name(next(iter(signature.user_outputs))), changed)

    def run(
        self,
        params: Params,
        statistics: Mapping[str, Array] | None,
        inputs: Any,
        key: Key | None,
        kept: Bool[Array, " rows"] | None,
    ) -> tuple[Float[Array, "rows ..."], dict[str, Array]]:
        """The scores, and the new statistics."""
        given = jax.tree.leaves(inputs)
        batch = Batch(given[0].shape[0], kept, key)
        sources = {"params": params, "statistics": statistics, "input": given}
        values: dict[str, Any] = {}
        for name, (kind, which) in self.inputs.items():
            if kind == "constant":
                values[name] = which
            elif kind == "statistics" and statistics is None:
                values[name] = 0 if which.endswith("num_batches_tracked") else None
            else:
                values[name] = sources[kind][which]
        _run(self.steps, values, batch)
        new = {name: values[result] for name, result in self.moved.items()}
        if statistics is None:
            return values[self.output], {n: leaf for n, leaf in new.items() if not n.endswith("num_batches_tracked")}
        return values[self.output], {**statistics, **new}


def _keep_stops(program: Any) -> None:
    """Mark where derivatives end, at ``detach`` and ``no_grad``: PyTorch's decompositions would forget it."""
    import torch

    stop, graph = _stop(), program.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.target = stop
        elif "wrap_with_set_grad_enabled" in str(node.target) and node.args[0] is False:
            for user in list(node.users):
                with graph.inserting_after(user):
                    mark = graph.call_function(stop, (user,))
                mark.meta = dict(user.meta)
                user.replace_all_uses_with(mark, delete_user_cb=lambda other, mark=mark: other is not mark)
    program.graph_module.recompile()


@functools.cache
def _stop() -> Any:
    """An operation of PyTorch that does nothing and stays in a graph."""
    import torch

    @torch.library.custom_op("fedspam::stopped", mutates_args=())
    def stopped(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    stopped.register_fake(torch.empty_like)
    return torch.ops.fedspam.stopped.default


def _run(steps: Sequence[Step], values: dict[str, Any], batch: Batch) -> None:
    for step in steps:
        args = [_filled(arg, values) for arg in step.args]
        values[step.name] = step.operation(batch, *args) if step.with_batch else step.operation(*args)


def _filled(arg: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(arg, Name):
        return values[arg]
    return [_filled(part, values) for part in arg] if isinstance(arg, list | tuple) else arg


def _steps(graph_module: Any) -> list[Step]:
    """The operations of a graph, with all their arguments by position."""
    steps = []
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or not node.users:
            continue
        if node.target is operator.getitem:
            steps.append(Step(node.name, operator.getitem, tuple(map(_named, node.args))))
            continue
        function, with_batch = _function(node)
        steps.append(Step(node.name, function, _bound(node), with_batch))
    return steps


def _function(node: Any) -> tuple[Any, bool]:
    """The function of the table for an operation, and whether it takes the batch."""
    full = str(node.target).removeprefix("aten.")
    for name in (full, full.rsplit(".", 1)[0]):
        if name in WITH_BATCH:
            return WITH_BATCH[name], True
        if name in OPERATIONS:
            return OPERATIONS[name], False
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = (stack[-1][0] or "the module itself", str(stack[-1][1]).split(".")[-1]) if stack else ("?", "?")
    raise NotCompiledError(f"{node.target}, which {path} ({kind}) uses, has no counterpart in JAX here")


def _bound(node: Any) -> tuple[Any, ...]:
    """All arguments in the order of the operation, its defaults filled in, without those about memory."""
    found = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name in IGNORED:
            continue
        if position < len(node.args):
            found.append(_named(node.args[position]))
        else:
            found.append(_named(node.kwargs.get(argument.name, argument.default_value)))
    while found and found[-1] is None:  # so that functions have defaults of their own
        found.pop()
    return tuple(found)


def _named(arg: Any) -> Any:
    if isinstance(arg, list | tuple):
        return [_named(part) for part in arg]
    return Name(arg.name) if type(arg).__name__ == "Node" else arg


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a module: one array, several in a tuple, or a dict of them by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def _blank(leaf: Any) -> Any:
    import torch

    kind = str(leaf.dtype)
    whole = jnp.issubdtype(leaf.dtype, jnp.integer)  # PyTorch's indices have 64 bits
    return torch.zeros(leaf.shape, dtype=torch.int64 if whole else getattr(torch, kind))


def _array(leaf: Any) -> Array:
    values = leaf.detach().cpu()
    return jnp.asarray(
        values.float().numpy() if "bfloat16" in str(leaf.dtype) else values.numpy(), dtype_of(leaf.dtype)
    )


def batch_norms() -> tuple[type[Any], ...]:
    """The layers whose running statistics a policy keeps."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return (_BatchNorm,)


def statistics_of(module: Any) -> dict[str, Any]:
    """The buffers of batch and instance normalization, by name."""
    from torch.nn.modules.batchnorm import _NormBase

    return {
        f"{path}.{name}" if path else name: leaf
        for path, part in module.named_modules()
        if isinstance(part, _NormBase)
        for name, leaf in part.named_buffers(recurse=False)
    }


def check_momentum(module: Any) -> None:
    """Refuse running statistics that are means over all batches so far, of which no policy keeps the number."""
    for name, part in module.named_modules():
        if isinstance(part, batch_norms()) and part.track_running_stats and part.momentum is None:
            raise ValueError(
                f"{name or 'the module'} has momentum=None, a mean over all batches so far, whose number does not "
                "travel; give it a momentum, such as 0.1"
            )


def with_group_norm(module: Any) -> Any:
    """A copy with group normalization in place of batch normalization, and the affine parameters that it had.

    The number of groups is that of `fedspam.models.normalization.groups_of`.
    """
    import torch

    def converted(part: Any) -> Any:
        if isinstance(part, batch_norms()):
            new = torch.nn.GroupNorm(groups_of(part.num_features), part.num_features, part.eps, affine=part.affine)
            if part.affine:
                new.weight, new.bias = part.weight, part.bias
            return new
        for name, child in list(part.named_children()):
            setattr(part, name, converted(child))
        return part

    return converted(copy.deepcopy(module))
