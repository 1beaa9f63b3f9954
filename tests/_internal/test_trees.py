"""What every vector and every method rests on."""

import jax
import pytest

from fedspam._internal.trees import static, struct


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
