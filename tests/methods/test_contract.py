"""What holds for every registered method, tried on its own example in JAX's default precision.

Every method has thin rows: its name, shape, memory and cost, for which its round is traced once. What compiles is tried
once for each distinct round, and for every row in `make full`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Keep, simulate, simulate_many
from fedspam.federation import ledger, loopback
from fedspam.federation.traced import Traced
from fedspam.methods import METHODS, Momentum, fedred_memory, mime, spam
from fedspam.problems import quadratics
from kinds import KINDS

ROUNDS = 6
TOLERANCE = 1e-5  # handles sum in other orders, in float32: some ten rounds of operations of 6e-8 each


def rows(kind=(), other=(), kinds=KINDS):
    """One test for each method, with these marks."""
    params = [pytest.param(name, marks=kind if name in kinds else other) for name in METHODS]
    return pytest.mark.parametrize("name", params)


everyone = rows()
each_round = rows(kind=[pytest.mark.slow, pytest.mark.users], other=[pytest.mark.thorough])
traced_round = rows(other=[pytest.mark.thorough])
# a sweep compiles the round once more: one that keeps clients' memory, one with a coin, one with minibatch steps
SWEPT = ("spam_pp", "scaffold", "page", "auto_steps")


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(0), clients=10, dimension=5, delta=0.1, condition=4.0, curvature=0.25, noise=0.1)


@pytest.fixture(scope="module")
def runs(clients):
    """One run of each method, made when first asked for: most tests compare with it."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = simulate(METHODS[name].make(), clients, jnp.ones(5), rounds=ROUNDS, key=7)
        return made[name]

    return run


def first_round(method, clients, x):
    """The state after the first round, and the one before it."""
    rows = lambda leaf: jnp.broadcast_to(leaf, (clients.size, *jnp.shape(leaf)))
    fed = Traced(clients, memory=jax.tree.map(rows, method.client_state(x)))
    state = method.init(x, jax.random.key(0), fed)
    return method.round(state, jax.random.key(1), fed)[0], state


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@each_round
def test_iterates_over_bytes_are_those_of_the_simulation(name, clients, runs):
    method = METHODS[name].make()
    state, fed = loopback.run(method, clients, jnp.ones(5), rounds=ROUNDS, key=7)
    run = runs(name)
    np.testing.assert_allclose(method.params(state), run.params, rtol=TOLERANCE, atol=TOLERANCE)
    down = run.rows["bytes_down"].sum() + sum(exchange.cohort * exchange.bytes_down for exchange in run.plan.start)
    up = run.rows["bytes_up"].sum() + sum(exchange.cohort * exchange.bytes_up for exchange in run.plan.start)
    assert (fed.bytes_down, fed.bytes_up) == (down, up)


@each_round
def test_a_rerun_has_the_same_bits(name, clients, runs):
    again = simulate(METHODS[name].make(), clients, jnp.ones(5), rounds=ROUNDS, key=7)
    assert bits(again.state) == bits(runs(name).state)
    assert bits(again.memory) == bits(runs(name).memory)


@rows(kind=[pytest.mark.thorough], other=[pytest.mark.thorough])
def test_chunks_and_replies_checked_one_by_one_change_rounding_only(name, clients, runs):
    run = simulate(METHODS[name].make(), clients, jnp.ones(5), rounds=ROUNDS, key=7, chunk=3, per_client=True)
    np.testing.assert_allclose(run.params, runs(name).params, rtol=TOLERANCE, atol=TOLERANCE)


@traced_round
def test_one_trace_serves_all_numbers(name, clients):
    method = METHODS[name].make()
    other = jax.tree.map(lambda leaf: leaf * 0.75 if isinstance(leaf, float) else leaf, method)
    traced = []

    @jax.jit
    def round(method, x):
        traced.append(1)
        return first_round(method, clients, x)

    for each in (method, other, method):
        round.trace(each, jnp.ones(5))  # nothing is compiled
    assert len(traced) == 1


