"""Faults of a simulation: clients that do not reply, reply late, reply NaN, or attack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, UInt32

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, number, struct

Attack = Callable[[PyTree], PyTree]  # how an adversary changes its reply


@struct
class SignFlip:
    r"""The reply times :math:`-s`."""

    scale: float = 1.0

    def __call__(self, reply: PyTree) -> PyTree:
        return _changed(lambda leaf: jnp.asarray(-self.scale, leaf.dtype) * leaf, reply)


@struct
class Huge:
    """Every number of the reply is `size`."""

    size: float = 1e6

    def __call__(self, reply: PyTree) -> PyTree:
        return _changed(lambda leaf: jnp.full_like(leaf, self.size), reply)


@struct
class Drift:
    """The reply plus a constant in every number: if small, it is hard to tell from honest replies."""

    by: float = 1.0

    def __call__(self, reply: PyTree) -> PyTree:
        return _changed(lambda leaf: leaf + jnp.asarray(self.by, leaf.dtype), reply)


@struct
class Faults:
    """The faults of a simulation.

    Dropouts, NaN and delays are independent for each client and exchange. Adversaries are always the same clients,
    chosen by their ids.

    >>> import jax.numpy as jnp
    >>> faults = Faults(dropout=0.2, adversarial=0.3, attack=SignFlip(5.0))
    >>> int(faults.is_adversary(jnp.arange(30, dtype=jnp.uint32)).sum())
    9

    Arguments:
        dropout: the probability that a client does not reply.
        nan: the probability that it replies with NaN.
        late: the probability that its reply comes after the deadline; its bytes count, but it is not used.
        adversarial: the share of clients that attack.
        attack: `SignFlip`, `Huge` or `Drift`.
    """

    dropout: float = number(0, 1, default=0.0)
    nan: float = number(0, 1, default=0.0)
    late: float = number(0, 1, default=0.0)
    adversarial: float = number(0, 1, default=0.0)
    attack: Attack = SignFlip()

    def __post_init__(self) -> None:
        shares = self.dropout, self.nan, self.late
        if all(map(checks.is_number, shares)) and sum(shares) > 1:
            raise ValueError(f"dropout + nan + late = {sum(shares)} must be at most 1; lower one of them")

    def is_adversary(self, id: UInt32[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """Whether the client of this id attacks."""
        # steps of the golden ratio around a circle: any range of ids has this share, up to one or two clients
        place = (jnp.asarray(id, jnp.uint32) * jnp.uint32(2654435769)).astype(jnp.result_type(float)) * 2.0**-32
        return place < self.adversarial

    def strike(self, key: Key, id: UInt32[Array, ""], reply: PyTree) -> tuple[PyTree, Any, Any]:
        """The reply as it arrives, whether it arrives at all, and whether it arrives in time."""
        reply = trees.where(self.is_adversary(id), self.attack(reply), reply)
        luck = jax.random.uniform(prng.fold_name(key, "fault"))
        lost = luck < self.dropout
        late = (luck >= self.dropout) & (luck < self.dropout + self.late)
        broken = (luck >= self.dropout + self.late) & (luck < self.dropout + self.late + self.nan)
        spoil = lambda leaf: jnp.where(broken, jnp.nan, leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
        return jax.tree.map(spoil, reply), ~lost, ~late


def _changed(change: Callable[[Array], Array], reply: PyTree) -> PyTree:
    """The reply with its numbers changed, except for reports, which do not reach the server's state."""
    leaves, structure = jax.tree.flatten(reply, is_leaf=trees.is_report)
    attacked = lambda leaf: not trees.is_report(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    return jax.tree.unflatten(structure, [change(leaf) if attacked(leaf) else leaf for leaf in leaves])
