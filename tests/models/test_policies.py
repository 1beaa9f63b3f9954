"""What happens to running statistics under each policy, and that padding and drop-outs do not change them."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Evaluation, Ragged, auto, fedavg, simulate, spam_ppa
from fedspam.clients import Faults
from fedspam.datasets import FederatedData
from fedspam.methods import Epochs, fedadam, scaffold
from fedspam.methods.auto import _whole as whole_loss
from fedspam.models import from_torch, own_statistics, state_dict
from fedspam.solvers import GradientDescent

torch = pytest.importorskip("torch", reason="pip install '.[torch]'")
SIZES = (7, 5, 9)
GENERATOR = np.random.default_rng(0)
LABELS = [GENERATOR.integers(0, 3, count).astype(np.int32) for count in SIZES]
CLIENTS = [
    {"features": (GENERATOR.normal(size=(len(each), 4)) + 2 + np.eye(4)[each]).astype(np.float32), "label": each}
    for each in LABELS
]
DATA = FederatedData.of([(str(number), rows) for number, rows in enumerate(CLIENTS)])


def module(rate=0.0):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Dropout(rate), torch.nn.Linear(6, 3)
    )


def test_a_network_with_batch_norm_needs_a_policy():
    with pytest.raises(ValueError, match=r"batch normalization.*'averaged'.*'local'.*'recalibrated'.*'group'"):
        from_torch(module())
    with pytest.raises(ValueError, match=r"normalization = 'mean'"):
        from_torch(module(), normalization="mean")


@pytest.mark.parametrize("steps", [2, pytest.param(Epochs(1), marks=pytest.mark.slow)], ids=["steps", "epochs"])
def test_averaged_does_what_a_loop_in_pytorch_does(steps):
    """All rows in every step, so that no draw differs."""
    model = from_torch(module(), normalization="averaged")
    clients = Ragged.of(CLIENTS, model.loss, batch=20)
    run = simulate(fedavg(3, steps, 0.1), clients, model.init(0), rounds=2, key=0)
    server, count = module(), steps if isinstance(steps, int) else 1
    for _ in range(2):
        trained = []
        for rows in CLIENTS:
            own = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(own.parameters(), 0.1)
            for _ in range(count):
                optimizer.zero_grad()
                scores = own(torch.tensor(rows["features"]))
                torch.nn.functional.cross_entropy(scores, torch.tensor(rows["label"]).long()).backward()
                optimizer.step()
            trained.append(own.state_dict())
        server.load_state_dict({n: sum(one[n] for one in trained) / 3 for n in trained[0]})
    found = state_dict(model, run.params)
    for name, leaf in server.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(found[name], leaf, atol=1e-5, err_msg=name)
    # and plain PyTorch predicts the same with it
    plain = module().eval()
    plain.load_state_dict(found)
    inputs = CLIENTS[0]["features"]
    np.testing.assert_allclose(
        plain(torch.tensor(inputs)).detach(), model.logits(run.params, jnp.asarray(inputs)), atol=1e-5
    )


METHODS = {
    "fedavg": fedavg(3, 2, 0.1),
    "scaffold": scaffold(3, 2, 0.1),
    "spam_ppa": spam_ppa(3, 0.5, 0.3, solver=GradientDescent(steps=2, local_rate=0.1)),
    "auto": auto(3),
}


def at_once(model, params):
    """The statistics of all rows, client by client, from their means and variances by hand."""
    found = [model.network.apply(params, None, jnp.asarray(rows["features"]), train=True)[1] for rows in CLIENTS]
    share = np.array(SIZES) / sum(SIZES)
    means = np.stack([one["1.running_mean"] for one in found])
    second = np.stack([one["1.running_var"] for one in found]) + means**2
    mean = share @ means
    return mean, share @ second - mean**2


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_recalibrated_gives_every_method_the_statistics_of_all_rows(name):
    model = from_torch(module(0.2), normalization="recalibrated")
    clients = Ragged.of(CLIENTS, model.loss)
    judge = Evaluation.of(DATA, model.correct)
    run = simulate(METHODS[name], clients, model.init(0), rounds=2, key=0, probe=judge, record=())
    mean, var = at_once(model, run.params["params"])
    np.testing.assert_allclose(run.params["statistics"]["1.running_mean"], mean, atol=1e-5)
    np.testing.assert_allclose(run.params["statistics"]["1.running_var"], var, atol=1e-5)
    assert 0 <= run.probes["accuracy"][-1] <= 1
    assert "batch_moments" in str(run.plan)  # charged


@pytest.mark.parametrize("name", ["scaffold", pytest.param("auto", marks=pytest.mark.slow)])
def test_group_normalization_needs_no_statistics(name):
    model = from_torch(module(), normalization="group")
    clients = Ragged.of(CLIENTS, model.loss)
    run = simulate(METHODS[name], clients, model.init(0), rounds=2, key=0, record=())
    assert sorted(run.params) == ["0.bias", "0.weight", "1.bias", "1.weight", "4.bias", "4.weight"]
    assert model.logits(run.params, jnp.asarray(CLIENTS[0]["features"])).shape == (7, 3)


def test_local_statistics_are_those_of_each_clients_rows():
    model = from_torch(module(), normalization="local")
    clients = Ragged.of(CLIENTS, model.loss)
    run = simulate(METHODS["spam_ppa"], clients, model.init(0), rounds=2, key=0, record=())
    with pytest.raises(ValueError, match="own_statistics"):
        model.logits(run.params, jnp.asarray(CLIENTS[0]["features"]))
    own = own_statistics(run.params, clients)
    hidden = CLIENTS[1]["features"] @ np.asarray(run.params["0.weight"]).T + np.asarray(run.params["0.bias"])
    np.testing.assert_allclose(own["statistics"]["1.running_mean"][1], hidden.mean(0), atol=1e-5)
    np.testing.assert_allclose(own["statistics"]["1.running_var"][1], hidden.var(0), atol=1e-5)
    accuracies = Evaluation.of(DATA, model.correct).personal(own)["accuracy"]
    assert accuracies.shape == (3,)
    assert bool(jnp.all((accuracies >= 0) & (accuracies <= 1)))


@pytest.mark.parametrize("name", ["spam_ppa", "auto"])
def test_averaged_is_refused_where_statistics_would_not_move(name):
    model = from_torch(module(), normalization="averaged")
    clients = Ragged.of(CLIENTS, model.loss)
    with pytest.raises(ValueError, match=r"'averaged' moves running statistics in local steps.*'recalibrated'"):
        simulate(METHODS[name], clients, model.init(0), rounds=1, key=0)


@pytest.mark.parametrize(
    "method", [fedadam(2, 2, 0.1, server_step_size=0.1), scaffold(2, 2, 0.1, server_step_size=1.5)], ids=["adam", "1.5"]
)
def test_averaged_is_refused_where_the_server_does_not_average(method):
    model = from_torch(module(), normalization="averaged")
    clients = Ragged.of(CLIENTS, model.loss)
    with pytest.raises(ValueError, match="server that averages"):
        simulate(method, clients, model.init(0), rounds=1, key=0)


def test_padding_and_drop_outs_change_no_statistics():
    model = from_torch(module(), normalization="averaged")
    alone = Ragged.of(CLIENTS[:1], model.loss, batch=4)
    padded = Ragged.of([CLIENTS[0], CLIENTS[2]], model.loss, batch=4)
    method, one = fedavg(1, 3, 0.1), {"cohort": np.zeros((2, 1), int)}
    runs = [
        simulate(method, clients, model.init(0), rounds=2, key=0, replay=one).params["statistics"]
        for clients in (alone, padded)
    ]
    for name, leaf in runs[0].items():
        np.testing.assert_allclose(leaf, runs[1][name], atol=1e-6)
    silent = simulate(
        fedavg(3, 2, 0.1), Ragged.of(CLIENTS, model.loss), model.init(0), rounds=3, key=0, faults=Faults(dropout=0.5)
    )
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(silent.params))
    assert bool(jnp.all(silent.params["statistics"]["1.running_var"] > 0))


def test_a_client_with_one_row_keeps_its_running_variance():
    model = from_torch(module(), normalization="averaged")
    single = jax.tree.map(lambda column: column[:1], CLIENTS[0])
    run = simulate(fedavg(1, 2, 0.1), Ragged.of([single], model.loss), model.init(0), rounds=1, key=0)
    statistics = run.params["statistics"]
    np.testing.assert_array_equal(statistics["1.running_var"], np.ones(6))
    assert not np.array_equal(statistics["1.running_mean"], np.zeros(6))


def test_variance_reduction_draws_the_same_dropout_at_both_points():
    model = from_torch(module(0.5), normalization="recalibrated")
    clients = Ragged.of(CLIENTS, model.loss, batch=4)
    params, key = model.init(0)["params"], jax.random.key(1)
    gradient = jax.jit(lambda key: jax.grad(clients.client(jnp.uint32(0)))(params, key))
    same, again, other = gradient(key), gradient(key), gradient(jax.random.key(2))
    assert all(map(np.array_equal, jax.tree.leaves(same), jax.tree.leaves(again)))
    assert not np.array_equal(same["4.weight"], other["4.weight"])
    whole = jax.grad(clients.client(jnp.uint32(0)))(params, None)
    assert not np.array_equal(whole["4.weight"], same["4.weight"])


def test_whole_gradients_of_auto_draw_dropout_from_the_key_where_clients_draw_minibatches():
    key, other = jax.random.split(jax.random.key(1))
    model = from_torch(module(0.5), normalization="recalibrated")
    params = model.init(0)["params"]
    client = Ragged.of(CLIENTS, model.loss, batch=4).client(jnp.uint32(0))
    gradient = jax.jit(jax.grad(whole_loss(client)))
    same, again, different = gradient(params, key), gradient(params, key), gradient(params, other)
    assert all(map(np.array_equal, jax.tree.leaves(same), jax.tree.leaves(again)))
    assert not np.array_equal(same["4.weight"], different["4.weight"])
    # without dropout the key has no effect on a bit
    still = from_torch(module(0.0), normalization="recalibrated")
    gradient = jax.jit(jax.grad(whole_loss(Ragged.of(CLIENTS, still.loss, batch=4).client(jnp.uint32(0)))))
    for drawn, plain in zip(*(jax.tree.leaves(gradient(params, one)) for one in (key, other)), strict=True):
        np.testing.assert_array_equal(drawn, plain)
