"""Populations: who is drawn, what a client answers, what padding and minibatches may not change."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Generated, Hosted, Ragged, fedavg, simulate, spam_pp
from fedspam._internal import prng
from fedspam.clients import MeanOracle, draw
from fedspam.methods import scaffold
from fedspam.simulation import engine
from fedspam.solvers import GradientDescent
from loading import benchmark

ROUNDING = 1e-5  # of sums in another order, in float32


def squares(x, rows):
    """Least squares: one loss a row."""
    return 0.5 * (rows["a"] @ x - rows["b"]) ** 2


def client(rows, seed=0, dimension=3):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(rows, dimension)), "b": rng.normal(size=rows)}


@pytest.fixture(scope="module")
def clients():
    return [client(rows, seed) for seed, rows in enumerate((1, 4, 2, 7))]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 16, 17, 1000, 2**20 + 7])
@pytest.mark.slow
def test_permuted_is_a_permutation(count):
    sample = min(count, 2000)
    ids = np.asarray(prng.permuted(jax.random.key(3), jnp.arange(sample, dtype=jnp.uint32), count))
    assert ids.max() < count
    assert len(set(ids.tolist())) == sample


KINDS = ("cohorts", "minibatches")


def statistics(kind, n, draws):
    draws_py = benchmark("draws")
    return draws_py.statistics(draws_py.counted(kind, n, draws))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [5, 8])
def test_draws_are_uniform(kind, n):
    """Eight rounds of a Feistel network were not: ordered pairs of 5 and of 8 had a chi-square beyond any chance."""
    unlikely = {name: each for name, each in statistics(kind, n, 500_000).items() if each.is_unlikely}
    assert not unlikely


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 4, 5, 7, 8, 12, 16, 17, 20, 33])
@pytest.mark.thorough
def test_ten_million_draws_are_uniform(kind, n):
    unlikely = {name: each for name, each in statistics(kind, n, 10_000_000).items() if each.is_unlikely}
    assert not unlikely


def test_chi_square_sees_what_is_not_uniform():
    """Each statistic has its own kind of cohorts that it finds, and the size that it has for uniform ones."""
    draws_py = benchmark("draws")
    random = np.random.default_rng(0)

    def found(cohorts):
        table = np.zeros((6,) * 4, np.int64)
        np.add.at(table, tuple(cohorts.T), 1)
        return {name for name, each in draws_py.statistics(table).items() if each.is_unlikely}

    uniform = random.permuted(np.tile(np.arange(6), (30_000, 1)), axis=1)[:, :4]
    assert found(uniform) == set()
    rare = uniform[~((uniform == 5).any(1) & (random.random(30_000) < 0.2))]
    assert found(rare) >= {"drawn", "sets"}
    assert found(np.where(random.random((30_000, 1)) < 0.3, np.sort(uniform), uniform)) == {"place", "pairs"}
    turned = (random.integers(6, size=(30_000, 1)) + np.arange(4)) % 6  # every id at every place, never 0 beside 3
    assert found(turned) == {"pairs", "sets"}
    with pytest.raises(ValueError, match="have an id twice"):
        found(np.zeros((10, 4), int))


PERMUTED = {  # by key 3; docs/draws.md has the rules
    2: [0, 1],
    3: [0, 2, 1],
    5: [0, 3, 2, 4, 1],
    8: [0, 6, 5, 7, 2, 4],
    16: [0, 13, 11, 15, 7, 10],
    17: [15, 8, 4, 5, 7, 1],  # from here on as before small populations were put in order by random words
    20: [15, 8, 4, 5, 7, 1],
    64: [15, 8, 24, 5, 53, 57],
    65: [58, 19, 64, 30, 45, 42],
    1000: [271, 883, 65, 210, 935, 237],
}


@pytest.mark.parametrize("count", PERMUTED)
def test_a_draw_stays_what_it_is(count):
    """Also where the count is not known when the draw is compiled, and whatever bound is known of it."""
    key, position = jax.random.key(3), jnp.arange(min(count, 6), dtype=jnp.uint32)
    assert prng.permuted(key, position, count).tolist() == PERMUTED[count]
    for most in (None, count, 5000):
        traced = jax.jit(lambda n, most=most: prng.permuted(key, position, n, most))
        assert traced(count).tolist() == PERMUTED[count]


def test_draws_of_different_rounds_are_independent():
    ids = np.asarray(jax.vmap(lambda key: draw(key, 1, 4, False)[0])(jax.random.split(jax.random.key(1), 20_000)))
    pairs = collections.Counter(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    assert all(abs(counted / 19_999 - 1 / 16) < 0.01 for counted in pairs.values())


def test_with_replacement_a_cohort_can_repeat():
    assert len(set(np.asarray(draw(jax.random.key(0), 50, 5, True)).tolist())) == 5


@pytest.mark.slow
def test_a_client_is_the_mean_over_its_rows_alone(clients):
    population = Ragged.of(clients, squares)
    x = jnp.array([1.0, -2.0, 0.5])
    for number, data in enumerate(clients):
        oracle = population.client(jnp.uint32(number))
        residual = data["a"] @ x - data["b"]
        np.testing.assert_allclose(oracle(x), 0.5 * np.mean(residual**2), rtol=ROUNDING)
        np.testing.assert_allclose(jax.grad(oracle)(x), data["a"].T @ residual / len(residual), rtol=ROUNDING)
        assert float(oracle.weight) == len(residual)


@pytest.mark.slow
def test_nothing_of_another_client_enters(clients):
    spoilt = [{name: np.full_like(part, np.nan) for name, part in data.items()} for data in clients]
    spoilt[1] = clients[1]
    oracle = Ragged.of(spoilt, squares).client(jnp.uint32(1))
    assert np.isfinite(jax.grad(oracle)(jnp.ones(3))).all()


def test_weighted_clients_make_the_pooled_loss(clients):
    population = Ragged.of(clients, squares, weighted=True)
    x = jnp.array([1.0, -2.0, 0.5])
    mean = np.mean([float(population.client(jnp.uint32(i))(x)) for i in range(4)])
    pooled = np.concatenate([data["a"] @ x - data["b"] for data in clients])
    np.testing.assert_allclose(mean, 0.5 * np.mean(pooled**2), rtol=ROUNDING)


def test_minibatches_are_distinct_rows_of_the_client_and_follow_the_key():
    rows = {"a": np.eye(6), "b": np.zeros(6)}
    population = Ragged.of([rows, client(9, dimension=6)], squares, batch=4)
    oracle = population.client(jnp.uint32(0))
    gradient = jax.jit(lambda seed: jax.grad(oracle)(jnp.ones(6), jax.random.key(seed)))
    picked = lambda seed: frozenset(np.flatnonzero(np.asarray(gradient(seed))).tolist())
    sets = [picked(seed) for seed in range(40)]
    assert all(len(chosen) == 4 for chosen in sets)  # four different rows
    assert len(set(sets)) > 8
    assert picked(5) == picked(5)
    mean = np.mean([gradient(seed) for seed in range(600)], axis=0)
    np.testing.assert_allclose(mean, jax.grad(oracle)(jnp.ones(6)), atol=0.03)  # unbiased: 4 deviations of the mean


def test_a_minibatch_larger_than_the_client_is_the_client():
    population = Ragged.of([client(2), client(9, 1)], squares, batch=4)
    oracle = population.client(jnp.uint32(0))
    np.testing.assert_allclose(oracle(jnp.ones(3), jax.random.key(0)), oracle(jnp.ones(3)), rtol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_the_mean_client_is_the_mean(clients, chunk):
    population = Ragged.of(clients, squares, batch=2)
    ids, x, key = jnp.array([3, 0, 2], jnp.uint32), jnp.array([1.0, -2.0, 0.5]), jax.random.key(4)
    each = [jax.value_and_grad(population.client(id))(x, jax.random.fold_in(key, id)) for id in ids]
    value, gradient = jax.value_and_grad(MeanOracle(population, ids, chunk))(x, key)
    np.testing.assert_allclose(value, np.mean([pair[0] for pair in each]), rtol=ROUNDING)
    np.testing.assert_allclose(gradient, np.mean([pair[1] for pair in each], axis=0), rtol=ROUNDING)


def test_generated_clients_are_the_same_every_time():
    population = Generated(make=lambda key: jax.random.normal(key, (3,)), loss=lambda x, c: 0.5 * jnp.sum((x - c) ** 2))
    id = population.sample(jax.random.key(0), 1)[0]
    assert float(population.client(id)(jnp.zeros(3))) == float(population.client(id)(jnp.zeros(3)))
    ids = np.asarray(population.sample(jax.random.key(1), 1000), np.float64)
    assert ids.max() > 0.9 * 2**32
    assert ids.min() < 0.1 * 2**32


@pytest.mark.slow
def test_an_endless_population_trains():
    population = Generated(
        make=lambda key: 1 + 0.1 * jax.random.normal(key, (3,)), loss=lambda x, c: 0.5 * jnp.sum((x - c) ** 2)
    )
    method = spam_pp(8, 1.0, 0.1, solver=GradientDescent(steps=5, smoothness=1.0))
    run = simulate(method, population, jnp.zeros(3), rounds=100, key=0)
    np.testing.assert_allclose(run.params, 1, atol=0.05)


@pytest.mark.slow
def test_hosted_clients_answer_from_outside(clients):
    def answer(id, x, seed):
        residual = clients[id]["a"] @ x - clients[id]["b"]
        return 0.5 * np.mean(residual**2), clients[id]["a"].T @ residual / len(residual)

    method = spam_pp(3, 0.5, 0.3, solver=GradientDescent(steps=3, smoothness=4.0))
    outside = simulate(method, Hosted(answer, 4), jnp.ones(3), rounds=4, key=0)
    inside = simulate(method, Ragged.of(clients, squares), jnp.ones(3), rounds=4, key=0)
    np.testing.assert_allclose(outside.params, inside.params, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Ragged.of([], squares), "no clients"),
        (lambda: Ragged.of([client(2), {"a": np.zeros((0, 3)), "b": np.zeros(0)}], squares), "client 1 has 0 examples"),
        (lambda: Ragged.of([client(2), {"a": np.zeros((2, 3))}], squares), "client 1 has the structure"),
        (lambda: Ragged.of([{"a": np.zeros((2, 3)), "b": np.zeros(3)}], squares), "client 0 has arrays of"),
        (lambda: Ragged.of_sizes(client(5), [2, 2], squares), "add up to 4 rows"),
        (lambda: Ragged.of([client(2)], squares, batch=0), "batch = 0"),
        (lambda: draw(jax.random.key(0), 6, 5, False), "larger than the population of 5"),
        (lambda: draw(jax.random.key(0), 0, 5, False), "at least 1"),
        (lambda: Hosted(lambda *_: None, 0), "count = 0"),
        (lambda: Generated(jnp.ones, squares, seed=2**40), "seed = 1099511627776 must be below"),
        (
            lambda: Generated(jnp.ones, squares, seed=-1),
            "seed = -1 must be a whole number of at least 0; give a seed from 0 to 4294967295",
        ),
        (lambda: Generated(jnp.ones, squares, seed=0.5), "seed = 0.5"),
    ],
)
def test_bad_populations_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("method", [spam_pp(2, 0.1, 0.5), fedavg(2, 2, 0.1)])
def test_a_loss_that_is_already_a_mean_is_refused(batch, method):
    """It would count the padding of small clients, and train differently from a Flower client with the same rows."""
    rows = [jnp.ones((2, 3)), jnp.zeros((5, 3)), jnp.ones((4, 3))]
    clients = Ragged.of(rows, lambda x, rows: jnp.mean((rows - x) ** 2), batch=batch)
    with pytest.raises(ValueError, match=r"the loss has shape \(\) for \d+ rows; it must return one loss per row"):
        simulate(method, clients, jnp.zeros(3), rounds=2, key=0)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([1.0, 2.0], r"shape \(2,\) for 3 clients; give one weight per client"),
        ([1.0, -2.0, 1.0], "client 1 has weight -2.0; weights must be finite and at least 0"),
        ([1.0, 2.0, np.nan], "client 2 has weight nan"),
        ([0.0, 0.0, 0.0], "all weights are 0"),
    ],
)
def test_weights_are_one_per_client_and_sound(weights, says):
    with pytest.raises(ValueError, match=says):
        Hosted(lambda id, params, seed: (0.0, params), 3, weights=jnp.array(weights))


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (5.0, r"shape \(\) for 3 clients; give one weight per client"),
        (range(2), r"shape \(2,\) for 3 clients"),
        ({0: 1}, r"weights = \{0: 1\} are not numbers; give one per client"),
        (["1", "2", "3"], r"weights = \['1', '2', '3'\] are not numbers"),
        ("123", "weights = '123' are not numbers"),
    ],
)
def test_weights_of_any_kind_are_checked(weights, says):
    with pytest.raises(ValueError, match=says):
        Hosted(lambda id, params, seed: (0.0, params), 3, weights=weights)


def test_weights_may_be_a_range():
    population = Hosted(lambda id, params, seed: (0.0, params), 3, weights=range(3))
    assert population.client(jnp.uint32(2)).weight == 2


def test_offsets_do_not_wrap():
    """2^31 rows, without the memory for them."""
    rows = np.broadcast_to(np.zeros(1, np.int8), (2**31,))
    with pytest.raises(ValueError, match=r"have 2147483648 rows together; .* at most 2147483647"):
        Ragged.of_sizes(rows, [2**30, 2**30], lambda params, rows: rows)


@pytest.mark.slow
def test_a_round_does_not_copy_the_memories_of_all_clients(monkeypatch):
    """With ten million clients the copy took 0.3 s per round."""
    clients = Ragged.of_sizes(np.ones((777, 3)), [1] * 777, lambda x, rows: 0.5 * jnp.sum((x - rows) ** 2, -1))
    programs = []

    def advance(*arguments, **options):
        programs.append(compiled.lower(*arguments, **options).compile().as_text())
        return compiled(*arguments, **options)

    compiled = engine.advance
    monkeypatch.setattr(engine, "advance", advance)
    simulate(scaffold(4, 2, 0.1), clients, jnp.zeros(3), rounds=4, key=0)
    copies = [line for line in programs[0].splitlines() if "f32[777,3]" in line and " copy(" in line]
    # the memories that go in are copied once per segment, and none inside the loop
    assert len(copies) <= 1, copies
    writes = ("scatter(", "dynamic-update-slice(")  # by the emitters of XLA
    assert any("f32[777,3]" in line and any(map(line.__contains__, writes)) for line in programs[0].splitlines())
