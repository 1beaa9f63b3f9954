"""PyTorch clients: a module, its loss and a DataLoader, as an app for PyTorch already has them.

Autograd computes losses and gradients, and everything else is the method's, as for clients in JAX. A minibatch is drawn
from the data set of the loader by the method's key, so that a method may ask for two gradients on the same rows, with
the same augmentation and the same dropout.
"""

import copy
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from jaxtyping import Array, Key

from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import HostedOracle, joined, parted
from fedspam.clients.ragged import UNMOVED, UNWRAPPED
from fedspam.flower.client.app import client_app, partition_of
from fedspam.flower.client.buffers import check_buffers
from fedspam.models.policies import Normalization, normalization_of, of_moments
from fedspam.models.torch_graph import batch_norms, check_momentum, statistics_of, with_group_norm

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

Net = Callable[[], "torch.nn.Module"]
Load = Callable[[int, int], "DataLoader[Any]"]
Optimizer = Callable[[Any, float], "torch.optim.Optimizer"]
Words = tuple[int, ...]  # the random words of a key, and the number of a minibatch in a pass over the rows


def torch_app(
    net: Net,
    loss: Callable[..., Any],
    loader: Load,
    method: Any,
    *,
    optimizer: Optimizer | None = None,
    normalization: str | Normalization | None = None,
    test: Callable[..., Mapping[str, float]] | None = None,
    **options: Any,
) -> ClientApp:
    """The ClientApp of PyTorch clients, for every method. The server starts from ``ArrayRecord(net().state_dict())``.

    Arguments:
        net: makes the model, such as its class.
        loss, loader, optimizer, normalization: as for `torch_clients`.
        method: the method, the same as on the server; or context -> method.
        test: (model, partition id, number of partitions) -> metrics for Flower's ``evaluate``, beside the loss.
        options: ``mods``, ``secure``, ``privacy`` and ``codecs`` of `client_app`.
    """

    def metrics(oracle: Any, params: Params) -> dict[str, float]:
        if test is None:
            return {}
        module, _ = oracle.hosted.answer.loaded(params)
        return dict(test(module.eval(), int(oracle.hosted.id), oracle.hosted.answer.partitions))

    policy = normalization_of(normalization)
    params = lambda context: _params(_made(net, policy), policy)
    oracle = torch_clients(net, loss, loader, optimizer=optimizer, normalization=policy)
    return client_app(oracle, method, params, metrics=metrics, **options)


