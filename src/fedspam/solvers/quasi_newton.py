"""L-BFGS for the prox."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, count, struct
from fedspam.solvers._certificate import Answer, Relative, Stop, Surrogate, certified
from fedspam.solvers._search import Search, first_length, search


class Pairs(NamedTuple):
    """The last steps and the changes of slope along them, oldest first. Empty rows have weight 0."""

    steps: Params  # [memory, ...]
    changes: Params  # [memory, ...]
    weights: Float[Array, " memory"]  # 1 / <step, change>
    scale: Scalar  # of the first guess at the inverse Hessian


@struct
class LBFGS:
    r"""L-BFGS with a backtracking line search, until the certificate holds. The default solver: it needs no constant.

    A pair of a step s and its change of slope v enters the memory only if
    :math:`\langle s, v\rangle \ge \|s\|^2/(10\gamma)`, as it does for every convex client; so all directions are of
    descent, also where the client is not convex.

    Arguments:
        memory: number of pairs kept. While it solves, the client stores twice this many vectors of parameters.

    Liu, Nocedal: On the limited memory BFGS method for large scale optimization, 1989; Li, Fukushima: On the global
    convergence of the BFGS method for nonconvex unconstrained optimization problems, 2001, for the test of pairs.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.clients import DataOracle
    >>> client = DataOracle(jnp.eye(3), loss=lambda x, rows: jnp.mean(jax.nn.softplus(rows @ x)))
    >>> y, certificate = LBFGS()(client, jax.random.key(0), x=jnp.zeros(3), g=jnp.ones(3), step_size=2.0)
    >>> float(certificate.certified), bool(certificate.decrease < 0)
    (1.0, True)
    """

    steps: int = count(default=200)
    memory: int = count(default=10)
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        def turn(now: Search) -> tuple[Pairs, Params]:
            pairs, slope = _remember(now.memory, now, phi.step_size), now.point.slope
            direction = trees.scale(-1, _times_inverse_hessian(pairs, slope))
            # rounding can spoil a direction; then drop all pairs and restart from the steepest descent
            descent = trees.dot(direction, slope) < 0
            pairs = pairs._replace(weights=jnp.where(descent | ~now.fresh, pairs.weights, 0))
            return pairs, trees.where(descent, direction, trees.scale(-pairs.scale, slope))

        empty = jax.tree.map(lambda leaf: jnp.zeros((self.memory, *leaf.shape), leaf.dtype), phi.x)
        scale = first_length(phi) / 2  # which is doubled before the first step
        pairs = Pairs(empty, empty, jnp.zeros(self.memory, scale.dtype), scale)
        return search(phi, self.stop, self.steps, pairs, turn)[0]


def _remember(pairs: Pairs, now: Search, step_size: Scalar) -> Pairs:
    step, change = trees.subtract(now.point.y, now.old.y), trees.subtract(now.point.slope, now.old.slope)
    product, length, size = trees.dot(step, change), trees.squared_norm(step), trees.squared_norm(change)
    curved = (product >= length / (10 * step_size)) & (product > jnp.finfo(product.dtype).eps * jnp.sqrt(length * size))
    keep = now.fresh & curved

    def push(rows: Any, row: Any) -> Any:
        return jnp.where(keep, jnp.concatenate([rows[1:], row[None]]), rows)

    # until there is a first pair, a step is twice the last
    longer = jnp.where(now.fresh & (pairs.weights[-1] == 0), 2 * now.length * pairs.scale, pairs.scale)
    return Pairs(
        jax.tree.map(push, pairs.steps, step),
        jax.tree.map(push, pairs.changes, change),
        push(pairs.weights, 1 / product),
        jnp.where(keep, product / size, longer),
    )


def _times_inverse_hessian(pairs: Pairs, slope: Params) -> Params:
    """The two-loop recursion; rows of weight 0 do nothing."""

    def back(vector: Params, pair: Any) -> tuple[Params, Scalar]:
        step, change, weight = pair
        part = weight * trees.dot(step, vector)
        return trees.axpy(-part, change, vector), part

    def forth(vector: Params, pair: Any) -> tuple[Params, None]:
        step, change, weight, part = pair
        return trees.axpy(part - weight * trees.dot(change, vector), step, vector), None

    rows = (pairs.steps, pairs.changes, pairs.weights)
    vector, parts = lax.scan(back, slope, rows, reverse=True)
    vector, _ = lax.scan(forth, trees.scale(pairs.scale, vector), (*rows, parts))
    return vector
