r"""Rules that combine the replies of a cohort: the mean, and rules that a few wrong replies cannot drag away.

`fedspam.simulate` uses the rule it is given for every exchange with more than one client. A rule has to see all replies
at once: memory grows by cohort x reply, and the shortcut of the mean client is not taken. A client that is asked
alone, such as the prox client of SPAM-PP, cannot be outvoted: against adversaries take a method that averages,
such as `spam_ppa`, or one whose mover is a client that you trust, such as `proxy_prox`.

In the formulas :math:`v_1, \dots, v_n` are the replies that count. The rules that speak of norms take all numbers of a
reply as one vector. Certificates and other reports are averaged. Sums and norms of half-precision replies are computed
in float32, since those of float16 overflow at 65504, and the result has the dtype of the replies.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedspam._internal import checks, trees
from fedspam._internal.trees import count, number, positive, struct

Replies = PyTree[Float[Array, "cohort ..."]]
Counts = Bool[Array, " cohort"]


class Rule(Protocol):
    """Combines the stacked replies of a cohort, of which some are accepted, into one reply."""

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree: ...


@struct
class Mean:
    r"""The mean, :math:`\frac1n\sum_i v_i`; one wrong reply moves it anywhere.

    >>> import jax.numpy as jnp
    >>> float(Mean()(jnp.array([1.0, 2.0, 3.0, 1e6]), jnp.array([True, True, True, False])))
    2.0
    """

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        return _mean(replies, accepted)


@struct
class Clipped:
    r"""The mean of clipped replies, :math:`\frac1n\sum_i v_i \min(1, c/\|v_i\|)`.

    For replies that are near zero when all is well, such as gradients and updates; points would be drawn to the origin.

    Arguments:
        norm: c, the longest that a reply may be.
    """

    norm: float = positive()

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        clip = lambda v: _mean(v * _shrink(_norms(v), self.norm)[:, None], accepted)
        return _on_vectors(clip, replies, accepted)


@struct
class TrimmedMean:
    r"""The mean of each number, without the :math:`\lfloor\beta n\rfloor` largest and as many smallest.

    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning, 2018, arXiv:1803.01498.

    Arguments:
        share: :math:`\beta`, at least the share of wrong replies, below 1/2. ``f / n`` trims exactly f of n replies on
            each side.

    >>> import jax.numpy as jnp
    >>> float(TrimmedMean(0.25)(jnp.array([1.0, 2.0, 3.0, 1e6]), jnp.ones(4, bool)))
    2.5
    """

    share: float = number(0, 0.5)

    def __post_init__(self) -> None:
        if checks.is_number(self.share) and self.share == 0.5:
            raise ValueError("share = 0.5 would trim all replies; use Median")

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        count = jnp.sum(accepted)
        # f / n times n may be slightly below f in floats, and one wrong reply would slip through
        cut = jnp.floor(self.share * count + 1e-3).astype(count.dtype)
        cut = jnp.minimum(cut, jnp.maximum(count - 1, 0) // 2)  # one or two replies always stay
        rank = jnp.arange(accepted.shape[0])
        kept = (rank >= cut) & (rank < count - cut)
        return _on_numbers(lambda v: _mean(_sorted(v, accepted), kept), replies, accepted)


@struct
class Median:
    """The median of each number.

    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning, 2018, arXiv:1803.01498.

    >>> import jax.numpy as jnp
    >>> float(Median()(jnp.array([1.0, 2.0, 3.0, 1e6]), jnp.ones(4, bool)))
    2.5
    """

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        return _on_numbers(lambda v: _median(v, accepted), replies, accepted)


@struct
class GeometricMedian:
    r"""The point with the least sum of distances, :math:`\arg\min_z \sum_i \|v_i - z\|`, by Weiszfeld's steps.

    .. math:: z \leftarrow \frac{\sum_i w_i v_i}{\sum_i w_i}, \qquad w_i = \frac{1}{\max(\nu, \|v_i - z\|)}

    starts at the coordinate-wise median, so a few steps suffice.

    Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning, 2022, arXiv:1912.13445, Algorithm 2.

    Arguments:
        iterations: steps.
        smoothing: :math:`\nu`.
    """

    iterations: int = count(default=8)
    smoothing: float = positive(default=1e-6)

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        def settle(v: Float[Array, "cohort d"]) -> Float[Array, " d"]:
            def step(_: Any, z: Float[Array, " d"]) -> Float[Array, " d"]:
                weight = jnp.where(accepted, 1 / jnp.maximum(_norms(v - z), jnp.asarray(self.smoothing, v.dtype)), 0)
                return weight @ v / jnp.maximum(jnp.sum(weight), jnp.finfo(v.dtype).tiny)

            return jax.lax.fori_loop(0, self.iterations, step, _median(v, accepted))

        return _on_vectors(settle, replies, accepted)


@struct
class CenteredClipping:
    r"""Clipping around a center instead of zero.

    .. math:: z \leftarrow z + \frac1n\sum_i (v_i - z)\min(1, \tau/\|v_i - z\|)

    The paper starts at the aggregate of the previous round. A rule here knows only its own exchange and starts at the
    median of each number. Replies that oppose the honest mean (sign flips, inner-product attacks) still move it: f
    wrong replies of n by up to :math:`\tau f/(n - f)`, however near to each other the others are. Prefer `TrimmedMean`
    or `Median` against those, unless the radius shrinks with the distance between honest replies.

    Karimireddy, He, Jaggi: Learning from history for Byzantine robust optimization, 2021, arXiv:2012.10333, eq. (CC).

    Arguments:
        radius: :math:`\tau`, about the distance between honest replies.
        iterations: steps.

    >>> import jax.numpy as jnp
    >>> replies, all_ = jnp.array([1.0] * 11 + [-1.0] * 4), jnp.ones(15, bool)  # four signs are flipped
    >>> round(float(CenteredClipping(1.0)(replies, all_)), 3), float(TrimmedMean(0.4)(replies, all_))
    (0.643, 1.0)
    """

    radius: float = positive()
    iterations: int = count(default=3)

    def __call__(self, replies: Replies, accepted: Counts) -> PyTree:
        def settle(v: Float[Array, "cohort d"]) -> Float[Array, " d"]:
            def step(_: Any, z: Float[Array, " d"]) -> Float[Array, " d"]:
                away = v - z
                return z + _mean(away * _shrink(_norms(away), self.radius)[:, None], accepted)

            return jax.lax.fori_loop(0, self.iterations, step, _median(v, accepted))

        return _on_vectors(settle, replies, accepted)


# --- applying a rule for vectors or numbers to replies of any shape --------------------------------------------


def _split(replies: Replies) -> tuple[list[Any], list[bool], Any]:
    leaves, structure = jax.tree.flatten(replies, is_leaf=trees.is_report)
    ruled = [not trees.is_report(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    return leaves, ruled, structure


def _on_numbers(rule: Callable[[Any], Any], replies: Replies, accepted: Counts) -> PyTree:
    """Apply a rule to each number by itself."""
    leaves, ruled, structure = _split(replies)
    done = [rule(leaf) if is_ruled else _mean(leaf, accepted) for leaf, is_ruled in zip(leaves, ruled, strict=True)]
    return jax.tree.unflatten(structure, done)


def _on_vectors(rule: Callable[[Any], Any], replies: Replies, accepted: Counts) -> PyTree:
    """Apply a rule to all numbers of a reply as one vector."""
    leaves, ruled, structure = _split(replies)
    parts = [leaf for leaf, is_ruled in zip(leaves, ruled, strict=True) if is_ruled]
    if not parts:
        return _mean(replies, accepted)
    flat = jnp.concatenate([_wide(part).reshape(part.shape[0], -1) for part in parts], axis=1)
    ends = [sum(part[0].size for part in parts[: i + 1]) for i in range(len(parts) - 1)]
    new = iter(
        piece.reshape(part.shape[1:]).astype(part.dtype)
        for piece, part in zip(jnp.split(rule(flat), ends), parts, strict=True)
    )
    done = [next(new) if is_ruled else _mean(leaf, accepted) for leaf, is_ruled in zip(leaves, ruled, strict=True)]
    return jax.tree.unflatten(structure, done)


def _mean(replies: Replies, kept: Counts) -> PyTree:
    count = jnp.maximum(jnp.sum(kept), 1)

    def mean(leaf: Array) -> Array:
        wide = _wide(leaf)
        total = jnp.sum(jnp.where(_beside(kept, leaf), wide, 0), axis=0, dtype=wide.dtype)
        result = trees.divide(total, count)
        return result.astype(leaf.dtype) if wide.dtype != leaf.dtype else result  # integers have a float mean

    return jax.tree.map(mean, replies)


def _median(v: Float[Array, "cohort ..."], accepted: Counts) -> Float[Array, "..."]:
    count, ordered = jnp.maximum(jnp.sum(accepted), 1), _sorted(v, accepted)
    # each half alone, so that the sum of two large numbers does not overflow
    return 0.5 * ordered[(count - 1) // 2] + 0.5 * ordered[count // 2]


def _sorted(v: Float[Array, "cohort ..."], accepted: Counts) -> Float[Array, "cohort ..."]:
    """The replies of each number in order, with those that are not accepted last."""
    return jnp.sort(jnp.where(_beside(accepted, v), v, jnp.inf), axis=0)


def _wide(leaf: Array) -> Array:
    """Half precision as float32; all else as it is."""
    is_half = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
    return leaf.astype(jnp.float32) if is_half else leaf


def _norms(v: Float[Array, "cohort d"]) -> Float[Array, " cohort"]:
    return jnp.sqrt(jnp.sum(v * v, axis=1))


def _shrink(norms: Float[Array, " cohort"], limit: Any) -> Float[Array, " cohort"]:
    """min(1, limit / norm), also where the norm is 0."""
    limit = jnp.asarray(limit, norms.dtype)
    return jnp.where(norms > limit, limit / jnp.maximum(norms, limit), 1)


def _beside(mask: Counts, leaf: Array) -> Array:
    return mask.reshape(-1, *(1,) * (leaf.ndim - 1))
