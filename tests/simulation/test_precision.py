"""Differences of gradients in float32 and in TF32, which GPUs use for products of matrices unless told otherwise."""

import jax.numpy as jnp
import numpy as np
import pytest

import loading


@pytest.fixture(scope="module")
def benchmark():
    return loading.benchmark("precision")


def test_tf32_has_ten_bits_after_the_point(benchmark):
    x = jnp.array([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-12, 3.0e-20], jnp.float32)
    expected = [1.0, 1 + 2.0**-10, 1.0, 1 + 2.0**-9, -1.0]
    np.testing.assert_array_equal(benchmark.rounded(x)[:5], expected)  # ties go to the even neighbor
    np.testing.assert_allclose(benchmark.rounded(x)[5], 3.0e-20, rtol=2.0**-11)


def test_a_difference_loses_what_cancels_and_tf32_loses_far_more(benchmark):
    """The error of a gradient is about constant, so that of a difference grows as the step shrinks."""
    steps = (1e-1, 1e-3)
    single, tensor = (benchmark.difference_errors(mode, 20, steps) for mode in ("float32", "emulated TF32"))
    assert single[0] < 1e-5
    assert single[1] < 1e-3
    assert tensor[0] > 100 * single[0]
    assert tensor[1] > 0.05  # of a difference over such a step, little is left
    assert tensor[1] > 10 * tensor[0]
