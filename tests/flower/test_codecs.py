"""Codecs over Flower: the iterates and bytes of a simulation, and damage that is refused."""

import functools
import logging

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from fedspam import simulate, spam_pp
from fedspam.federation.codecs import Quantize
from fedspam.methods import ef21_pp, fedavg, scaffold
from fedspam.problems import quadratics
from fedspam.simulation import records
from fedspam.solvers import GradientDescent

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import RecordDict

from fedspam.flower import (
    FedspamStrategy,
    LoopbackGrid,
    Replies,
    client_app,
    clients_of,
    to_arrays,
    to_params,
    torch_app,
    torch_params,
)
from fedspam.flower.privacy.mods import clipping_mod
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.flower.wire import envelope

pytestmark = pytest.mark.x64  # a code flips where rounding decides it: rarely in float64

CLIENTS, ROUNDS, D = 5, 3, 70
POPULATION = quadratics(0, clients=CLIENTS, dimension=D, delta=0.5)
FIRST = jnp.ones(D)
BOTH = {"up": Quantize(8), "down": Quantize(8)}
METHODS = {
    "spam_pp": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(steps=2, smoothness=2.0)),
    "fedavg": fedavg(3, 2, 0.02),
}


@pytest.fixture(autouse=True)
def logs(caplog):
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def go(method, codecs=BOTH, theirs=None, *, rounds=ROUNDS, twist=None, mods=None, **options):
    app = client_app(clients_of(POPULATION), method, FIRST, codecs=theirs or codecs, mods=mods)
    grid = LoopbackGrid(app, CLIENTS, twist=twist)
    strategy = FedspamStrategy(method, FIRST, seed=7, codecs=codecs, min_available_nodes=CLIENTS, **options)
    result = strategy.start(grid, to_arrays(FIRST), rounds, 5.0)
    return to_params(result.arrays, FIRST), result.train_metrics_clientapp


@functools.cache
def simulated(name):
    return simulate(METHODS[name], POPULATION, FIRST, rounds=ROUNDS, key=7, codecs=BOTH)


@pytest.mark.slow
def test_clients_remember_the_errors_of_their_codec():
    method, codecs = scaffold(3, 2, 0.02), {"up": "feedback-topk-0.2"}
    params, _ = go(method, codecs, replies=Replies(retries=0))
    run = simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7, codecs=codecs)
    np.testing.assert_allclose(params, run.params, rtol=1e-12, atol=1e-12)
    plain = simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7, codecs={"up": "topk-0.2"})
    assert float(jnp.abs(run.params - plain.params).max()) > 1e-3


@pytest.mark.slow
def test_the_server_remembers_the_errors_of_its_messages():
    method, codecs = METHODS["fedavg"], {"down": "feedback-topk-0.2"}
    params, rows = go(method, codecs, replies=Replies(retries=0))
    run = simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7, codecs=codecs)
    np.testing.assert_allclose(params, run.params, rtol=1e-12, atol=1e-12)
    assert [rows[k + 1]["bytes_down"] for k in range(ROUNDS)] == run.rows["bytes_down"].tolist()


@pytest.mark.slow
def test_clients_remember_what_arrived():
    """The memory of EF21-PP depends on the codes of its reply."""
    method, codecs = ef21_pp(3, 0.1), {"up": "topk-0.2"}
    params, rows = go(method, codecs, replies=Replies(retries=0))
    run = simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7, codecs=codecs)
    np.testing.assert_allclose(params, run.params, rtol=1e-12, atol=1e-12)
    assert [rows[k + 1]["bytes_up"] for k in range(ROUNDS)] == run.rows["bytes_up"].tolist()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_the_iterates_and_the_bytes_are_those_of_the_simulation(name):
    params, rows = go(METHODS[name])
    np.testing.assert_allclose(params, simulated(name).params, rtol=1e-12, atol=1e-12)
    for way in ("bytes_up", "bytes_down"):
        assert [rows[k + 1][way] for k in range(ROUNDS)] == simulated(name).rows[way].tolist()


def test_lost_clients_and_damaged_codes_change_no_number(logs):
    """One byte of a reply flips: it is refused, and whoever replaces the client holds the very same fields."""
    flipped = []

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train.prox" and len(flipped) < 2:
            fields = dict(safetensors.numpy.load(envelope.enclosed(reply.content)))
            codes = fields["reply.x"].copy()
            codes[len(flipped) * 40] ^= 4  # in a scale, then in a code
            flipped.append(client)
            damaged = envelope.enclose(safetensors.numpy.save({**fields, "reply.x": codes}))
            reply.content = RecordDict({**reply.content, "arrays": damaged})
        return [reply]

    params, rows = go(METHODS["spam_pp"], twist=twist, rounds=1, replies=Replies(retries=3))
    assert len(flipped) == 2
    assert logs.text.count("the checksum of the codes is wrong") == 2
    assert rows[1]["prox.accepted"] == 1
    assert np.all(np.isfinite(params))


def test_other_codecs_on_a_client_are_refused_in_words():
    with pytest.raises(RuntimeError, match=r"codecs.*on the server"):
        go(METHODS["fedavg"], theirs={"up": Quantize(4), "down": Quantize(8)}, rounds=1)


@pytest.mark.slow
def test_a_resumed_run_must_have_its_codecs(tmp_path):
    params, _ = go(METHODS["fedavg"], folder=tmp_path)
    np.testing.assert_allclose(params, simulated("fedavg").params, rtol=1e-12, atol=1e-12)
    with pytest.raises(records.RecordError, match="codecs"):
        go(METHODS["fedavg"], {"up": Quantize(8)}, folder=tmp_path, resume=True)


def test_codes_are_neither_summed_securely_nor_clipped(logs):
    with pytest.raises(ValueError, match="do not add"):
        go(METHODS["spam_pp"], secure=SecureSum(in_clear=("train.prox",)))
    with pytest.raises(RuntimeError, match="cannot be clipped, noised or masked"):
        go(
            METHODS["fedavg"],
            mods=[clipping_mod(1.0, works=("train",))],
            rounds=1,
            replies=Replies(patience=1, retries=0),
        )


@pytest.mark.slow
def test_clients_in_pytorch_compress_alike():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(40, 2).to(torch.float64)
    rows = lambda client: (torch.randn(6, 40, generator=torch.manual_seed(client)), torch.zeros(6, dtype=torch.int64))
    loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    loader = lambda client, count: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(client)), 6)
    first, method = torch_params(module), METHODS["fedavg"]
    app = torch_app(lambda: module, loss, loader, method, codecs=BOTH)
    strategy = FedspamStrategy(method, first, codecs=BOTH, min_available_nodes=3)
    result = strategy.start(LoopbackGrid(app, 3), to_arrays(first), 1, 5.0)
    row = result.train_metrics_clientapp[1]
    plain = 8 * (80 + 2)
    assert row["train.accepted"] == 3
    assert row["bytes_up"] < 3 * plain  # 80 weights at one byte each, two biases as they are, headers
