"""Federations of many nodes: the start asks nobody, and a node introduces itself with its first reply."""

import dataclasses
import functools
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, spam_pp
from fedspam.methods import scaffold
from fedspam.problems import synthetic_logistic
from fedspam.simulation import records, restore
from fedspam.solvers import GradientDescent

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import Error, Message

from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays, to_params
from fedspam.flower.client.app import partition_of
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.flower.server.nodes import FILE

CLIENTS, ROUNDS = 6, 3
POPULATION = synthetic_logistic(0, clients=CLIENTS, dimension=4)
FIRST = jnp.ones(4)
METHOD = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(steps=3, smoothness=2.0))
MEMORY = scaffold(3, 2, 0.2)
ORDER = [4, 0, 5, 2, 1, 3]  # the partition ids of nodes, by the order of their registration


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


@functools.cache
def the_app(method=METHOD):
    return client_app(clients_of(POPULATION), method, FIRST)


def nodes(order=tuple(range(CLIENTS)), **more):
    return [{"partition-id": id, "num-partitions": CLIENTS, **more} for id in order]


def go(
    method=METHOD,
    *,
    grid=None,
    app=None,
    order=tuple(range(CLIENTS)),
    twist=None,
    timeout=5.0,
    rounds=ROUNDS,
    **options,
):
    options = {"introductions": 0, "seed": 7, **options}
    grid = LoopbackGrid(app or the_app(method), nodes(order), twist=twist) if grid is None else grid
    result = FedspamStrategy(method, FIRST, **options).start(grid, to_arrays(FIRST), rounds, timeout)
    return np.asarray(to_params(result.arrays, FIRST)).tobytes(), grid, result


def kinds(grid):
    return {message.metadata.message_type for message in grid.messages}


@pytest.mark.parametrize("method", [METHOD, MEMORY], ids=["spam_pp", "scaffold"])
@pytest.mark.slow
def test_without_introductions_the_bits_are_the_same(method):
    """Nodes that registered in the order of their partition ids, as in Flower's simulation."""
    bits, grid, _ = go(method)
    assert "query.whoami" not in kinds(grid)
    asked, with_introductions, _ = go(method, introductions=CLIENTS)
    assert "query.whoami" in kinds(with_introductions)
    assert bits == asked
    expected = simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7).params
    np.testing.assert_allclose(np.frombuffer(bits, np.float32), expected, rtol=1e-5)


@pytest.mark.parametrize("method", [METHOD, MEMORY], ids=["spam_pp", "scaffold"])
def test_in_another_order_clients_are_numbered_by_the_server(method):
    """Client i is then the i-th node, whatever its partition: the run is that of the clients in this order."""
    reordered = client_app(lambda context: POPULATION.client(jnp.uint32(ORDER[partition_of(context)])), method, FIRST)
    assert go(method, order=ORDER)[0] == go(method, app=reordered)[0]


@pytest.mark.slow
def test_the_start_does_not_depend_on_the_number_of_nodes():
    """A thousand nodes: the first message of all is one of training, and only cohorts are ever asked."""
    population = synthetic_logistic(0, clients=8, dimension=4)
    app = client_app(lambda context: population.client(jnp.uint32(partition_of(context) % 8)), METHOD, FIRST)
    grid = LoopbackGrid(app, 1000)
    _, _, result = go(grid=grid, introductions=100)
    asked = [metrics["difference.asked"] for metrics in result.train_metrics_clientapp.values()]
    assert asked == [3] * ROUNDS
    assert grid.messages[0].metadata.message_type == "train.starting_gradient"
    assert len(grid.messages) == 3 + ROUNDS * (3 + 1)


# faults


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        (nodes([0, 1, 1, 1, 1, 1]), "partition-id = 1 is taken by client"),
        ([*nodes([0, 1, 2]), *({"partition-id": id, "num-partitions": 7} for id in (3, 4, 5))], "num-partitions = "),
        ([{"partition-id": 9, "num-partitions": CLIENTS}] * CLIENTS, "below num-partitions = 6"),
    ],
)
def test_nodes_that_cannot_take_part_are_refused_with_their_first_reply(configs, reason):
    app = client_app(lambda context: POPULATION.client(jnp.uint32(partition_of(context) % CLIENTS)), METHOD, FIRST)
    with pytest.raises(RuntimeError, match=reason):
        go(grid=LoopbackGrid(app, configs), timeout=0.1, replies=Replies(retries=0, patience=1))


def test_a_client_with_another_method_says_what_differs():
    other = dataclasses.replace(METHOD, solver=GradientDescent(steps=4, smoothness=2.0))
    with pytest.raises(RuntimeError, match=r"solver\.steps is 3 on the server, 4 on the client"):
        go(app=the_app(other))