@everyone
def test_costs_are_those_of_its_row(name, clients):
    row, d = METHODS[name], 5
    # a method that cannot do with a part of the clients asks all of them
    cohort = row.example.get("cohort_size") or (clients.size if row.partial == "no" else 1)
    plan = ledger.plan(row.make(), jnp.zeros(d), clients)
    assert plan.branches == (row.coin != "")
    of_row = [exchange for exchange in plan.round if exchange.label.partition("@")[2] in ("", row.coin)]
    for cost, unit in ((row.down, "floats_down"), (row.up, "floats_up")):
        counted = sum(exchange.cohort * getattr(exchange, unit) for exchange in of_row)
        assert counted == (cost.cohort * cohort + cost.alone) * d + cost.extra * cohort, unit


@rows(kind=[pytest.mark.slow, pytest.mark.users], other=[pytest.mark.thorough], kinds=SWEPT)
def test_seeds_and_numbers_run_together_in_chunks(name, clients, runs):
    """Three does not divide most cohorts, so that the last chunk is padded."""
    method = METHODS[name].make()
    many = simulate_many([method, method], clients, jnp.ones(5), rounds=ROUNDS, keys=[3, 7], chunk=3)
    assert many.params.shape == (2, 2, 5)
    np.testing.assert_allclose(many.params[1, 1], runs(name).params, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_array_equal(many.rows["bytes_up"][0, 1], runs(name).rows["bytes_up"])


@traced_round
@pytest.mark.x64  # without it JAX would make float32 of every float64 that slipped in
def test_float32_stays_float32_and_no_tracer_leaks(name, clients):
    """A round is traced and not compiled: types are known by then, and so are leaks."""
    method, single = METHODS[name].make(), jax.tree.map(lambda leaf: leaf.astype(jnp.float32), clients)

    with jax.checking_leaks():
        state, start = jax.eval_shape(first_round, method, single, jnp.ones(5, jnp.float32))
    # the next round has what this one had: nothing is left to see there
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda leaf: leaf.dtype, start)
    floating = {leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert floating == {jnp.dtype("float32")}


@pytest.mark.slow
@pytest.mark.users
def test_no_tracer_leaks_from_a_simulation(clients, tmp_path):
    with jax.checking_leaks():
        run = simulate(METHODS["spam_pp"].make(), clients, jnp.ones(5), rounds=2, key=0, keep=Keep(every=1))
    assert run.status.kind == "completed"


@each_round
def test_it_descends_on_a_quadratic(name, clients):
    norm = lambda x: float(jnp.linalg.norm(clients.gradient(x)))
    # the program of `runs` again: only numbers differ
    ends = [simulate(METHODS[name].make(), clients, jnp.ones(5), rounds=300, key=key).params for key in range(5)]
    assert np.median([norm(end) for end in ends]) < 0.1 * norm(jnp.ones(5))


@everyone
def test_it_is_a_frozen_pytree(name):
    method = METHODS[name].make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.start = 1
    leaves, structure = jax.tree.flatten(method)
    assert all(isinstance(leaf, float | int | jax.Array | np.ndarray) for leaf in leaves)
    assert jax.tree.structure(jax.tree.unflatten(structure, leaves)) == structure


@everyone
def test_clients_remember_only_where_the_row_says_so(name):
    remembers = bool(jax.tree.leaves(METHODS[name].make().client_state(jnp.ones(5))))
    assert remembers == (METHODS[name].stateless == "no")


@everyone
def test_a_method_knows_its_own_name(name):
    assert METHODS[name].make().name == name


def test_a_name_depends_on_no_number():
    """Sweeps need one tree structure for all values."""
    for build in (
        lambda c: spam(c, c),
        lambda c: mime(4, 3, c, base=Momentum(c)),
        lambda c: fedred_memory(c, c, c),
    ):
        assert jax.tree.structure(build(0.1)) == jax.tree.structure(build(1.0))
