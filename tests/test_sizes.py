"""Clients of very unequal sizes: padded no further than needed, sorted into chunks, packed into one batch."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate, simulate_many, spam_pp, spam_ppa
from fedspam.algorithms import fedavg, scaffold
from fedspam.population import MeanOracle
from fedspam.population.ragged import _capacities
from fedspam.prox import GradientDescent
from fedspam.traced import Traced

SIZES = [3, 200, 9, 30, 14, 90, 11, 25, 5, 120, 40, 17]
SOLVER = GradientDescent(steps=3, step_size=0.1)


def loss(x, rows):
    return 0.5 * (rows["a"] @ x - rows["b"]) ** 2


def a_population(**options):
    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(sum(SIZES), 4)), "b": random.normal(size=sum(SIZES))}
    return Ragged.of_sizes(rows, SIZES, loss, **options)


@pytest.fixture(scope="module")
def people():
    return a_population()


def plain(people):
    """The same population, every client padded to the largest."""
    return dataclasses.replace(people, capacities=())


@pytest.mark.parametrize(
    ("sizes", "capacities"),
    [
        (SIZES, (25, 100, 200)),  # an eighth of the largest for seven, half for three, a quarter for one only
        ([10, 60, 3], ()),  # small: one is enough
        ([100, 101, 110, 90], ()),  # alike
        ([1000] + [10] * 9, (125, 1000)),
    ],
)
def test_capacities_are_those_that_many_clients_need(sizes, capacities):
    assert _capacities(np.array(sizes)) == capacities


def test_minibatches_need_no_capacities(people):
    assert people.capacities == (25, 100, 200)
    assert a_population(batch=8).capacities == ()


@pytest.mark.parametrize(("clients", "needed"), [([0], 25), ([0, 7], 25), ([0, 3], 100), ([1], 200), ([2, 9], 200)])
def test_a_chunk_is_padded_to_what_its_largest_client_needs(people, clients, needed):
    capacity = lambda ids: Traced(people)._sized(ids, lambda fed: jnp.int32(fed._population.capacity))
    assert int(jax.jit(capacity)(jnp.array(clients, jnp.uint32))) == needed


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3, 12])
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
def test_iterates_do_not_depend_on_the_padding(people, method, chunk):
    run, expected = (
        simulate(method, each, jnp.zeros(4), rounds=6, key=1, chunk=chunk) for each in (people, plain(people))
    )
    close = lambda found, told: np.testing.assert_allclose(found, told, rtol=1e-11, atol=1e-13)
    jax.tree.map(close, (run.params, run.memory), (expected.params, expected.memory))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk", [2, 5])
def test_packed_rows_are_the_mean_client(weighted, chunk):
    people = a_population(weighted=weighted)
    both = jax.jit(lambda oracle, x: (oracle(x), jax.grad(oracle)(x)))
    ids, x = jnp.array([4, 1, 0, 8, 3], jnp.uint32), jnp.arange(4.0)
    for kept in (None, jnp.array([True, False, True, True, True]), jnp.zeros(5, bool)):
        packed, padded = (MeanOracle(each, ids, chunk, kept) for each in (people, plain(people)))
        found, told = (both(each, x) for each in (packed, padded))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), found, told)


def test_many_runs_of_clients_of_unequal_sizes(people):
    method = spam_pp(5, 0.5, 0.3, solver=SOLVER)
    many = simulate_many([method], people, jnp.zeros(4), rounds=4, keys=[1, 2])
    alone = simulate(method, people, jnp.zeros(4), rounds=4, key=2)
    np.testing.assert_allclose(many.params[0, 1], alone.params, rtol=1e-12)
