"""How far modules that run compiled are from PyTorch; ``python benchmarks/networks.py parity`` prints a table."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedspam.models.torch_graph import TorchNetwork
from torch_zoo import built


def differences(name, train):
    """The largest relative differences of scores, gradients and statistics, dropout off, in JAX's precision."""
    module, inputs = built(name)
    if jax.config.jax_enable_x64:
        module, inputs = module.double(), inputs.double() if inputs.is_floating_point() else inputs
    theirs = copy.deepcopy(module).train(train)
    for part in theirs.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    scores = theirs(inputs)
    weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).reshape(scores.shape)
    (scores * weights).sum().backward()

    network = TorchNetwork(module)
    params, statistics, rows = network.init(None), network.statistics(), jnp.asarray(inputs.numpy())

    def loss(params):
        ours, new = network.apply(params, statistics, rows, train=train)
        return jnp.sum(ours * weights.numpy()), (ours, new)

    (_, (ours, new)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    buffers = dict(theirs.named_buffers())
    return {
        "scores": largest({"": (ours, scores.detach())}),
        "gradient": largest({n: (gradient[n], leaf.grad) for n, leaf in theirs.named_parameters()}),
        "statistics": largest({n: (leaf, buffers[n]) for n, leaf in new.items()}),
    }


def largest(pairs):
    """The largest difference, relative to the largest number of all where that is above 1."""
    if not pairs:
        return 0.0
    scale = max(1.0, *(float(theirs.abs().max()) for _, theirs in pairs.values()))
    return max(float(np.abs(np.asarray(ours) - theirs.numpy()).max()) for ours, theirs in pairs.values()) / scale
