"""FedPer: rounds by hand in NumPy, FedAvg as a special case, bytes of the shared part alone, personal accuracy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate
from fedspam.datasets import FederatedData
from fedspam.federation import ledger, loopback
from fedspam.methods import Epochs, fedavg, fedper
from fedspam.models import mlp
from fedspam.simulation import Evaluation, personal_models

pytestmark = pytest.mark.x64  # rounds by hand, to the last digits

CLIENTS, RATE = 4, 0.1
COHORTS = np.array([[0, 1], [1, 2], [0, 2]])  # client 3 is never asked
ROWS = np.random.default_rng(0).normal(size=(CLIENTS, 3, 3))
START = {"body": {"w": np.array([0.5, -1.0]), "b": np.array([0.2])}, "head": np.array([0.7])}


def loss(x, rows):
    return 0.5 * (x["head"] * (rows[:, :2] @ x["body"]["w"] + x["body"]["b"]) - rows[:, 2]) ** 2


@pytest.fixture(scope="module")
def clients():
    return Ragged.of(list(ROWS), loss)


@pytest.fixture(scope="module")
def start():
    return jax.tree.map(jnp.asarray, START)


@pytest.fixture(scope="module")
def run(clients, start):
    return simulate(fedper(2, 2, RATE, "head"), clients, start, rounds=3, key=0, replay={"cohort": COHORTS})


def by_hand():
    w, b, heads = START["body"]["w"], START["body"]["b"][0], np.full(CLIENTS, 0.7)
    for cohort in COHORTS:
        bodies = []
        for i in cohort:
            v, c, h = w, b, heads[i]
            a, target = ROWS[i, :, :2], ROWS[i, :, 2]
            for _ in range(2):
                feature = a @ v + c
                error = h * feature - target
                slopes = np.mean(error[:, None] * h * a, axis=0), np.mean(error * h), np.mean(error * feature)
                v, c, h = v - RATE * slopes[0], c - RATE * slopes[1], h - RATE * slopes[2]
            heads[i] = h
            bodies.append((v, c))
        w, b = np.mean([v for v, _ in bodies], axis=0), np.mean([c for _, c in bodies])
    return w, b, heads


def test_rounds_by_hand(run):
    w, b, heads = by_hand()
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12)
    close(run.params["body"]["w"], w)
    close(run.params["body"]["b"], [b])
    assert run.params["head"].tolist() == [0.7]  # the first head, which no client has trained
    close(run.memory["head"], heads[:, None])
    assert heads[3] == 0.7
    assert run.memory["body"] == {"w": None, "b": None}
    assert run.rows["gradients"].tolist() == [2 * 2] * 3

    own = personal_models(run.params, run.memory)
    close(own["head"], heads[:, None])
    close(own["body"]["w"], np.tile(w, (CLIENTS, 1)))
    close(own["body"]["b"], np.full((CLIENTS, 1), b))


def test_only_the_shared_part_is_sent_and_charged(run, clients, start):
    (exchange,) = run.plan.round
    assert (exchange.floats_down, exchange.floats_up) == (3, 3)
    sent = [leaf.shape for leaf in jax.tree.leaves((exchange.message["shared"], exchange.reply))]
    assert sorted(sent) == [(1,), (1,), (2,), (2,)]
    (whole,) = ledger.plan(fedavg(2, 2, RATE), start, clients).round
    assert (whole.floats_down, whole.floats_up) == (4, 4)
    assert exchange.bytes_up < whole.bytes_up


@pytest.mark.thorough  # compiles a second program
def test_messages_of_bytes_give_the_same(clients, start):
    method = fedper(2, 2, RATE, "head")
    state, fed = loopback.run(method, clients, start, rounds=3, key=7)
    drawn = simulate(method, clients, start, rounds=3, key=7)
    for one, other in zip(jax.tree.leaves(state.x), jax.tree.leaves(drawn.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert (fed.bytes_down, fed.bytes_up) == (drawn.rows["bytes_down"].sum(), drawn.rows["bytes_up"].sum())


@pytest.mark.parametrize("steps", [2, pytest.param(Epochs(2), marks=pytest.mark.thorough)])
def test_nothing_personal_is_fedavg(clients, start, steps):
    runs = [
        simulate(method, clients, start, rounds=3, key=0, replay={"cohort": COHORTS})
        for method in (fedper(2, steps, RATE, ()), fedavg(2, steps, RATE))
    ]
    for one, other in zip(jax.tree.leaves(runs[0].params), jax.tree.leaves(runs[1].params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not jax.tree.leaves(runs[0].memory)
    np.testing.assert_array_equal(runs[0].rows["gradients"], runs[1].rows["gradients"])


def test_heads_survive_a_checkpoint(run, clients, start, tmp_path):
    options = {"key": 0, "replay": {"cohort": COHORTS}, "folder": tmp_path / "run"}
    simulate(fedper(2, 2, RATE, "head"), clients, start, rounds=2, **options)
    again = simulate(fedper(2, 2, RATE, "head"), clients, start, rounds=3, resume=True, **options)
    np.testing.assert_array_equal(again.memory["head"], run.memory["head"])
    np.testing.assert_array_equal(again.params["body"]["w"], run.params["body"]["w"])


@pytest.mark.slow
def test_own_heads_serve_clients_that_disagree():
    """Half of the clients have the labels of the others swapped: no common model serves both, a common body does."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(4, 30, 2))
    labels = (inputs[..., 0] > 0) ^ (np.arange(4) % 2 == 1)[:, None]
    rows = [{"features": inputs[i].astype(np.float32), "label": labels[i].astype(np.int32)} for i in range(4)]
    data = FederatedData.of([(str(i), own) for i, own in enumerate(rows)])
    train, test = data.hold_out_examples(0.3)
    model = mlp(2, 2, hidden=(4,))
    clients, judge, start = train.population(model.loss), Evaluation.of(test, model.correct), model.init(0)
    averaged = simulate(fedavg(4, 5, 0.5), clients, start, rounds=30, key=0)
    run = simulate(fedper(4, 5, 0.5, "dense1.*"), clients, start, rounds=30, key=0)
    common = judge.per_client(averaged.params)["accuracy"]
    own = judge.personal(personal_models(run.params, run.memory))["accuracy"]
    assert np.mean(common) < 0.65
    assert np.min(own) > 0.85


@pytest.mark.parametrize(
    ("personal", "params", "message"),
    [
        ("head", jnp.ones(3), "they are one array without parts; give a tree"),
        ("tail", START, "'tail' matches no parameter; the model has body.b, body.w, head"),
        ("*", START, "matches every parameter, so that nothing would be shared; leave some out"),
    ],
)
def test_wrong_names_are_refused(clients, personal, params, message):
    with pytest.raises(ValueError, match=message):
        simulate(fedper(2, 2, RATE, personal), clients, params, rounds=1, key=0)


def test_wrong_numbers_and_memories_are_refused(run):
    with pytest.raises(ValueError, match="cohort_size = 0"):
        fedper(0, 2, RATE, "head")
    with pytest.raises(ValueError, match="local_rate"):
        fedper(2, 2, -RATE, "head")
    with pytest.raises(ValueError, match="local_steps = 0"):
        fedper(2, 0, RATE, "head")
    with pytest.raises(ValueError, match="must have one row per client; give run"):
        personal_models(run.params, ())
    with pytest.raises(ValueError, match="the memory and the parameters have different trees"):
        personal_models(run.params, {"tail": jnp.ones(4)})
