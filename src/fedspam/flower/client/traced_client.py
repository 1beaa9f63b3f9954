"""A client that exists only while a work is traced: each question to it becomes one operation of the program.

``fedspam_client.program`` says what the operations mean.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxtyping import Array, Integer, Key

from fedspam._internal.trees import Params, Scalar, static, struct

loss_p, gradient_p, hessian_p, solve_p, fact_p = (
    Primitive(f"client_{name}") for name in ("loss", "gradient", "hessian", "solve", "fact")
)
gradient_p.multiple_results = hessian_p.multiple_results = solve_p.multiple_results = True


def _shapes(arrays: Any) -> list[ShapedArray]:
    return [ShapedArray(array.shape, array.dtype) for array in arrays]


def _count(arguments: Any, seeded: bool, numbered: bool) -> int:
    """How many of the arguments are not the key and the number of the minibatch."""
    return len(arguments) - seeded - numbered


def _scalar_like(array: Any) -> ShapedArray:
    return ShapedArray((), array.dtype)


loss_p.def_abstract_eval(lambda *arrays, seeded, numbered: _scalar_like(arrays[0]))
gradient_p.def_abstract_eval(
    lambda *arrays, seeded, numbered: [_scalar_like(arrays[0]), *_shapes(arrays[: _count(arrays, seeded, numbered)])]
)
hessian_p.def_abstract_eval(lambda *arrays, seeded, numbered: _shapes(arrays[: _count(arrays, seeded, numbered) // 2]))
solve_p.def_abstract_eval(lambda *arrays: _shapes(arrays[:-1]))
fact_p.def_abstract_eval(lambda *, name, dtype: ShapedArray((), jnp.dtype(dtype)))


def _gradient_jvp(primals: Any, tangents: Any, *, seeded: bool, numbered: bool) -> Any:
    """The derivative of a gradient along a direction is the Hessian times the direction."""
    count, options = _count(primals, seeded, numbered), {"seeded": seeded, "numbered": numbered}
    found = gradient_p.bind(*primals, **options)
    along = [ad.instantiate_zeros(tangent) for tangent in tangents[:count]]
    bent = hessian_p.bind(*primals[:count], *along, *primals[count:], **options)
    slope = sum((jnp.vdot(part, way) for part, way in zip(found[1:], along, strict=True)), jnp.zeros_like(found[0]))
    return found, [slope, *bent]


ad.primitive_jvps[gradient_p] = _gradient_jvp


@struct
class TracedClient:
    """The oracle of a client about which nothing is known yet.

    Arguments:
        batch: rows in a minibatch, where clients draw minibatches.
    """

    batch: int | None = static(default=None)

    @property
    def capacity(self) -> int | None:
        return None if self.batch is None else self.batch + 1  # more rows than a minibatch has

    @property
    def weight(self) -> Scalar:
        return self._fact("weight")

    @property
    def smoothness(self) -> Scalar:
        return self._fact("smoothness")

    @property
    def lowest_curvature(self) -> Scalar:
        return self._fact("lowest_curvature")

    @property
    def minibatches(self) -> Integer[Array, ""]:
        return fact_p.bind(name="minibatches", dtype="int32")

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        return _asked(params) if key is None else _asked(params, key)

    def minibatch(self, params: Params, key: Key[Array, ""], number: Integer[Array, ""]) -> Scalar:
        return _asked(params, key, number)

    def shifted_solve(self, g: Params, step_size: Any) -> Params:
        leaves, structure = jax.tree.flatten(g)
        return jax.tree.unflatten(structure, solve_p.bind(*leaves, jnp.asarray(step_size)))

    def _fact(self, name: str) -> Scalar:
        return fact_p.bind(name=name, dtype=str(jnp.result_type(float)))


def _asked(params: Params, *minibatch: Any) -> Scalar:
    options = {"seeded": len(minibatch) > 0, "numbered": len(minibatch) > 1}

    @jax.custom_vjp
    def loss(leaves: list[Any]) -> Scalar:
        return loss_p.bind(*leaves, *minibatch, **options)

    def forward(leaves: list[Any]) -> tuple[Scalar, list[Any]]:
        value, *gradient = gradient_p.bind(*leaves, *minibatch, **options)
        return value, gradient

    loss.defvjp(forward, lambda gradient, cotangent: ([cotangent * leaf for leaf in gradient],))
    return loss(jax.tree.leaves(params))
