"""Twenty clients of which five send garbage, in each stage of a run with secure sums: the others' model comes out."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.privacy.secure_client import KEYS, SHARES, UNMASK, SecureSum
from fedspam.flower.server.events import LOG_FILE
from fedspam.methods import mvr
from fedspam.problems import quadratics

CLIENTS, LIARS, ROUNDS, DIMENSION = 20, range(5), 2, 4
STAGES = ("query.whoami", KEYS, SHARES, "train.difference", UNMASK, "evaluate")
FIRST = np.ones(DIMENSION, np.float32)
POPULATION = quadratics(0, clients=CLIENTS, dimension=DIMENSION)
METHOD = mvr(CLIENTS, step_size=0.1, fresh_weight=1.0, start="zero", first="update")  # g is the mean gradient
SECURE = SecureSum(in_clear=("evaluate",))


def other(value, draw):
    """Something else than this entry of a record."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [draw.randbytes(len(one)) for one in value]
    if isinstance(value, list):
        return [-(2**63)] * len(value)
    return draw.randbytes(len(value)) if isinstance(value, bytes) else "\x1b[31m\nfedspam: all is well"


def spoil(reply, kind, draw):
    """Garbage of one of five kinds in place of a reply."""
    content = reply.content
    if kind == 0:
        content.clear()
    for name, record in [*content.items()]:
        if isinstance(record, ConfigRecord):
            changed = {entry: other(value, draw) for entry, value in record.items()}
            content[name] = ConfigRecord(changed if kind != 1 else dict.fromkeys(record, ""))
        elif isinstance(record, MetricRecord):
            content[name] = MetricRecord({entry: [-1e300, 10**400, float("nan")][kind % 3] for entry in record})
        else:
            data = draw.randbytes(40) if kind == 2 else next(iter(record.values())).data[: -kind * 9]
            content[name] = ArrayRecord({"fields": Array("uint8", (len(data),), "safetensors", data)})
    if kind == 4:
        content["more"] = ConfigRecord({"text": "long " * 100_000})


def lies(stage):
    draw = random.Random(0)

    def twist(client, message, answer):
        reply = answer()
        if client in LIARS and message.metadata.message_type == stage:
            spoil(reply, client, draw)
        return [reply]

    return twist


def model_of(counted):
    """The model after all rounds in which the gradients of these clients count."""
    x = jnp.asarray(FIRST)
    for _ in range(ROUNDS):
        x = x - 0.1 * jnp.mean(jnp.stack([jax.grad(POPULATION.client(jnp.uint32(id)))(x) for id in counted]), axis=0)
    return x


@pytest.mark.parametrize("stage", STAGES)
def test_five_of_twenty_send_garbage(stage, tmp_path):
    app = client_app(clients_of(POPULATION), METHOD, FIRST, secure=SECURE)
    strategy = FedspamStrategy(
        METHOD, FIRST, secure=SECURE, fraction_evaluate=1.0, min_available_nodes=15, folder=tmp_path,
        replies=Replies(quorum=0.7, retries=1),
    )  # fmt: skip
    grid = LoopbackGrid(app, CLIENTS, twist=lies(stage))
    result = strategy.start(grid, to_arrays(FIRST), ROUNDS, timeout=30)

    honest = [id for id in range(CLIENTS) if id not in LIARS]
    counted = range(CLIENTS) if stage in (UNMASK, "evaluate") else honest  # their gradients had arrived by then
    x = model_of(counted)
    assert [result.train_metrics_clientapp[k]["void"] for k in range(1, ROUNDS + 1)] == [0] * ROUNDS
    np.testing.assert_allclose(result.arrays["params"].numpy(), x, rtol=1e-5, atol=1e-6)
    judges = honest if stage in ("query.whoami", "evaluate") else range(CLIENTS)
    losses = [float(POPULATION.client(jnp.uint32(id))(x)) for id in judges]
    assert result.evaluate_metrics_clientapp[ROUNDS]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)

    events = [json.loads(line) for line in (tmp_path / LOG_FILE).read_text().splitlines()]
    if stage == "query.whoami":  # no client is known by then
        nodes = [*grid.contexts]
        refused = [line for line in events if line["event"] == "node" and line["outcome"] != "accepted"]
        named = {nodes.index(int(line["node"])) for line in refused}
    else:
        exchanges = [line for line in events if line["event"] == "exchange"]
        named = {failure["client"] for line in exchanges for failure in line["failures"]}
    assert named == set(LIARS)
