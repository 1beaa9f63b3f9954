"""Flower apps as they are under the methods of this package: only the server's strategy changes."""

import importlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate
from fedspam.federation.aggregation import Median
from fedspam.methods import (
    auto,
    fedacg,
    fedadam,
    fedavg,
    fedavgm,
    fedexp,
    fednova,
    fedprox,
    fedyogi,
    scaffold,
    spam_pp,
)  # fmt: skip
from fedspam.problems import quadratics

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, own_training
from fedspam.flower.privacy.secure_client import SecureSum

CLIENTS, STEPS, RATE = 5, 3, 0.1
POPULATION = quadratics(0, clients=CLIENTS, dimension=4)
FIRST = np.ones(4, np.float32)
RUN = {
    "numpy_app": {},
    "pytorch_app": {"batch-size": 32, "local-epochs": 1},
    "sklearn_app": {"penalty": "l2"},
}
FIVE = {
    "fedavg": own_training(fedavg, 2, weighted=True),
    "fedadam": own_training(fedadam, 2, server_step_size=0.01),
    "fednova": own_training(fednova, 2),
    "fedexp": own_training(fedexp, 2),
    "fedacg": own_training(fedacg, 2, momentum=0.5),
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def app_of(client_examples=lambda client: 10 + client, *, change=lambda client, y: y, prox=False):
    """An app in NumPy whose clients make gradient steps on quadratics, as the authors of an app would write it."""
    app = ClientApp()

    @app.train()
    def train(msg, context):
        client = context.node_config["partition-id"]
        x, oracle = msg.content["arrays"]["w"].numpy(), POPULATION.client(jnp.uint32(client))
        y, mu = x, msg.content["config"]["proximal-mu"] if prox else 0.0
        for _ in range(STEPS):
            y = y - RATE * (np.asarray(jax.grad(oracle)(y)) + mu * (y - x))
        metrics = {"loss": float(oracle(y)), "num-examples": client_examples(client), "steps": STEPS}
        content = {"arrays": ArrayRecord({"w": _array(change(client, y))}), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=msg)

    return app


def _array(value):
    from flwr.app import Array

    return Array(np.asarray(value))


def go(method, app=None, rounds=4, clients=CLIENTS, **options):
    grid = LoopbackGrid(app_of() if app is None else app, clients)
    strategy = FedspamStrategy(method, seed=3, **options)
    result = strategy.start(grid, ArrayRecord({"w": _array(FIRST)}), rounds, 5.0)
    return result.arrays["w"].numpy(), result, grid


@pytest.mark.slow
@pytest.mark.parametrize("method", FIVE)
@pytest.mark.parametrize("name", RUN)
def test_a_quickstart_app_of_flower_trains_with_only_the_strategy_changed(name, method):
    app = importlib.import_module(f"quickstarts.{name}")
    grid, first = LoopbackGrid(app.app, 2, run_config=RUN[name]), app.first()
    strategy = FedspamStrategy(FIVE[method], fraction_evaluate=1.0)
    result = strategy.start(grid, first, 2, train_config=ConfigRecord({"lr": 0.1}))
    assert [(key, array.shape, array.dtype) for key, array in result.arrays.items()] == [
        (key, array.shape, array.dtype) for key, array in first.items()
    ]
    assert not all(np.array_equal(result.arrays[key].numpy(), first[key].numpy()) for key in first)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2]
    reported = {"numpy_app": "random_metric", "pytorch_app": "train_loss", "sklearn_app": "train_logloss"}[name]
    assert np.isfinite(result.train_metrics_clientapp[2][reported])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (fedavg, {}),
        (fedavgm, {"momentum": 0.5}),
        (fedadam, {"server_step_size": 0.1}),
        (fedyogi, {"server_step_size": 0.1}),
        (fedexp, {"damping": 0.01}),
        (fednova, {"weighted": False}),
        (fedacg, {"step_size": float("inf")}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_iterates_are_those_of_the_simulator_on_the_same_local_steps(build, settings):
    found, _, _ = go(own_training(build, 3, **settings, steps_key="steps"))
    run = simulate(build(3, local_steps=STEPS, local_rate=RATE, **settings), POPULATION, FIRST, rounds=4, key=3)
    np.testing.assert_allclose(found, run.params, rtol=1e-5, atol=1e-6)


def test_fedprox_tells_its_clients_how_strong_their_prox_is():
    found, _, grid = go(own_training(fedprox, 3, step_size=0.5), app_of(prox=True))
    assert {message.content["config"]["proximal-mu"] for message in grid.messages} == {2.0}
    run = simulate(fedprox(3, 0.5, local_steps=STEPS, local_rate=RATE), POPULATION, FIRST, rounds=4, key=3)
    np.testing.assert_allclose(found, run.params, rtol=1e-5, atol=1e-6)


def test_with_all_clients_it_is_flowers_own_fedavg():
    theirs = FedAvg(fraction_evaluate=0.0).start(
        LoopbackGrid(app_of(), CLIENTS), ArrayRecord({"w": _array(FIRST)}), num_rounds=4
    )
    found, ours, _ = go(own_training(fedavg, CLIENTS, weighted=True))
    np.testing.assert_allclose(found, theirs.arrays["w"].numpy(), rtol=1e-5, atol=1e-6)
    for round in range(1, 5):  # and so are the means of what clients report
        np.testing.assert_allclose(
            ours.train_metrics_clientapp[round]["loss"], theirs.train_metrics_clientapp[round]["loss"], rtol=1e-4
        )


def test_a_robust_rule_is_flowers_own_median():
    wrong = lambda client, y: y + 1e6 if client == 4 else y
    theirs = FedMedian(fraction_evaluate=0.0).start(
        LoopbackGrid(app_of(change=wrong), CLIENTS), ArrayRecord({"w": _array(FIRST)}), num_rounds=3
    )
    found, _, _ = go(own_training(fedavg, CLIENTS), app_of(change=wrong), 3, aggregate=Median())
    np.testing.assert_allclose(found, theirs.arrays["w"].numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_fednova_divides_moves_by_the_steps_or_by_the_examples():
    """The client with twice the examples has made twice the steps, in passes over its rows."""
    by_examples, result, _ = go(own_training(fednova, CLIENTS))
    by_steps, _, _ = go(own_training(fednova, CLIENTS, steps_key="num-examples"))
    assert np.array_equal(by_examples, by_steps)
    assert result.train_metrics_clientapp[1]["effective_steps"] == pytest.approx(
        np.average(np.arange(10, 15), weights=np.arange(10, 15)), rel=1e-6
    )
    with pytest.raises(ValueError, match="give the name of that metric as steps_key"):
        own_training(fednova, CLIENTS, momentum=0.9)
    go(own_training(fednova, CLIENTS, momentum=0.9, steps_key="steps"))


@pytest.mark.slow
def test_auto_damps_and_averages_the_moves_of_the_clients():
    start = float(jnp.linalg.norm(POPULATION.gradient(FIRST)))
    found, result, _ = go(own_training(auto, CLIENTS), rounds=20)
    assert float(jnp.linalg.norm(POPULATION.gradient(jnp.asarray(found)))) < 0.3 * start
    assert result.train_metrics_clientapp[20]["damping"] <= 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda client, y: np.full_like(y, np.nan), "NaN or infinity"),
        (lambda client, y: y[:2], "in the shape"),
        (lambda client, y: np.ones(4, np.int64), "whole numbers"),
        (lambda client, y: np.full_like(y, 1e30), "squares overflow"),
    ],
    ids=["nan", "shape", "integers", "overflow"],
)
def test_a_bad_reply_is_named_and_changes_nothing(bad, reason, caplog):
    caplog.set_level(logging.INFO, "flwr")
    broken = app_of(change=lambda client, y: bad(client, y) if client == 2 else y)
    replies = Replies(quorum=0.5, retries=0)
    found, result, _ = go(own_training(fedavg, CLIENTS), broken, 1, replies=replies)
    assert f"client 2: {reason}" in caplog.text or reason in caplog.text
    assert result.train_metrics_clientapp[1]["train.accepted"] == CLIENTS - 1
    assert np.isfinite(found).all()


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    method = own_training(fedadam, 3, server_step_size=0.1)
    whole, _, _ = go(method, rounds=5)
    go(method, rounds=2, folder=tmp_path)
    resumed, _, _ = go(method, rounds=5, folder=tmp_path, resume=True)
    assert np.array_equal(whole, resumed)