def torch_clients(
    net: Net,
    loss: Callable[..., Any],
    loader: Load,
    *,
    optimizer: Optimizer | None = None,
    normalization: str | Normalization | None = None,
) -> Callable[[Context], "LoaderOracle"]:
    """The oracles of PyTorch clients, for `client_app`.

    Arguments:
        net: makes the model, once per process.
        loss: (model, batch) -> the mean loss over the rows of a batch, which is what the ``collate_fn`` of the loader
            makes; its tensors are on the device of the model, and have its precision.
        loader: (partition id, number of partitions) -> the DataLoader of that client, made once per process. The data
            set is its own, with its augmentation, and so is the batch size; the method's key shuffles, not the loader.
        optimizer: (parameters, rate) -> the optimizer of local steps, such as
            ``lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9)``. Number and rate of the steps,
            and the corrections of each step, are the method's. Solvers of a prox make steps of their own.
        normalization: what happens to the running statistics of batch normalization, as in `fedspam.models.from_torch`.
            None refuses a module that keeps some.
    """

    policy = normalization_of(normalization)
    _made(net, policy)  # a module that would lose arrays is refused now

    def oracle(context: Context) -> LoaderOracle:
        client, partitions = partition_of(context), int(context.node_config.get("num-partitions", 0))
        answer = TorchAnswer(net, loss, loader, partitions, optimizer, policy)
        rows = answer.rows(client)
        weight = jnp.asarray(rows.count, jnp.result_type(float))
        hosted = HostedOracle(jnp.uint32(client), weight, answer=answer)
        return LoaderOracle(hosted, -(-rows.count // rows.batch), has_optimizer=optimizer is not None)

    return oracle


def torch_params(module: Any, normalization: str | Normalization | None = None) -> Params:
    """The trained parameters of a module by name, for `client_app` and `to_arrays`.

    Arguments:
        module: it is left as it is.
        normalization: as for `torch_clients`; where running statistics travel, they are beside the parameters.
    """
    policy = normalization_of(normalization)
    return _params(_prepared(copy.deepcopy(module), policy), policy)


def _params(module: Any, policy: Normalization | None) -> Params:
    values = lambda tensors: {name: _array(tensor) for name, tensor in tensors.items()}
    own = values(_trained(module))
    return joined(own, values(_statistics(module))) if policy is not None and policy.travels else own


@struct
class LoaderOracle:
    """A client whose rows a DataLoader holds."""

    hosted: HostedOracle  # whose answer is a TorchAnswer
    minibatches: int = static()
    has_optimizer: bool = static(default=False)

    @property
    def weight(self) -> Scalar:
        return self.hosted.weight

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        self._check(params)
        return self.hosted(params, key)

    def whole(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        return self(params)

    def moved(self, params: Params, key: Key[Array, ""], number: Any = None) -> tuple[Scalar, Params]:
        """The loss of a minibatch, and the parameters with the running statistics after it."""
        if self._policy is None or not self._policy.moves:
            raise ValueError(UNWRAPPED)
        words = _words(key) if number is None else jnp.append(_words(key), jnp.uint32(number))
        dtype = jnp.result_type(*jax.tree.leaves(parted(params)[0]))

        def both(own: Params, statistics: Params) -> Any:
            like = (jax.ShapeDtypeStruct((), dtype), _shapes(own), _shapes(statistics))
            return jax.pure_callback(self._answer.moved, like, self.hosted.id, own, statistics, words)

        @jax.custom_vjp
        def loss(own: Params, statistics: Params) -> tuple[Scalar, Params]:
            value, _, new = both(own, statistics)
            return value, new

        def forward(own: Params, statistics: Params) -> tuple[tuple[Scalar, Params], tuple[Params, Params]]:
            value, gradient, new = both(own, statistics)
            return (value, new), (gradient, jax.tree.map(jnp.zeros_like, new))

        def backward(kept: tuple[Params, Params], cotangent: tuple[Scalar, Params]) -> tuple[Params, Params]:
            return jax.tree.map(lambda leaf: cotangent[0] * leaf, kept[0]), kept[1]

        loss.defvjp(forward, backward)
        own, statistics = parted(params)
        value, new = loss(own, statistics)
        return value, joined(own, new)

    def moments(self, params: Params, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Scalar, Params]:
        """The number of rows, and the sums of means and of squares over all of them."""
        kind = jnp.result_type(jnp.float32, *jax.tree.leaves(params))
        like = {name: jax.ShapeDtypeStruct(shape, kind) for name, shape in shapes.items()}
        return self.weight, jax.pure_callback(self._answer.moments, like, self.hosted.id, params)

    def own(self, params: Params) -> Params:
        """The parameters, under 'local' with the statistics of the client's rows."""
        if self._policy is None or self._policy.policy != "local":
            return params
        shapes = {name: leaf.shape for name, leaf in _statistics(_made(self._answer.net, self._policy)).items()}
        return joined(params, of_moments(*self.moments(params, shapes)))

    def predicted(self, params: Params) -> Scalar:
        """The mean loss of a prediction of all rows."""
        like = jax.ShapeDtypeStruct((), jnp.result_type(*jax.tree.leaves(params)))
        return jax.pure_callback(self._answer.predicted, like, self.hosted.id, params)

    @property
    def _answer(self) -> "TorchAnswer":
        answer: Any = self.hosted.answer
        return answer

    @property
    def _policy(self) -> Normalization | None:
        return self._answer.normalization

    def _check(self, params: Params) -> None:
        if parted(params)[1] is not None:
            raise ValueError(UNMOVED if self._policy is not None and self._policy.moves else UNWRAPPED)

    def minibatch(self, params: Params, key: Key[Array, ""], number: Any) -> Scalar:
        return self.hosted.asked(params, jnp.append(_words(key), jnp.uint32(number)))

    def descended(
        self, x: Params, key: Key[Array, ""], count: Any, rate: Any, *, shift: Any, pull: Any, anchor: Params,
        in_passes: bool,
    ) -> Params:  # fmt: skip
        if parted(x)[1] is not None and not (self._policy is not None and self._policy.moves):
            raise ValueError(UNWRAPPED)
        descend = functools.partial(self._answer.descended, in_passes=in_passes)
        words, near = _words(key), None if pull is None else (pull, anchor)
        return jax.pure_callback(descend, _shapes(x), self.hosted.id, x, words, count, rate, shift, near)


@dataclass(frozen=True)
class TorchAnswer:
    """(client, params, words) -> (loss, gradient) with PyTorch; without words, of all rows. Answers with equal settings
    are equal, so that one compilation serves all clients of a process."""

    net: Net
    loss: Callable[..., Any]
    loader: Load
    partitions: int = 0
    optimizer: Optimizer | None = None
    normalization: Normalization | None = None

    def loaded(self, params: Params) -> tuple[Any, dict[str, Any]]:
        """The module with these parameters, in their precision, and its own tensors by name."""
        return _loaded(_made(self.net, self.normalization), params)

    def rows(self, client: int) -> "LoaderRows":
        return _rows(self.loader, client, self.partitions)

    def __call__(self, client: int, params: Mapping[str, Any], words: Words | None) -> tuple[float, dict[str, Any]]:
        module, leaves = self.loaded(params)
        rows, total = self.rows(client), 0.0
        module.train()
        chosen = rows.all() if words is None else [rows.drawn(words[:2], *words[2:])]
        for number, indices in enumerate(chosen):
            share = len(indices) / sum(map(len, chosen))
            total += share * self._backward(module, rows, indices, (number,) if words is None else words, share)
        return total, {name: _gradient(leaf) for name, leaf in leaves.items()}

    def moved(self, client: Any, own: Params, statistics: Params, words: Any) -> tuple[Any, Params, Params]:
        """The loss of a minibatch, its gradient, and the running statistics after it."""
        value, gradient = self(int(client), joined(own, statistics), tuple(map(int, words)))
        new = _as(_statistics(_made(self.net, self.normalization)), statistics)
        fitted = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), gradient, own)
        return np.asarray(value, jnp.result_type(*jax.tree.leaves(own))), fitted, new

    def moments(self, client: Any, params: Params) -> dict[str, np.ndarray]:
        """The sums over all rows, as one batch, of the means and of the squares that each normalization sees."""
        import torch

        module, _ = self.loaded(params)
        module.eval()
        rows, found, kind = self.rows(int(client)), {}, jnp.result_type(jnp.float32, *jax.tree.leaves(params))

        def note(part: Any, given: tuple[Any, ...]) -> None:
            inputs = given[0]
            axes = [axis for axis in range(inputs.ndim) if axis != 1]
            found[part] = (inputs.mean(axes), (inputs**2).mean(axes))

        tracking = set(_tracking(module))
        norms = {name: part for name, part in module.named_modules() if part in tracking}
        for part in norms.values():
            part.train()
            # those of a layer that sees no batch stay as they are
            found[part] = (part.running_mean.clone(), part.running_var + part.running_mean**2)
        handles = [part.register_forward_pre_hook(note) for part in norms.values()]
        try:
            with torch.no_grad():
                self._loss(module, rows, np.arange(rows.count), (0,))
        finally:
            for handle in handles:
                handle.remove()
        sums = {}
        for name, part in norms.items():
            for statistic, leaf in zip(("running_mean", "running_var"), found[part], strict=True):
                sums[f"{name}.{statistic}" if name else statistic] = np.asarray(rows.count * _array(leaf), kind)
        return sums

    def predicted(self, client: Any, params: Params) -> np.ndarray:
        """The mean loss of a prediction of all rows."""
        import torch

        module, _ = self.loaded(params)
        rows, total = self.rows(int(client)), 0.0
        module.eval()
        with torch.no_grad():
            for number, indices in enumerate(rows.all()):
                total += len(indices) * self._loss(module, rows, indices, (number,)).item()
        return np.asarray(total / rows.count, jnp.result_type(*jax.tree.leaves(params)))

    def descended(
        self, client: Any, x: Mapping[str, Any], key: Any, count: Any, rate: Any, shift: Any, near: Any,
        *, in_passes: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """The parameters after local steps by the client's own optimizer."""
        import torch

        assert self.optimizer is not None
        module, leaves = self.loaded(x)
        rows, steps = self.rows(int(client)), self.optimizer(list(leaves.values()), float(rate))
        tensors = lambda tree: {name: _tensor(part, leaves[name]) for name, part in parted(tree)[0].items()}
        shifts, words = None if shift is None else tensors(shift), tuple(map(int, key))
        pull, anchor = (0.0, {}) if near is None else (float(near[0]), tensors(near[1]))
        module.train()
        for number in range(int(count)):
            steps.zero_grad()
            turn, *place = divmod(number, len(rows.all())) if in_passes else (number,)
            indices = rows.drawn((*words, turn), *place)
            self._backward(module, rows, indices, (*words, number), 1.0)
            with torch.no_grad():
                for name, leaf in leaves.items():
                    if pull:
                        leaf.grad = (0 if leaf.grad is None else leaf.grad) + pull * (leaf - anchor[name])
            steps.step()
            with torch.no_grad():
                for name, leaf in leaves.items():
                    if shifts is not None:
                        leaf -= float(rate) * shifts[name]
        like, statistics = parted(x)
        own = _as(leaves, like)
        return own if statistics is None else joined(own, _as(_statistics(module), statistics))

    def _backward(self, module: Any, rows: "LoaderRows", indices: Any, words: Words, share: float) -> float:
        """The loss of these rows; the gradient of its share is added to that of the parameters."""
        value = self._loss(module, rows, indices, words)
        (share * value).backward()
        return value.item()

    def _loss(self, module: Any, rows: "LoaderRows", indices: Any, words: Words) -> Any:
        like = next(module.parameters())
        normed = self.normalization is not None and any(isinstance(part, batch_norms()) for part in module.modules())
        alone = len(indices) == 1 and normed
        with _drawing(words), _doubled(module) if alone else nullcontext():
            return self.loss(module, _moved(rows.batch_of(indices, 2 if alone else 1), like))


@dataclass(frozen=True)
class LoaderRows:
    """The rows of one client, in minibatches."""

    loader: Any
    count: int
    batch: int

    @classmethod
    def of(cls, loader: Any, client: int) -> "LoaderRows":
        """The rows of this loader, which must have a number of them and a batch size."""
        if loader.batch_size is None or not hasattr(loader.dataset, "__len__"):
            raise ValueError(
                f"the DataLoader of client {client} must have a batch_size and a data set with a length, because the "
                "method draws the rows; make it with DataLoader(dataset, batch_size=32)"
            )
        count = len(loader.dataset)
        if count == 0:
            raise ValueError(f"the data set of client {client} has no rows; a client needs at least one")
        return cls(loader, count, min(loader.batch_size, count))

    def all(self) -> list[Any]:
        """All rows, in their order."""
        return np.split(np.arange(self.count), range(self.batch, self.count, self.batch))

    def drawn(self, words: Words, number: int | None = None) -> Any:
        """The rows of a minibatch: of one by itself, or of that number in a pass over all rows in random order."""
        shuffled = np.random.default_rng(words)
        if number is not None:
            return shuffled.permutation(self.count)[number * self.batch : (number + 1) * self.batch]
        if self.batch == self.count:
            return np.arange(self.count)
        return shuffled.choice(self.count, self.batch, replace=False)

    def batch_of(self, indices: Any, copies: int = 1) -> Any:
        """The batch of these rows, each read once, so that copies have the same augmentation."""
        return self.loader.collate_fn([self.loader.dataset[int(index)] for index in indices] * copies)


@functools.cache
def _made(net: Net, policy: Normalization | None = None) -> Any:
    """The one module of this process, on its device."""
    import torch

    return _prepared(net(), policy).to("cuda" if torch.cuda.is_available() else "cpu")


def _prepared(module: Any, policy: Normalization | None) -> Any:
    """The module as the policy trains it, if no array of it would be lost."""
    if policy is not None and policy.policy == "group":
        module = with_group_norm(module)
    check_buffers(module, kept=() if policy is None else batch_norms())
    check_momentum(module)
    return module


def _statistics(module: Any) -> dict[str, Any]:
    """The running statistics that are averages; counters are not."""
    return {name: leaf for name, leaf in statistics_of(module).items() if leaf.is_floating_point()}


def _tracking(module: Any) -> list[Any]:
    """The layers that keep running statistics."""
    return [part for part in module.modules() if isinstance(part, batch_norms()) and part.track_running_stats]


@contextmanager
def _doubled(module: Any) -> Iterator[None]:
    """Inside, a row and its copy give the running statistics of the row alone, which PyTorch refuses where it has one
    value per channel: such a row has no variance, so the running one stays as it is."""
    import torch

    before: dict[Any, Any] = {}

    def note(part: Any, given: tuple[Any, ...]) -> None:
        before[part] = (part.running_var.clone(), given[0].numel() // part.num_features // 2)

    def mend(part: Any, given: Any, output: Any) -> Any:
        old, count = before.pop(part)
        if not part.training:
            return None
        with torch.no_grad():
            # PyTorch has divided the squares by 2 count - 1, not by count - 1
            step = part.running_var - (1 - part.momentum) * old
            alone = old if count == 1 else (1 - part.momentum) * old + step * (2 * count - 1) / (2 * (count - 1))
            part.running_var = alone  # another array, because the backward pass needs the old one
        # the rounding of x minus its mean would be divided by the root of epsilon
        return None if count > 1 else 0 * output + (0 if part.bias is None else part.bias)

    norms = _tracking(module)
    handles = [part.register_forward_pre_hook(note) for part in norms]
    handles += [part.register_forward_hook(mend) for part in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@functools.cache
def _rows(loader: Load, client: int, partitions: int) -> LoaderRows:
    return LoaderRows.of(loader(client, partitions), client)


def _trained(module: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}


def _loaded(module: Any, params: Params) -> tuple[Any, dict[str, Any]]:
    import torch

    leaves = _trained(module)
    own, statistics = parted(params)
    buffers = statistics_of(module)
    with torch.no_grad():
        for name, values in (statistics or {}).items():
            buffers[name].copy_(torch.tensor(np.asarray(values)))
        for name, leaf in leaves.items():
            given = torch.tensor(np.asarray(own[name]))
            leaf.data = given.to(leaf.device)
            leaf.grad = None
    return module, leaves


def _array(tensor: Any) -> np.ndarray:
    return np.array(tensor.detach().cpu().numpy())


def _as(tensors: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(_array(leaf), like[name].dtype) for name, leaf in tensors.items()}


def _shapes(tree: Params) -> Params:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _words(key: Key[Array, ""]) -> Array:
    return jax.random.key_data(key).astype(jnp.uint32)[:2]


def _tensor(array: Any, like: Any) -> Any:
    import torch

    return torch.tensor(np.asarray(array)).to(like)


def _gradient(leaf: Any) -> np.ndarray:
    return np.zeros(tuple(leaf.shape)) if leaf.grad is None else leaf.grad.cpu().numpy()


def _moved(batch: Any, like: Any) -> Any:
    """The tensors of a batch on the device of these parameters, floats in their precision."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(like) if batch.is_floating_point() else batch.to(like.device)
    if isinstance(batch, Mapping):
        return {name: _moved(part, like) for name, part in batch.items()}
    return [_moved(part, like) for part in batch] if isinstance(batch, list | tuple) else batch


@contextmanager
def _drawing(words: Words) -> Iterator[None]:
    """Inside, PyTorch's, NumPy's and Python's global generators draw from these words: augmentation and dropout."""
    import torch

    own, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 what a data set may use
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numpys)  # noqa: NPY002