@pytest.mark.parametrize("method", [METHOD, MEMORY], ids=["spam_pp", "scaffold"])
@pytest.mark.slow
def test_a_node_that_comes_back_is_the_same_client_again(method):
    """It has another node id, and is recognized by its partition id."""
    grid, again = LoopbackGrid(the_app(method), nodes(ORDER)), []

    def restarted(client, message, answer):
        node = message.metadata.dst_node_id
        reply = answer()
        if len(grid.messages) == 5:
            context = grid.contexts.pop(node)
            again.append(node + 5000)
            grid.contexts[again[0]] = dataclasses.replace(context, node_id=again[0])
            grid._clients[again[0]] = client
            return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]
        return [reply]

    grid._twist = restarted
    *_, result = go(method, grid=grid, rounds=8)
    assert not any(metrics["void"] for metrics in result.train_metrics_clientapp.values())
    asked = [message.metadata.message_type for message in grid.messages if message.metadata.dst_node_id == again[0]]
    assert asked[0] == "query.whoami"


# resume


class KilledError(BaseException):
    """The server dies here."""


class Dying(LoopbackGrid):
    """A grid whose server dies when it sends for the n-th time."""

    left = 0

    def push_messages(self, messages):
        self.left -= 1
        if self.left < 0:
            raise KilledError
        return super().push_messages(messages)


@pytest.mark.parametrize("method", [METHOD, MEMORY], ids=["spam_pp", "scaffold"])
@pytest.mark.parametrize(
    ("first", "order"), [(1000, ORDER), (5000, range(CLIENTS))], ids=["the same nodes", "new node ids"]
)
@pytest.mark.slow
def test_a_killed_server_resumes_to_the_same_bits(method, first, order, tmp_path):
    """Under new node ids, clients are found by their partition ids, those that have not been asked yet in order."""
    expected = go(method, order=order)[0]
    for number in (1, 2):
        disk = {"memory-folder": str(tmp_path / f"disk{number}")}
        grid = Dying(the_app(method), nodes(order, **disk))
        grid.left = number
        with pytest.raises(KilledError):
            go(method, grid=grid, folder=tmp_path / str(number))
        again = LoopbackGrid(the_app(method), nodes(order, **disk), first=first)
        assert go(method, grid=again, folder=tmp_path / str(number), resume=True, introductions=50)[0] == expected
        assert ("query.whoami" in kinds(again)) == (first != 1000)


def test_a_run_that_began_with_introductions_resumes_with_them(tmp_path):
    expected = go(introductions=CLIENTS, order=ORDER)[0]
    grid = Dying(the_app(), nodes(ORDER))
    grid.left = 3
    with pytest.raises(KilledError):
        go(grid=grid, introductions=CLIENTS, folder=tmp_path)
    assert go(order=ORDER, folder=tmp_path, resume=True)[0] == expected


def test_a_damaged_list_of_nodes_is_named(tmp_path):
    go(folder=tmp_path)
    (tmp_path / FILE).write_bytes(b"nonsense")
    with pytest.raises(records.RecordError, match=r"nodes.bin .*use another folder"):
        go(folder=tmp_path, resume=True)


# what needs all introductions


def test_a_client_that_is_asked_by_its_id_is_found_first(caplog):
    caplog.set_level(logging.INFO, "flwr")
    delegate = dataclasses.replace(METHOD, movers="delegate")
    bits, *_ = go(delegate, order=ORDER)
    assert bits == go(delegate, introductions=CLIENTS)[0]
    assert "6 nodes are connected; asking each for its partition id: spam_pp asks a client by its" in caplog.text


def test_secure_sums_introduce_all(caplog):
    caplog.set_level(logging.INFO, "flwr")
    secure = SecureSum(in_clear=("train.prox",))
    app = client_app(clients_of(POPULATION), METHOD, FIRST, secure=secure)
    go(app=app, secure=secure)
    assert "asking each for its partition id: a secure sum names" in caplog.text


# the very first exchange


@pytest.mark.parametrize("introductions", [0, CLIENTS])
def test_clients_frozen_in_the_first_exchange_leave_a_folder_that_is_read_and_resumed(introductions, tmp_path):
    def frozen(client, message, answer):
        return [] if message.metadata.message_type.startswith("train") else [answer()]

    with pytest.raises(RuntimeError, match="could not start"):
        go(twist=frozen, timeout=0.02, replies=Replies(patience=1), folder=tmp_path, introductions=introductions)
    manifest, rows, probes = records.read(tmp_path)
    assert manifest["status"]["reason"].startswith("the method could not start in 1 attempts")
    assert (rows, probes) == ({}, {})
    with pytest.raises(records.RecordError, match="its status is 'stopped: the method could not start"):
        restore(METHOD, POPULATION, FIRST, tmp_path)
    bits, *_ = go(folder=tmp_path, resume=True, introductions=introductions)
    assert bits == go(introductions=introductions)[0]
    assert records.read(tmp_path)[0]["status"]["kind"] == "completed"
