"""Models: convolutions against the library's own, shapes, precisions, padding labels, and what they are fed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedspam import Ragged, simulate
from fedspam.clients import MeanOracle
from fedspam.datasets import FederatedData
from fedspam.methods import fedavg
from fedspam.models import (
    Moments,
    char_lstm,
    char_transformer,
    conv1d,
    convolution,
    femnist_cnn,
    har_cnn,
    leaf_cnn,
    logistic_regression,
    max_pool,
    mlp,
    softmax_regression,
)

pytestmark = pytest.mark.x64  # layers against sums written out, to the last digits

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def library(inputs, kernel, strides=(1, 1), padding="VALID", dilation=(1, 1)):
    return lax.conv_general_dilated(
        inputs, kernel, strides, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


WAYS = {
    "winograd": convolution._winograd,
    "patches": lambda x, k: convolution._by_patches(x, k, (1, 1), (1, 1)),
    "native": lambda x, k: convolution._native(x, k, (1, 1), (1, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (2, 9, 6, 3)], ids=["even", "odd"])
def test_every_convolution_is_the_librarys_with_its_derivatives(way, shape):
    x, kernel = normal(*shape), normal(3, 3, 3, 4)
    bent = lambda convolve: lambda x, k: jnp.sum(jnp.sin(convolve(x, k)))

    @jax.jit
    def look(x, kernel):
        found = []
        for convolve in (WAYS[way], library):
            both = jax.grad(bent(convolve), (0, 1))
            second = jax.jvp(lambda k: both(x, k), (kernel,), (jnp.cos(kernel),))[1]
            own = jax.vmap(both)(jnp.stack([x, 2 * x]), jnp.stack([kernel, -kernel]))  # each client its kernel
            shared = jax.grad(lambda k: jnp.sum(jax.vmap(lambda x: bent(convolve)(x, k))(jnp.stack([x, 2 * x]))))
            found.append((convolve(x, kernel), both(x, kernel), second, own, shared(kernel)))
        return found

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), *look(x, kernel))


@pytest.mark.parametrize(
    ("strides", "padding", "dilation"), [((2, 1), "SAME", (1, 1)), ((1, 3), [(1, 0), (2, 2)], (2, 1))]
)
def test_strides_padding_and_dilation(strides, padding, dilation):
    x, kernel = normal(2, 9, 10, 3), normal(3, 2, 3, 4)
    found = convolution.convolve(x, kernel, strides=strides, padding=padding, dilation=dilation)
    np.testing.assert_allclose(found, library(x, kernel, strides, padding, dilation), atol=1e-12)


def test_under_vmap_over_kernels_nothing_is_left_to_a_grouped_convolution():
    kernels, x = normal(2, 3, 3, 8, 4), normal(2, 3, 8, 8, 8)
    for way in ("native", "patches", "winograd"):
        loss = lambda k, x, way=way: jnp.sum(WAYS[way](x, k) ** 2)
        assert "conv_general_dilated" not in str(jax.make_jaxpr(jax.vmap(jax.grad(loss)))(kernels, x))
    # where the clients share the kernel, an accelerator's own convolution is used
    shared = jax.vmap(lambda x: WAYS["native"](x, kernels[0]))
    assert "conv_general_dilated" in str(jax.make_jaxpr(shared)(x))


def test_a_convolution_handed_to_flax_falls_back_where_it_must():
    x, kernel = normal(2, 8, 8, 4), normal(3, 3, 2, 4)
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 2}
    found = convolution.conv_general_dilated(x, kernel, (1, 1), "SAME", **options)
    np.testing.assert_array_equal(found, lax.conv_general_dilated(x, kernel, (1, 1), "SAME", **options))


@pytest.mark.slow
def test_pools_and_sequences():
    x = normal(2, 7, 6, 3)
    expected = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    np.testing.assert_array_equal(max_pool(x, (2, 2)), expected)
    series, kernel = normal(2, 12, 3), normal(5, 3, 4)
    found = conv1d(series, kernel, stride=2, padding="SAME")
    expected = lax.conv_general_dilated(series, kernel, (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"inputs of shape .* do not fit a kernel"):
        conv1d(series, normal(5, 2, 4))


TEXT = jnp.asarray(RNG.integers(0, 10, (4, 12)), jnp.int32)
MODELS = {
    "softmax": (softmax_regression(6, 3), normal(4, 6), 3),
    "logistic": (logistic_regression(6), normal(4, 6), 2),
    "mlp": (mlp(6, 3, hidden=(5,)), normal(4, 6), 3),
    "femnist": (femnist_cnn(), jnp.asarray(RNG.integers(0, 256, (4, 28, 28)), jnp.uint8), 62),
    "leaf": (leaf_cnn(hidden=8), normal(4, 28, 28), 62),
    "har": (har_cnn(hidden=8), normal(4, 128, 6), 6),
    "lstm": (char_lstm(10, hidden=6), TEXT, 10),
    "transformer": (char_transformer(10, length=12, width=8, heads=2), TEXT, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_computes_in_both_precisions(name):
    model, inputs, classes = MODELS[name]
    labels = TEXT if name == "transformer" else jnp.arange(4, dtype=jnp.int32) % classes
    rows = {"features": inputs, "label": labels}
    params = model.init(0)
    low = dataclasses.replace(model, dtype="bfloat16")

    @jax.jit
    def computed(params):
        half, pulled = jax.vjp(lambda p: low.loss(p, rows), params)
        return model.loss(params, rows), half, *pulled(jnp.full_like(half, 0.25))

    full, half, gradient = computed(params)
    assert full.shape == half.shape == (4,)
    assert full.dtype == half.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(half, full, rtol=0.05)  # bfloat16 keeps 8 bits
    assert float(jnp.mean(full)) < 2 * np.log(classes)  # knowing nothing costs log(classes); it does not start far off
    assert 0 <= float(model.accuracy(params, rows)) <= 1


def test_bytes_are_fractions_of_255():
    model = softmax_regression(3, 2, dtype="float64")
    params = {"kernel": normal(3, 2), "bias": normal(2)}
    images = jnp.array([[0, 51, 255]], jnp.uint8)
    np.testing.assert_allclose(model.logits(params, images), model.logits(params, images / 255.0), rtol=1e-12)


@pytest.mark.slow
def test_negative_labels_are_padding():
    model = char_lstm(10, hidden=4, layers=1, every=True)
    params, text = model.init(0), TEXT[:2, :6]
    labels = jnp.array([[1, 2, -1, -1, -1, -1], [3, 4, 5, 6, 7, 8]], jnp.int32)
    losses = model.loss(params, {"features": text, "label": labels})
    scores = jax.nn.log_softmax(model.logits(params, text))
    np.testing.assert_allclose(losses[0], -(scores[0, 0, 1] + scores[0, 1, 2]) / 2, rtol=1e-5)


@pytest.mark.slow
def test_a_transformer_does_not_see_what_comes_after():
    model = char_transformer(10, length=12, width=8, heads=2)
    params = model.init(0)
    changed = TEXT.at[:, 8:].set((TEXT[:, 8:] + 1) % 10)
    before, after = model.logits(params, TEXT), model.logits(params, changed)
    np.testing.assert_allclose(before[:, :8], after[:, :8], atol=1e-6)
    assert float(jnp.abs(before[:, 8:] - after[:, 8:]).max()) > 1e-4


def test_equal_settings_are_equal_losses():
    assert mlp(4, 3).loss == mlp(4, 3).loss
    assert hash(femnist_cnn().loss) == hash(femnist_cnn().loss)
    assert mlp(4, 3).loss != mlp(4, 3, dtype="bfloat16").loss


def test_bad_models_are_refused():
    with pytest.raises(ValueError, match=r"dtype = 'float16'.*one of"):
        mlp(4, 3, dtype="float16")
    with pytest.raises(ValueError, match="heads = 3 must divide width = 8"):
        char_transformer(width=8, heads=3)
    with pytest.raises(ValueError, match="too small for these convolutions"):
        har_cnn(length=8)


@pytest.mark.slow
def test_a_softmax_regression_learns_and_its_mean_client_is_central():
    model = softmax_regression(4, 3, dtype="float64")
    truth = normal(4, 3)
    inputs = normal(60, 4)
    rows = {"features": inputs, "label": jnp.argmax(inputs @ truth, 1).astype(jnp.int32)}
    part = lambda a, b: jax.tree.map(lambda leaf: leaf[a:b], rows)
    population = Ragged.of([part(0, 7), part(7, 30), part(30, 60)], model.loss, weighted=True)
    params = {"kernel": normal(4, 3), "bias": normal(3)}
    mean = MeanOracle(population, jnp.arange(3, dtype=jnp.uint32), chunk=3)
    found = jax.grad(mean)(params)
    expected = jax.grad(lambda params: jnp.mean(model.loss(params, rows)))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), found, expected)
    some = MeanOracle(population, jnp.arange(3, dtype=jnp.uint32), chunk=2, kept=jnp.array([True, False, True]))
    each = [population.client(jnp.uint32(id))(params) for id in (0, 2)]
    np.testing.assert_allclose(some(params), np.mean(each), rtol=1e-12)
    run = simulate(fedavg(3, 5, 0.5), population, model.init(0), rounds=60, key=0, record=())
    assert float(model.accuracy(run.params, rows)) > 0.9


def test_moments_are_those_of_the_pooled_rows():
    """Two rounds of FedAvg with one step find what a server with all rows would, and pay for it."""
    generator = np.random.default_rng(0)
    features = generator.normal([2000.0, 0.0, -5.0, 1.0], [3.0, 1e-3, 40.0, 0.0], size=(57, 4))
    features[generator.random(57) < 0.3, 2] = np.nan
    data = FederatedData.by({"features": features}, np.repeat(np.arange(4), [30, 1, 20, 6]))
    moments = Moments(4)
    clients = data.population(moments.loss, weighted=True)
    run = simulate(fedavg(4, local_steps=1, local_rate=1.0), clients, moments.init(), rounds=2, key=0)
    scale = moments.standardizer(run.params)
    np.testing.assert_allclose(scale.mean, np.nanmean(features, 0), rtol=1e-12)
    np.testing.assert_allclose(scale.deviation[:3], np.nanstd(features, 0)[:3], rtol=1e-9)
    assert scale.deviation[3] == 1.0
    assert np.all(run.rows["bytes_up"] >= 4 * 12 * 8)  # four clients send twelve numbers in each of two rounds
    with pytest.raises(ValueError, match=r"feature 0 is missing in every row"):
        moments.standardizer(moments.init())
