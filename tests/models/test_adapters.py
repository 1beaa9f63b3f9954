"""Modules of other frameworks as models: the same scores, the same iterates, batch normalization and dropout."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate, spam_pp
from fedspam.clients import BatchLoss
from fedspam.methods import fedavg
from fedspam.models import conv_general_dilated, from_equinox, from_flax, from_torch, mlp, own_statistics
from fedspam.solvers import GradientDescent

KEY = jax.random.key(0)


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
    assert not isinstance(model.loss, BatchLoss)  # training is prediction here, so the faster paths serve it
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


def flax_norm():
    nnx = pytest.importorskip("flax.nnx", reason="pip install '.[flax]'")

    class Normed(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, rows):
            return self.last(self.drop(nnx.relu(self.norm(self.first(rows)))))

    module = Normed(nnx.Rngs(0))

    def by_flax(rows):
        own = nnx.clone(module)
        own.drop.deterministic = True
        scores = own(rows)
        return scores, {"norm.mean": own.norm.mean[...], "norm.var": own.norm.var[...]}

    return lambda policy: from_flax(module, normalization=policy), by_flax


def equinox_norm():
    equinox = pytest.importorskip("equinox", reason="pip install '.[equinox]'")

    class Normed(equinox.Module):
        first: equinox.nn.Linear
        norm: equinox.nn.BatchNorm
        drop: equinox.nn.Dropout
        last: equinox.nn.Linear

        def __init__(self, key):
            first, last = jax.random.split(key)
            self.first, self.last = equinox.nn.Linear(4, 6, key=first), equinox.nn.Linear(6, 3, key=last)
            self.norm = equinox.nn.BatchNorm(6, "batch", mode="batch", momentum=0.9)
            self.drop = equinox.nn.Dropout(0.5)

        def __call__(self, row, state, key=None):
            hidden, state = self.norm(self.first(row), state)
            return self.last(self.drop(jax.nn.relu(hidden), key=key)), state

    module, state = equinox.nn.make_with_state(Normed)(jax.random.key(0))

    def by_equinox(rows):
        own = equinox.tree_at(lambda module: module.drop, module, equinox.nn.Dropout(0.0))
        begun = jax.tree.map(lambda leaf: leaf, state)
        scores, after = jax.vmap(own, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(rows, begun)
        mean, var = after.get(module.norm.batch_state_index)
        return scores, {"norm.mean": mean, "norm.var": var}

    return lambda policy: from_equinox(module, state, normalization=policy), by_equinox


frameworks = pytest.mark.parametrize("normed", [flax_norm, equinox_norm], ids=["flax", "equinox"])


@frameworks
def test_batch_norm_is_that_of_the_framework_over_real_rows(normed):
    build, framework = normed()
    with pytest.raises(ValueError, match="the network has batch normalization"):
        build(None)
    model, features = build("averaged"), jnp.asarray(rows(0, 6)["features"])
    own, statistics = model.init(0)["params"], model.init(0)["statistics"]
    due, after = framework(features)
    padded = jnp.concatenate([features, jnp.full((3, 4), 7.0)])
    scores, new = model.network.apply(own, statistics, padded, kept=jnp.arange(9) < 6, train=True)
    np.testing.assert_allclose(scores[:6], due, atol=1e-5)
    for name, leaf in after.items():
        np.testing.assert_allclose(new[name], leaf, atol=1e-6)
    _, alone = model.network.apply(own, None, features, train=True)  # Flax and Equinox keep a tenth of a batch
    np.testing.assert_allclose(new["norm.mean"], 0.1 * alone["norm.mean"], atol=1e-6)
    np.testing.assert_allclose(new["norm.var"], 0.9 + 0.1 * alone["norm.var"], atol=1e-6)
    _, one = model.network.apply(own, statistics, features[:1], train=True)
    np.testing.assert_array_equal(one["norm.var"], statistics["norm.var"])


@frameworks
def test_dropout_draws_from_the_key_in_training_alone(normed):
    model, features = normed()[0]("recalibrated"), jnp.asarray(rows(0, 6)["features"])
    own = model.init(0)["params"]
    trained = lambda key: model.network.apply(own, None, features, key=key, train=True)[0]
    keys = jax.random.split(jax.random.key(0))
    assert np.array_equal(trained(keys[0]), trained(keys[0]))
    assert not np.allclose(trained(keys[0]), trained(keys[1]))
    assert not np.allclose(trained(keys[0]), trained(None))
    draws = jax.vmap(trained)(jax.random.split(keys[1], 2000))
    # scores are linear in what dropout keeps, so their mean is that without it: within 5 standard errors
    error = jnp.std(draws, 0) / np.sqrt(2000)
    assert float(jnp.max(jnp.abs(jnp.mean(draws, 0) - trained(None)) / error)) < 5
    predicted, _ = model.network.apply(own, model.init(0)["statistics"], features, key=keys[0])
    np.testing.assert_allclose(predicted, model.logits(model.init(0), features), rtol=1e-6)


@frameworks
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["averaged", "recalibrated", "local", "group"])
def test_a_network_with_batch_norm_trains_under_every_policy(normed, policy):
    model = normed()[0](policy)
    clients = [rows(seed, count) for seed, count in enumerate([6, 9, 1])]
    for client in clients:
        client["features"] += 2 * np.eye(4, dtype=np.float32)[client["label"]]
    population = Ragged.of(clients, model.loss, batch=5)
    run = simulate(fedavg(3, 5, 0.1), population, model.init(0), rounds=20, key=0, record=())
    params = run.params
    if policy == "local":
        params = jax.tree.map(lambda leaf: leaf[0], own_statistics(params, population))
    assert sorted(model.network.norm_params())[0] == "norm.bias"
    assert float(jnp.mean(model.loss(params, jax.tree.map(jnp.asarray, clients[0])))) < 0.9 * np.log(3)  # of chance


def test_batch_norm_that_cannot_be_masked_is_refused():
    equinox, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")

    class Counter(nnx.Module):
        def __init__(self):
            self.seen = nnx.BatchStat(jnp.zeros(()))

    class Both(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.counter = nnx.BatchNorm(3, rngs=rngs), Counter()

    with pytest.raises(ValueError, match=r"counter keeps an nnx.BatchStat"):
        from_flax(Both(nnx.Rngs(0)), normalization="averaged")
    with pytest.raises(ValueError, match=r"mode='batch'"):
        from_equinox(equinox.nn.Sequential([equinox.nn.BatchNorm(3, "batch", mode="ema")]), normalization="averaged")


def test_equinox_layers_that_would_be_wrong_silently_are_refused():
    equinox = pytest.importorskip("equinox")

    class Layers(equinox.Module):
        part: equinox.Module

        def __init__(self, make):
            self.part = make()

        def __call__(self, row, state):
            return self.part(row, state)

    spectral = lambda: equinox.nn.SpectralNorm(equinox.nn.Linear(4, 3, key=KEY), "weight", key=KEY)
    with pytest.raises(ValueError, match=r"part.uv_index is state of another layer.*leave that layer out"):
        from_equinox(*equinox.nn.make_with_state(Layers)(spectral))
    norm = lambda axis: equinox.nn.make_with_state(Layers)(lambda: equinox.nn.BatchNorm(4, axis, mode="batch"))
    with pytest.raises(ValueError, match=r"several names, \['devices', 'rows'\]; give all the same"):
        from_equinox(*norm(("rows", "devices")), normalization="averaged")
    model = from_equinox(*norm(("rows",)), normalization="averaged")
    assert model.logits(model.init(0), jnp.ones((5, 4))).shape == (5, 4)


def test_equinox_dropout_that_gets_no_key_stays_off():
    equinox = pytest.importorskip("equinox")

    class Dropping(equinox.Module):
        layer: equinox.nn.Linear
        drop: equinox.nn.Dropout

        def __call__(self, row):
            return self.drop(self.layer(row))

    with pytest.warns(UserWarning, match="takes no key; give it one"):
        model = from_equinox(Dropping(equinox.nn.Linear(4, 3, key=KEY), equinox.nn.Dropout(0.5)))
    clients = Ragged.of([rows(0, 6)], model.loss, batch=2)
    run = simulate(fedavg(1, 2, 0.1), clients, model.init(0), rounds=1, key=0)
    assert run.status.ok


@pytest.mark.parametrize(("name", "adapter"), [("torch", from_torch), ("equinox", from_equinox), ("flax", from_flax)])
def test_a_missing_framework_names_its_extra(monkeypatch, name, adapter):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        adapter(None)
