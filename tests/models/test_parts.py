"""Training a part of the parameters: only it moves, only it is charged, and the whole can be had again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import fedavg, simulate
from fedspam.datasets import FederatedData
from fedspam.models import from_torch, lora, merged, mlp, train_part

GENERATOR = np.random.default_rng(0)
DATA = FederatedData.by(
    {"features": GENERATOR.normal(size=(60, 6)).astype(np.float32), "label": GENERATOR.integers(0, 3, 60)},
    np.repeat(np.arange(4), 15),
)
MODEL = mlp(6, 3, hidden=(8,))
BASE = MODEL.init(1)
ROWS = DATA.examples


def train(model, rounds=3):
    method = fedavg(4, local_steps=2, local_rate=0.1)
    return simulate(method, DATA.population(model.loss), model.init(0), rounds=rounds, key=0)


@pytest.mark.slow
def test_a_part_has_its_gradient_and_its_price():
    part = train_part(MODEL, BASE, "dense1.*")
    mean = lambda model: lambda params: jnp.mean(model.loss(params, ROWS))
    whole, own = jax.grad(mean(MODEL))(BASE), jax.grad(mean(part))(part.init(0))
    for name in ("bias", "kernel"):
        np.testing.assert_allclose(own[f"dense1.{name}"], whole["dense1"][name], rtol=1e-5, atol=1e-7)
    run, full = train(part), train(MODEL)
    found = merged(part, run.params)
    assert jax.tree.structure(found) == jax.tree.structure(BASE)
    np.testing.assert_array_equal(found["dense0"]["kernel"], BASE["dense0"]["kernel"])
    assert np.abs(found["dense1"]["kernel"] - BASE["dense1"]["kernel"]).max() > 1e-3
    np.testing.assert_allclose(
        MODEL.logits(found, ROWS["features"]), part.logits(run.params, ROWS["features"]), rtol=1e-6
    )
    floats = lambda run: run.rows["floats_up"][0]
    assert floats(run) == 4 * (8 * 3 + 3)
    assert floats(full) == 4 * (6 * 8 + 8 + 8 * 3 + 3)


@pytest.mark.slow
def test_adapters_start_at_the_base_and_can_be_merged():
    adapted = lora(MODEL, BASE, rank=2, scale=3.0)
    first = adapted.init(0)
    assert {name: leaf.shape for name, leaf in first.items()} == {
        "dense0.kernel.down": (6, 2),
        "dense0.kernel.up": (2, 8),
        "dense1.kernel.down": (8, 2),
        "dense1.kernel.up": (2, 3),
    }
    np.testing.assert_array_equal(adapted.logits(first, ROWS["features"]), MODEL.logits(BASE, ROWS["features"]))
    run = train(adapted)
    found = merged(adapted, run.params)
    change = np.asarray(found["dense0"]["kernel"] - BASE["dense0"]["kernel"])
    by_hand = 3.0 / 2 * np.asarray(run.params["dense0.kernel.down"]) @ np.asarray(run.params["dense0.kernel.up"])
    np.testing.assert_allclose(change, by_hand, atol=1e-6)
    assert np.linalg.matrix_rank(change, tol=1e-4) == 2
    assert run.rows["floats_up"][0] == 4 * sum(leaf.size for leaf in first.values())


@pytest.mark.slow
def test_a_pytorch_module_is_adapted_over_flower():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")
    from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, clients_with, to_arrays, to_params

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    model = from_torch(module)
    adapted = lora(model, model.init(0), rank=2, names="*.weight")
    first = adapted.init(0)
    method = fedavg(2, local_steps=1, local_rate=0.5)
    rows_of = lambda client: jax.tree.map(
        lambda column: jnp.asarray(column[15 * client : 15 * client + 15]), dict(ROWS)
    )
    app = client_app(clients_with(adapted.loss, rows_of), lambda context: method, lambda context: first)
    strategy = FedspamStrategy(method, first, fraction_train=1.0, min_train_nodes=2)
    result = strategy.start(LoopbackGrid(app, clients=2), to_arrays(first), num_rounds=2, timeout=60)
    params = to_params(result.arrays, first)
    assert sorted(params) == [f"{layer}.weight.{side}" for layer in (0, 2) for side in ("down", "up")]
    state = {name: torch.from_numpy(np.array(leaf)) for name, leaf in merged(adapted, params).items()}
    module.load_state_dict(state)  # plain PyTorch has the adapters in its weights
    with torch.no_grad():
        scores = module(torch.from_numpy(ROWS["features"])).numpy()
    np.testing.assert_allclose(scores, adapted.logits(params, ROWS["features"]), rtol=1e-4, atol=1e-5)
    assert np.abs(scores - np.asarray(model.logits(model.init(0), ROWS["features"]))).max() > 1e-3


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: train_part(MODEL, BASE, "out.*"), r"'out\.\*' matches no parameter; the model has dense0\.bias"),
        (lambda: lora(MODEL, BASE, names="*.bias"), r"matches no matrix"),
        (lambda: lora(MODEL, BASE, rank=3), r"rank = 3 must be smaller than both sides of dense1\.kernel"),
        (lambda: lora(MODEL, BASE, rank=0), r"rank = 0"),
        (lambda: merged(MODEL, BASE), r"trains all of its parameters"),
    ],
)
def test_what_cannot_be_a_part_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()
