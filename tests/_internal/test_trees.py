"""What every vector and every method rests on."""

import jax
import pytest

from fedspam._internal.trees import choice, count, dynamic, number, positive, static, struct


@struct
class One:
    value: float
    size: int = static(default=1)


@struct
class Other:
    value: float
    size: int = static(default=1)


def test_structures_of_different_classes_differ():
    """Equal ones would let a compiled function take a method for another whose fields look the same."""
    assert jax.tree.structure(One(1.0)) == jax.tree.structure(One(2.0))
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(Other(1.0))
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(One(1.0, 2))


def test_structs_survive_a_round_trip_and_name_their_leaves():
    leaves, shape = jax.tree.flatten(One(3.0, 4))
    again = jax.tree.unflatten(shape, leaves)
    assert (type(again), again.value, again.size) == (One, 3.0, 4)
    ((path, leaf),), _ = jax.tree_util.tree_flatten_with_path(One(3.0, 4))
    assert (jax.tree_util.keystr(path), leaf) == (".value", 3.0)


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(TypeError):
        One(1.0, 2, 3)


@struct
class Ruled:
    doubled: float = dynamic(converter=lambda value, name: 2 * value)
    size: int | None = count(2, "try 3", or_none=True, default=None)
    share: float | None = number(0, 1, open_low=True, default=None)
    rate: float = positive("try 1", default=1.0)
    rule: str = choice("one", "other", default="one")

    def __post_init__(self):
        if self.doubled > 100:
            raise ValueError(f"doubled = {self.doubled}")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1}, "size = 1 must be a whole number of at least 2; try 3"),
        ({"share": 0.0}, r"share = 0.0 must lie in \(0, 1]"),
        ({"rate": 0}, "rate = 0 must be greater than 0; try 1"),
        ({"rule": "othe"}, "rule = 'othe' must be one of 'one', 'other'; did you mean 'other'?"),
        ({"doubled": 60}, "doubled = 120"),
    ],
)
def test_fields_are_checked_where_a_struct_is_made(wrong, message):
    with pytest.raises(ValueError, match=message):
        Ruled(**{"doubled": 1.0, **wrong})


def test_fields_are_converted_once_and_not_where_jax_rebuilds_the_struct():
    made = Ruled(1.0)
    assert (made.doubled, made.size, made.share) == (2.0, None, None)
    assert jax.tree.map(lambda leaf: leaf, made).doubled == 2.0
    assert jax.tree.map(lambda leaf: -1000 * leaf, made).rate == -1000
    assert jax.jit(lambda ruled: ruled.doubled)(made) == 2.0
