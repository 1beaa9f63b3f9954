"""Trained parameters in the conventions of other frameworks."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedspam.models.adapters import Adapted
from fedspam.models.networks import Convolutional, Linear, Perceptron
from fedspam.models.torch_graph import TorchNetwork
from fedspam.models.trained import TrainedModel

Arrays = dict[str, np.ndarray]


def torch_state(trained: TrainedModel) -> tuple[Arrays, str]:
    """The state dict of the same network in PyTorch, and the code of the module that it belongs to.

    PyTorch keeps the weights of a layer as outputs x inputs, and images with their channels first. Names and values of
    a model that came from PyTorch stay as they are.

    >>> import tempfile
    >>> from fedspam.models import load, mlp, save
    >>> model = mlp(4, 3, hidden=(8,))
    >>> state, code = torch_state(load(save(tempfile.mkdtemp(), model.init(0), model=model)))
    >>> {name: array.shape for name, array in state.items()}
    {'0.weight': (8, 4), '0.bias': (8,), '2.weight': (3, 8), '2.bias': (3,)}
    >>> code
    'torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))'
    """
    model = trained.model
    arrays = {name: np.array(array) for name, array in trained.arrays.items()}
    network = None if model is None else model.network
    if network is None or isinstance(network, Adapted | TorchNetwork):
        # running statistics are in the file beside the parameters
        bare = {name.removeprefix("params.").removeprefix("statistics."): array for name, array in arrays.items()}
        beside = all(name.startswith(("params.", "statistics.")) for name in arrays)
        return (
            bare if beside else arrays
        ), "the module that was trained; load_state_dict(state, strict=False) if it has buffers"
    if isinstance(network, Linear):
        bias = "" if network.bias else ", bias=False"
        state = {"weight": arrays["kernel"].T} | ({"bias": arrays["bias"]} if network.bias else {})
        return _contiguous(state), f"torch.nn.Linear({network.inputs}, {network.classes}{bias})"
    if isinstance(network, Perceptron):
        sizes = (network.inputs, *network.hidden, network.classes)
        return _stack(_dense(arrays, sizes), [])
    if isinstance(network, Convolutional):
        return _convolutional(network, arrays)
    raise ValueError(f"{type(network).__name__} has no counterpart in PyTorch with the same layers; export safetensors")


def flax_tree(trained: TrainedModel) -> Mapping[str, Any]:
    """The parameters as nested dicts with the names of Flax: kernel and bias per layer."""
    if not isinstance(trained.params, Mapping):
        raise ValueError("the parameters are no dicts of layers, as Flax has them; export safetensors")
    return trained.params


def _dense(arrays: Arrays, sizes: tuple[int, ...]) -> list[tuple[str, Arrays]]:
    """The dense layers: the code and the arrays of each, with ReLU between them."""
    layers: list[tuple[str, Arrays]] = []
    for layer in range(len(sizes) - 1):
        own = {"weight": arrays[f"dense{layer}.kernel"].T, "bias": arrays[f"dense{layer}.bias"]}
        layers += [(f"Linear({sizes[layer]}, {sizes[layer + 1]})", own), ("ReLU()", {})]
    return layers[:-1]


def _convolutional(network: Convolutional, arrays: Arrays) -> tuple[Arrays, str]:
    axes = len(network.window)
    channels = (network.shape[-1], *network.features)
    window = repr(network.window if axes > 1 else network.window[0])
    padding = ", padding='same'" if network.padding == "SAME" else ""
    layers: list[tuple[str, Arrays]] = []
    for layer, pool in enumerate(network.pools):
        kernel = arrays[f"conv{layer}.kernel"]  # axes, inputs, outputs
        weight = np.moveaxis(kernel, (-1, -2), (0, 1))
        code = f"Conv{axes}d({channels[layer]}, {channels[layer + 1]}, {window}{padding})"
        layers.append((code, {"weight": weight, "bias": arrays[f"conv{layer}.bias"]}))
        layers += [(f"MaxPool{axes}d({pool})", {})] if pool > 1 else []
        layers.append(("ReLU()", {}))
    inner = network.inner
    flat = math.prod(inner) * channels[-1]
    # PyTorch flattens channels first
    first = arrays["dense0.kernel"].reshape(*inner, channels[-1], -1)
    arrays = arrays | {"dense0.kernel": np.moveaxis(first, axes, 0).reshape(flat, -1)}
    return _stack(_dense(arrays, (flat, *network.hidden, network.classes)), [*layers, ("Flatten()", {})])


def _stack(layers: list[tuple[str, Arrays]], before: list[tuple[str, Arrays]]) -> tuple[Arrays, str]:
    """The layers one after another, as torch.nn.Sequential numbers them."""
    every = [*before, *layers]
    state = {f"{number}.{name}": array for number, (_, own) in enumerate(every) for name, array in own.items()}
    return _contiguous(state), f"torch.nn.Sequential({', '.join(f'torch.nn.{code}' for code, _ in every)})"


def _contiguous(state: Arrays) -> Arrays:
    return {name: np.ascontiguousarray(array) for name, array in state.items()}
