"""PyTorch clients: a module, its loss and a DataLoader, as an app for PyTorch already has them.

Autograd computes losses and gradients, and everything else is the method's, as for clients in JAX. A minibatch is drawn
from the data set of the loader by the method's key, so that a method may ask for two gradients on the same rows, with
the same augmentation and the same dropout.
"""

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from jaxtyping import Array, Key

from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import HostedOracle
from fedspam.flower.client.app import client_app, partition_of
from fedspam.flower.client.buffers import check_buffers

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
    test: Callable[..., Mapping[str, float]] | None = None,
    **options: Any,
) -> ClientApp:
    """The ClientApp of PyTorch clients, for every method. The server starts from ``ArrayRecord(net().state_dict())``.

    Arguments:
        net: makes the model, such as its class. It keeps no running statistics: GroupNorm, or batch norm with
            ``track_running_stats=False``.
        loss, loader, optimizer: as for `torch_clients`.
        method: the method, the same as on the server; or context -> method.
        test: (model, partition id, number of partitions) -> metrics for Flower's ``evaluate``, beside the loss.
        options: ``mods``, ``secure``, ``privacy`` and ``codecs`` of `client_app`.
    """

    def metrics(oracle: Any, params: Params) -> dict[str, float]:
        if test is None:
            return {}
        module, _ = _loaded(net, params)
        return dict(test(module.eval(), int(oracle.hosted.id), oracle.hosted.answer.partitions))

    params = lambda context: torch_params(_made(net))
    oracle = torch_clients(net, loss, loader, optimizer=optimizer)
    return client_app(oracle, method, params, metrics=metrics, **options)


def torch_clients(
    net: Net, loss: Callable[..., Any], loader: Load, *, optimizer: Optimizer | None = None
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
    """

    _made(net)  # a module that would lose arrays is refused now

    def oracle(context: Context) -> LoaderOracle:
        client, partitions = partition_of(context), int(context.node_config.get("num-partitions", 0))
        answer = TorchAnswer(net, loss, loader, partitions, optimizer)
        rows = answer.rows(client)
        weight = jnp.asarray(rows.count, jnp.result_type(float))
        hosted = HostedOracle(jnp.uint32(client), weight, answer=answer)
        return LoaderOracle(hosted, -(-rows.count // rows.batch), has_optimizer=optimizer is not None)

    return oracle


def torch_params(module: Any) -> dict[str, Any]:
    """The trained parameters of a module by name, for `client_app` and `to_arrays`. Modules with running statistics, as
    batch norm keeps them, are refused."""
    check_buffers(module)
    return {name: tensor.detach().cpu().numpy() for name, tensor in _trained(module).items()}


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
        return self.hosted(params, key)

    def minibatch(self, params: Params, key: Key[Array, ""], number: Any) -> Scalar:
        return self.hosted.asked(params, jnp.append(_words(key), jnp.uint32(number)))

    def descended(
        self, x: Params, key: Key[Array, ""], count: Any, rate: Any, *, shift: Any, pull: Any, anchor: Params,
        in_passes: bool,
    ) -> Params:  # fmt: skip
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)
        answer: Any = self.hosted.answer
        descend = functools.partial(answer.descended, in_passes=in_passes)
        words, near = _words(key), None if pull is None else (pull, anchor)
        return jax.pure_callback(descend, shapes, self.hosted.id, x, words, count, rate, shift, near)


@dataclass(frozen=True)
class TorchAnswer:
    """(client, params, words) -> (loss, gradient) with PyTorch; without words, of all rows. Answers with equal settings
    are equal, so that one compilation serves all clients of a process."""

    net: Net
    loss: Callable[..., Any]
    loader: Load
    partitions: int = 0
    optimizer: Optimizer | None = None

    def rows(self, client: int) -> "LoaderRows":
        return _rows(self.loader, client, self.partitions)

    def __call__(self, client: int, params: Mapping[str, Any], words: Words | None) -> tuple[float, dict[str, Any]]:
        module, leaves = _loaded(self.net, params)
        rows, total = self.rows(client), 0.0
        module.train()
        chosen = rows.all() if words is None else [rows.drawn(words[:2], *words[2:])]
        for number, indices in enumerate(chosen):
            share = len(indices) / sum(map(len, chosen))
            total += share * self._backward(module, rows, indices, (number,) if words is None else words, share)
        return total, {name: _gradient(leaf) for name, leaf in leaves.items()}

    def descended(
        self, client: Any, x: Mapping[str, Any], key: Any, count: Any, rate: Any, shift: Any, near: Any,
        *, in_passes: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """The parameters after local steps by the client's own optimizer."""
        import torch

        assert self.optimizer is not None
        module, leaves = _loaded(self.net, x)
        rows, steps = self.rows(int(client)), self.optimizer(list(leaves.values()), float(rate))
        tensors = lambda tree: {name: _tensor(part, leaves[name]) for name, part in tree.items()}
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
        return {name: np.asarray(leaf.detach().cpu().numpy(), x[name].dtype) for name, leaf in leaves.items()}

    def _backward(self, module: Any, rows: "LoaderRows", indices: Any, words: Words, share: float) -> float:
        """The loss of these rows; the gradient of its share is added to that of the parameters."""
        like = next(module.parameters())
        with _drawing(words):
            value = self.loss(module, _moved(rows.batch_of(indices), like))
            (share * value).backward()
        return value.item()


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

    def batch_of(self, indices: Any) -> Any:
        return self.loader.collate_fn([self.loader.dataset[int(index)] for index in indices])


@functools.cache
def _made(net: Net) -> Any:
    """The one module of this process, on its device."""
    import torch

    module = net().to("cuda" if torch.cuda.is_available() else "cpu")
    check_buffers(module)
    return module


@functools.cache
def _rows(loader: Load, client: int, partitions: int) -> LoaderRows:
    return LoaderRows.of(loader(client, partitions), client)


def _trained(module: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}


def _loaded(net: Net, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The module with these parameters, in their precision, and its own tensors by name."""
    import torch

    module = _made(net)
    leaves = _trained(module)
    with torch.no_grad():
        for name, leaf in leaves.items():
            given = torch.tensor(np.asarray(params[name]))
            leaf.data = given.to(leaf.device)
            leaf.grad = None
    return module, leaves


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
