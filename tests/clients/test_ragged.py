"""Clients of very unequal sizes: padded no further than needed, sorted into chunks, packed into one batch."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, Ragged, simulate, simulate_many, spam_pp, spam_ppa
from fedspam.clients import MeanOracle, ragged, with_several_capacities
from fedspam.federation.traced import Traced
from fedspam.methods import fedavg, scaffold
from fedspam.solvers import GradientDescent

pytestmark = pytest.mark.x64  # sums in another order, to the last digits

SIZES = [3, 200, 9, 30, 14, 90, 11, 25, 5, 120, 40, 17]
SOLVER = GradientDescent(steps=3, local_rate=0.1)


def loss(x, rows):
    return 0.5 * (rows["a"] @ x - rows["b"]) ** 2


def a_population(**options):
    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(sum(SIZES), 4)), "b": random.normal(size=sum(SIZES))}
    return Ragged.of_sizes(rows, SIZES, loss, **options)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """These clients have few numbers, and are to be told apart all the same."""
    monkeypatch.setattr(ragged, "SMALL_CLIENT", 320)


@pytest.fixture
def population():
    return a_population()


def plain(population):
    """The same population, every client padded to the largest."""
    return dataclasses.replace(population, capacities=())


@pytest.mark.parametrize(
    ("sizes", "capacities"),
    [
        (SIZES, (25, 100, 200)),  # an eighth of the largest for seven; a quarter would be for two only, below a fifth
        ([10, 60, 3], ()),  # small: one is enough
        ([100, 101, 110, 90], ()),  # alike
        ([1000] + [10] * 9, (125, 1000)),
    ],
)
@pytest.mark.slow
def test_capacities_are_those_that_many_clients_need(sizes, capacities):
    assert ragged._capacities(np.array(sizes), np.zeros((sum(sizes), 5))) == capacities


def test_minibatches_and_small_clients_need_no_capacities(population, monkeypatch):
    assert population.capacities == (25, 100, 200)
    assert a_population(batch=8).capacities == ()
    assert with_several_capacities(dataclasses.replace(population, batch=8)) is None
    monkeypatch.setattr(ragged, "SMALL_CLIENT", 10**4)
    assert a_population().capacities == ()


@pytest.mark.parametrize(("clients", "needed"), [([0], 25), ([0, 7], 25), ([0, 3], 100), ([1], 200), ([2, 9], 200)])
def test_a_chunk_is_padded_to_what_its_largest_client_needs(population, clients, needed):
    capacity = lambda ids: Traced(population)._sized(ids, lambda fed: jnp.int32(fed.population.capacity))
    assert int(jax.jit(capacity)(jnp.array(clients, jnp.uint32))) == needed


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [3, *(pytest.param(chunk, marks=pytest.mark.thorough) for chunk in (1, 12))])
@pytest.mark.parametrize(
    "method",
    [
        spam_pp(5, 0.5, 0.3, solver=SOLVER),
        spam_ppa(7, 0.5, 0.3, solver=SOLVER),
        fedavg(6, 3, 0.05),
        scaffold(7, 3, 0.05),  # whose clients remember: sorting must not mix them up
    ],
    ids=["SPAM-PP", "SPAM-PPA", "FedAvg", "SCAFFOLD"],
)
def test_iterates_do_not_depend_on_the_padding(population, method, chunk):
    run, expected = (
        simulate(method, each, jnp.zeros(4), rounds=6, key=1, chunk=chunk) for each in (population, plain(population))
    )
    close = lambda found, told: np.testing.assert_allclose(found, told, rtol=1e-11, atol=1e-13)
    jax.tree.map(close, (run.params, run.memory), (expected.params, expected.memory))


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk", [2, 5])
def test_packed_rows_are_the_mean_client(weighted, chunk):
    population = a_population(weighted=weighted)
    along = lambda oracle, x: jax.jvp(jax.grad(oracle), (x,), (jnp.ones(4),))[1]
    both = jax.jit(lambda oracle, x: (oracle(x), jax.grad(oracle)(x), along(oracle, x)))
    ids, x = jnp.array([4, 1, 0, 8, 3], jnp.uint32), jnp.arange(4.0)
    for kept in (None, jnp.array([True, False, True, True, True]), jnp.zeros(5, bool)):
        packed, padded = (MeanOracle(each, ids, chunk, kept) for each in (population, plain(population)))
        found, told = (both(each, x) for each in (packed, padded))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), found, told)


@pytest.mark.slow
def test_many_runs_of_clients_with_several_capacities(population):
    method = spam_pp(5, 0.5, 0.3, solver=SOLVER)
    alone = simulate(method, population, jnp.zeros(4), rounds=4, key=2)
    for side_by_side in (None, True):
        many = simulate_many([method], population, jnp.zeros(4), rounds=4, keys=[1, 2], side_by_side=side_by_side)
        np.testing.assert_allclose(many.params[0, 1], alone.params, rtol=1e-12)


@pytest.mark.slow
def test_lost_replies_and_memories_with_sizes(population):
    """Void rounds and clients that remember, sorted and padded by size."""
    method, faults = scaffold(7, 3, 0.05), Faults(dropout=0.4)
    run, expected = (
        simulate(method, each, jnp.zeros(4), rounds=8, key=1, chunk=3, faults=faults, quorum=0.5)
        for each in (population, plain(population))
    )
    assert 0 < run.rows["void"].sum() < 8
    np.testing.assert_array_equal(run.rows["void"], expected.rows["void"])
    np.testing.assert_allclose(run.params, expected.params, rtol=1e-11, atol=1e-13)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-13), run.memory, expected.memory)


def test_a_number_that_nobody_has_is_nobody(population):
    for each in (population, a_population(batch=8)):
        assert np.isnan(each.client(jnp.uint32(len(SIZES)))(jnp.zeros(4)))
