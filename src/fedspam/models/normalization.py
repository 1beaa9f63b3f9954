"""Batch normalization as a plain function: masked rows, running statistics in and out."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

Statistics = Mapping[str, Float[Array, " channels"]]


def batch_norm(
    inputs: Float[Array, "rows ... channels"],
    scale: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    statistics: Statistics | None,
    *,
    kept: Bool[Array, " rows"] | None = None,
    train: bool = False,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    axis: int = -1,
    unbiased: bool = True,
) -> tuple[Array, Statistics]:
    r"""Normalize every channel, by its running statistics or by those of the real rows of this batch.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}\,s + b, \qquad
        \mu_{\text{running}} \leftarrow (1 - m)\,\mu_{\text{running}} + m\,\mu, \quad
        \sigma^2_{\text{running}} \leftarrow (1 - m)\,\sigma^2_{\text{running}} + m\,\tfrac{n}{n-1}\sigma^2

    A batch with one value per channel (one row of a dense layer) is normalized to the bias. Such a batch has no
    variance, so the running one stays as it is.

    Arguments:
        inputs: rows first.
        scale, bias: the affine parameters; None for 1 and 0.
        statistics: the running ``mean`` and ``var``; None in training for those of this batch alone, which
            `StatefulNetwork.apply` explains.
        kept: which rows are real; None for all.
        train: whether to use the statistics of the batch, and to move the running ones.
        momentum: m, the share of the batch in the new running statistics, as in PyTorch.
        epsilon: added to the variance.
        axis: of the channels.
        unbiased: whether the running variance has the factor n/(n-1), as in PyTorch; Flax has none.

    >>> rows, real = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])
    >>> outputs, new = batch_norm(rows, None, None, None, kept=real, train=True)
    >>> new["mean"].tolist(), new["var"].tolist()
    ([2.0], [1.0])
    """
    axis = axis % inputs.ndim
    wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
    others = tuple(each for each in range(inputs.ndim) if each != axis)
    along = lambda vector: vector.reshape([-1 if each == axis else 1 for each in range(inputs.ndim)])
    if not train:
        if statistics is None:
            raise ValueError("a prediction needs running statistics, and there are none; give them, or train=True")
        mean, var = statistics["mean"], statistics["var"]
        new = dict(statistics)
    else:
        places = inputs.size // (inputs.shape[0] * inputs.shape[axis])  # of a channel in one row
        rows = jnp.ones(inputs.shape[0], bool) if kept is None else kept
        real = rows.reshape(-1, *[1] * (inputs.ndim - 1))
        count = jnp.maximum(jnp.sum(rows), 1).astype(wide.dtype) * places
        mean = jnp.sum(jnp.where(real, wide, 0), others) / count
        var = jnp.sum(jnp.where(real, (wide - along(mean)) ** 2, 0), others) / count
        new = (
            {"mean": mean, "var": var}
            if statistics is None
            else _moved(statistics, mean, var, count, momentum, unbiased)
        )
    outputs = (wide - along(mean)) * lax.rsqrt(along(var) + epsilon)
    outputs = outputs if scale is None else outputs * along(scale)
    outputs = outputs if bias is None else outputs + along(bias)
    return outputs.astype(inputs.dtype), lax.stop_gradient(new)


def groups_of(channels: int) -> int:
    """How many groups take the place of batch normalization: 32, or the next smaller number that divides the channels,
    with at least two in a group. Hsieh, Phanishayee, Mutlu, Gibbons: The non-IID data quagmire of decentralized machine
    learning, 2020, arXiv:1910.00189.

    >>> [groups_of(channels) for channels in (1, 4, 6, 64, 96)]
    [1, 2, 3, 32, 32]
    """
    return next(n for n in range(max(1, min(32, channels // 2)), 0, -1) if channels % n == 0)


def group_norm(
    inputs: Float[Array, "rows ..."],
    scale: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    groups: int,
    *,
    epsilon: float = 1e-5,
    axis: int = -1,
) -> Array:
    """Normalize each group of channels of each row to mean 0 and variance 1, then scale and shift every channel."""
    wide = jnp.moveaxis(inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32)), axis, 1)
    split = wide.reshape(wide.shape[0], groups, -1)
    centered = split - jnp.mean(split, -1, keepdims=True)
    normal = (centered * lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + epsilon)).reshape(wide.shape)
    along = lambda vector: vector.reshape(-1, *[1] * (wide.ndim - 2))
    normal = normal if scale is None else normal * along(scale)
    normal = normal if bias is None else normal + along(bias)
    return jnp.moveaxis(normal, 1, axis).astype(inputs.dtype)


def _moved(old: Statistics, mean: Array, var: Array, count: Array, momentum: float, unbiased: bool) -> Statistics:
    """The running statistics after one batch."""
    toward = lambda old, new: (old + momentum * (new - old)).astype(old.dtype)
    spread = var * count / jnp.maximum(count - 1, 1) if unbiased else var
    return {"mean": toward(old["mean"], mean), "var": jnp.where(count > 1, toward(old["var"], spread), old["var"])}
