"""Crops and flips by a key, and a PyTorch ResNet with batch normalization, dropout and crops under every policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Evaluation, simulate
from fedspam.models import Images, own_statistics, softmax_regression, state_dict
from small_resnet import METHODS, PAIRS, bright, model_of, resnet

ROWS = np.random.default_rng(0).normal(size=(5, 3, 6, 6)).astype(np.float32)


def test_a_crop_is_a_window_of_the_padded_image():
    cropped = np.asarray(Images(crop=2)(jnp.asarray(ROWS), jax.random.key(1)))
    padded = np.pad(ROWS, ((0, 0), (0, 0), (2, 2), (2, 2)))
    for row, image in enumerate(cropped):
        windows = [padded[row, :, a : a + 6, b : b + 6] for a in range(5) for b in range(5)]
        assert sum(np.array_equal(image, window) for window in windows) == 1
    last = Images(crop=2, channels_first=False)(jnp.moveaxis(jnp.asarray(ROWS), 1, -1), jax.random.key(1))
    np.testing.assert_array_equal(np.moveaxis(np.asarray(last), -1, 1), cropped)


def test_a_crop_may_mirror_the_border():
    one = Images(crop=2, reflect=True)(jnp.asarray(ROWS), jax.random.key(1))
    padded = np.pad(ROWS, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    for row, image in enumerate(np.asarray(one)):
        windows = [padded[row, :, a : a + 6, b : b + 6] for a in range(5) for b in range(5)]
        assert sum(np.array_equal(image, window) for window in windows) == 1


def test_draws_depend_on_the_key_and_the_place_of_a_row_alone():
    images = Images(crop=2, flip=True, mean=(0.5, 0.0, 1.0), deviation=(2.0, 1.0, 1.0))
    whole = images(jnp.asarray(ROWS), jax.random.key(1))
    np.testing.assert_array_equal(whole[:3], images(jnp.asarray(ROWS[:3]), jax.random.key(1)))
    assert not np.array_equal(whole, images(jnp.asarray(ROWS), jax.random.key(2)))
    plain = images(jnp.asarray(ROWS), None)
    np.testing.assert_allclose(plain[:, 0], (ROWS[:, 0] - 0.5) / 2, rtol=1e-6)


def test_about_half_of_the_images_are_mirrored():
    rows = jnp.broadcast_to(jnp.asarray(ROWS[:1]), (200, 3, 6, 6))
    flipped = np.asarray(Images(flip=True)(rows, jax.random.key(0)))
    mirrored = [np.array_equal(image, ROWS[0, :, :, ::-1]) for image in flipped]
    assert all(same or np.array_equal(image, ROWS[0]) for same, image in zip(mirrored, flipped, strict=True))
    assert 60 < sum(mirrored) < 140


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="one number per channel"):
        Images(mean=(0.5,))
    with pytest.raises(ValueError, match="mean = nan"):
        Images(mean=(float("nan"),), deviation=(1.0,))
    with pytest.raises(ValueError, match="two axes of pixels"):
        Images(crop=1)(jnp.ones((2, 4)), None)


def test_a_network_of_ours_sees_crops_in_training_alone():
    model = dataclasses.replace(softmax_regression(108, 3), images=Images(crop=2))
    rows = {"features": jnp.asarray(ROWS), "label": jnp.array([0, 1, 2, 0, 1])}
    params = {"kernel": jnp.asarray(np.random.default_rng(1).normal(size=(108, 3)), jnp.float32), "bias": jnp.zeros(3)}
    trained = lambda key: model.loss.of_batch(params, rows, key=key, kept=None)[0]
    np.testing.assert_allclose(trained(None), model.loss(params, rows), rtol=1e-6)
    assert not np.allclose(trained(jax.random.key(0)), trained(None))


ONCE = (("averaged", "scaffold"), ("local", "fedavg"), ("recalibrated", "auto"), ("group", "spam_ppa"))


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        pytest.param(*p, marks=pytest.mark.slow if p in ONCE else pytest.mark.thorough) for p in PAIRS
    ],  # each policy and each method once, all pairs in `make full`
    ids=["-".join(p) for p in PAIRS],
)
def test_a_resnet_of_pytorch_learns_and_goes_back_to_pytorch(policy, name):
    torch = pytest.importorskip("torch", reason="pip install '.[torch]'")
    module, data = resnet(torch), bright()
    model = model_of(module, policy)
    clients = data.population(model.loss, batch=8)
    run = simulate(METHODS[name], clients, model.init(0), rounds=8, key=0, record=())
    judge = Evaluation.of(data, model.correct)
    if policy == "local":
        own = own_statistics(run.params, clients)
        accuracies = judge.personal(own)["accuracy"]
        params = [jax.tree.map(lambda leaf, i=i: leaf[i], own) for i in range(3)]
    else:
        accuracies = judge.per_client(run.params)["accuracy"]
        params = [run.params] * 3
    assert float(jnp.mean(accuracies)) > 0.5  # a third by chance
    if policy == "group":
        module = model.network.module
    sizes = np.cumsum(data.sizes)[:-1]
    features, labels = np.split(data.examples["features"], sizes), np.split(data.examples["label"], sizes)
    for client in range(3):
        module.load_state_dict(state_dict(model, params[client]))
        with torch.no_grad():
            scores = module.eval()(torch.tensor((features[client] - 0.5) / 1.2))
        right = float((scores.argmax(1).numpy() == labels[client]).mean())
        ours = model.logits(params[client], jnp.asarray(features[client]))
        np.testing.assert_allclose(ours, scores, atol=1e-3)
        assert float(accuracies[client]) == pytest.approx(right, abs=1.01 / len(scores))