def test_counters_of_batch_norm_stay_and_its_statistics_are_averaged():
    app = ClientApp()

    @app.train()
    def train(msg, context):
        given = msg.content["arrays"]
        assert given["batches"].dtype == "int64"
        trained = {"w": _array(given["w"].numpy() + 1), "batches": _array(given["batches"].numpy() + 7)}
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=msg)

    first = ArrayRecord({"w": _array(FIRST), "batches": _array(np.array(5))})
    result = FedspamStrategy(own_training(fedavg, 2)).start(LoopbackGrid(app, 2), first, 3)
    assert result.arrays["batches"].numpy() == 5
    assert np.allclose(result.arrays["w"].numpy(), 4)


def test_what_an_app_cannot_give_is_said_before_the_start():
    with pytest.raises(ValueError, match="spam_pp asks its clients for more than local training"):
        own_training(spam_pp, 3, step_size=0.5, fresh_weight=0.3)
    with pytest.raises(ValueError, match="local_steps = 5: the clients train by code of their own"):
        own_training(fedavg, 3, local_steps=5)
    with pytest.raises(ValueError, match="correct each of their steps"):
        go(own_training(scaffold, 3))
    with pytest.raises(ValueError, match="secure sum and codecs need clients of this package"):
        FedspamStrategy(own_training(fedavg, 3), secure=SecureSum(works=("train",), fraction_bits=20))
    with pytest.raises(ValueError, match="no local steps of its own"):
        simulate(own_training(fedavg, 3), POPULATION, FIRST, rounds=1, key=0)


def test_an_app_of_this_package_is_named(caplog):
    method = fedavg(2, 3, 0.1)
    app = client_app(clients_of(POPULATION), method, FIRST)
    with pytest.raises(RuntimeError, match="leave own_training out"):
        go(own_training(fedavg, 2), app)
