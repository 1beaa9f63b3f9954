"""Modules of other frameworks as models: the same scores, the same iterates, and no batch norm in two of them."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate, spam_pp
from fedspam.methods import fedavg
from fedspam.models import conv_general_dilated, from_equinox, from_flax, from_torch, mlp
from fedspam.solvers import GradientDescent


def rows(seed, count, inputs=4, classes=3):
    rng = np.random.default_rng(seed)
    return {
        "features": rng.normal(size=(count, inputs)).astype(np.float32),
        "label": rng.integers(0, classes, count).astype(np.int32),
    }


def copied(params):
    """The parameters of `mlp` under the names and in the layout of ``torch.nn.Sequential``."""
    layers = sorted(params)
    named = {}
    for number, layer in enumerate(layers):
        named[f"{2 * number}.weight"] = params[layer]["kernel"].T
        named[f"{2 * number}.bias"] = params[layer]["bias"]
    return named


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="pip install '.[torch]'")


def twins(torch, compiled=None):
    model = mlp(4, 3, hidden=(8,))
    params = model.init(3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return model, params, from_torch(module, compiled=compiled), copied(params)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "host"])
@pytest.mark.parametrize(
    ("method", "chunk"),
    [
        (fedavg(3, 2, 0.1), 1),
        (spam_pp(3, 0.5, 0.3, solver=GradientDescent(steps=3, local_rate=0.1)), 3),
    ],
    ids=["fedavg", "spam_pp"],
)
def test_a_torch_module_takes_the_steps_of_its_twin(torch, method, chunk, compiled):
    model, start, other, other_start = twins(torch, compiled)
    clients = [rows(seed, count) for seed, count in enumerate([5, 9, 3, 7])]
    run = lambda loss, params: (
        simulate(method, Ragged.of(clients, loss, batch=4), params, rounds=5, key=2, chunk=chunk, record=()).params
    )
    ours, theirs = run(model.loss, start), run(other.loss, other_start)
    assert float(jnp.abs(ours["dense0"]["kernel"] - start["dense0"]["kernel"]).max()) > 1e-3  # it moved
    for name, leaf in copied(ours).items():
        np.testing.assert_allclose(theirs[name], leaf, atol=1e-5)


@pytest.mark.slow
def test_a_torch_module_under_vmap_and_its_gradient(torch):
    model, start, other, other_start = twins(torch)
    some = jax.tree.map(jnp.asarray, rows(0, 6))
    double = lambda params: jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    gradient = lambda loss: jax.vmap(jax.grad(lambda params: jnp.mean(loss(params, some))))
    ours, theirs = gradient(model.loss)(double(start)), gradient(other.loss)(double(other_start))
    np.testing.assert_allclose(theirs["0.bias"], ours["dense0"]["bias"], atol=1e-6)
    np.testing.assert_allclose(theirs["2.weight"], jnp.swapaxes(ours["dense1"]["kernel"], 1, 2), atol=1e-6)


@pytest.mark.slow
def test_parameters_that_a_torch_module_does_not_use_have_no_gradient(torch):
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 3), torch.nn.Linear(2, 2)

        def forward(self, inputs):
            return self.used(inputs)

    model = from_torch(Half())
    gradient = jax.grad(lambda params: jnp.sum(model.loss(params, rows(0, 2))))(model.init(0))
    assert float(jnp.abs(gradient["used.weight"]).max()) > 0
    assert float(jnp.abs(gradient["unused.weight"]).max()) == 0


@pytest.mark.slow
def test_an_equinox_module_trains():
    equinox = pytest.importorskip("equinox", reason="pip install '.[equinox]'")
    module = equinox.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    model, some = from_equinox(module), rows(0, 6)
    np.testing.assert_allclose(
        model.logits(model.init(0), some["features"]), jax.vmap(module)(some["features"]), atol=1e-6
    )
    population = Ragged.of([rows(0, 6), rows(1, 5)], model.loss)
    run = simulate(fedavg(2, 3, 0.3), population, model.init(0), rounds=20, key=0, record=())
    assert float(jnp.mean(model.loss(run.params, some))) < 0.8 * float(jnp.mean(model.loss(model.init(0), some)))


def flax_convolution(nnx):
    class Tiny(nnx.Module):
        def __init__(self, rngs, **options):
            self.conv = nnx.Conv(2, 5, (3, 3), rngs=rngs, **options)
            self.out = nnx.Linear(5, 3, rngs=rngs)

        def __call__(self, inputs):
            return self.out(jnp.mean(nnx.relu(self.conv(inputs)), axis=(1, 2)))

    return Tiny


@pytest.mark.slow
def test_a_flax_module_trains_with_our_convolution():
    nnx = pytest.importorskip("flax.nnx", reason="pip install '.[flax]'")
    tiny = flax_convolution(nnx)
    plain, ours = (
        from_flax(tiny(nnx.Rngs(0), **options)) for options in ({}, {"conv_general_dilated": conv_general_dilated})
    )
    images = np.random.default_rng(0).normal(size=(6, 7, 7, 2)).astype(np.float32)
    some = {"features": images, "label": np.arange(6, dtype=np.int32) % 3}
    params = plain.init(0)
    assert sorted(params) == ["conv", "out"]
    np.testing.assert_allclose(ours.logits(params, images), plain.logits(params, images), atol=1e-6)
    population = Ragged.of([some, some], ours.loss)
    run = simulate(fedavg(2, 3, 0.5), population, params, rounds=20, key=0, record=())
    assert float(jnp.mean(ours.loss(run.params, some))) < 0.9 * float(jnp.mean(ours.loss(params, some)))


def test_batch_norm_is_refused_with_a_hint():
    equinox, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")

    class Normed(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)

    with pytest.raises(ValueError, match=r"BatchNorm.*GroupNorm"):
        from_flax(Normed(nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"BatchNorm.*GroupNorm"):
        from_equinox(equinox.nn.Sequential([equinox.nn.BatchNorm(3, "batch", mode="ema")]))


@pytest.mark.parametrize(("name", "adapter"), [("torch", from_torch), ("equinox", from_equinox), ("flax", from_flax)])
def test_a_missing_framework_names_its_extra(monkeypatch, name, adapter):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        adapter(None)
