"""Evaluation on what training never sees, targets, data on the host, chunks that fit: training as users do it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Generated, Keep, datasets, simulate, spam_pp
from fedspam._internal import describe
from fedspam.datasets import FederatedData
from fedspam.federation import Cohort, on_client
from fedspam.methods import Epochs, fedavg, saber, scaffold
from fedspam.simulation import chunking, engine, fine_tune, host_data, records, restore
from fedspam.simulation.evaluation import Evaluation, Named
from fedspam.simulation.host_data import Stored
from fedspam.simulation.stopping import Target, Watch
from fedspam.solvers import GradientDescent


def squares(x, rows):
    return 0.5 * jnp.sum((rows["x"] - x) ** 2, axis=1)


def clients(sizes=(4, 1, 9, 2, 6, 3, 5, 2), seed=0) -> FederatedData:
    random = np.random.default_rng(seed)
    return FederatedData.of([(f"c{i}", {"x": i + random.standard_normal((n, 3))}) for i, n in enumerate(sizes)])


PEOPLE = clients()
LOCAL = GradientDescent(steps=3, local_rate=0.2, minibatch=True)


# --- scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [4, 1000])
@pytest.mark.slow
def test_scores_are_those_of_a_plain_loop(block):
    data = clients((4, 0, 9, 2, 6))
    x = jnp.array([0.5, 1.0, 3.0])
    look = Evaluation.of(
        data,
        lambda x, rows: {"loss": squares(x, rows), "right": rows["x"][:, 0] > x[2]},
        quantiles=(0.1, 0.5),
        block=block,
    )
    found = jax.jit(lambda look, x: look(x))(look, x)
    for name, score in (("loss", squares), ("right", lambda x, rows: rows["x"][:, 0] > x[2])):
        each = [np.asarray(score(x, rows), float) for _, rows in data if len(rows["x"])]
        means = [values.mean() for values in each]
        expected = [np.concatenate(each).mean(), np.mean(means), np.quantile(means, 0.1), np.quantile(means, 0.5)]
        names = (name, f"{name}.clients", f"{name}.q10", f"{name}.q50")
        np.testing.assert_allclose([found[part] for part in names], expected, rtol=1e-6)  # float32
    own = look.per_client(x)["loss"]
    assert np.isnan(own[1])
    assert own[3] == pytest.approx(np.mean(squares(x, data["c3"])))


def test_each_client_with_a_model_of_its_own():
    data = FederatedData.of([(str(i), {"x": np.arange(1.0, i + 2)}) for i in range(3)])
    judge = Evaluation.of(data, lambda x, rows: {"times": x["a"] * rows["x"] + x["b"][1]}, block=4)
    models = {"a": jnp.array([1.0, 10.0, 100.0]), "b": jnp.arange(6.0).reshape(3, 2)}
    np.testing.assert_allclose(judge.personal(models)["times"], [1 + 1, 15 + 3, 200 + 5])
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[1], leaf.shape), models)
    common = jax.tree.map(lambda leaf: leaf[1], models)
    np.testing.assert_allclose(judge.personal(same)["times"], judge.per_client(common)["times"])
    with pytest.raises(ValueError, match=r"has 3 clients, but the models have a first axis of \[\(2,\)\]; stack"):
        judge.personal({"a": jnp.ones(3), "b": jnp.ones((2, 2))})


def test_fine_tuning_by_hand():
    """Two passes over two rows each: towards the rows in some order, half of the way each time."""
    data = FederatedData.of([("a", {"x": [[2.0]]}), ("b", {"x": [[4.0], [8.0]]})])
    population = data.population(squares, batch=1)
    own = fine_tune(population, jnp.zeros(1), Epochs(2), 0.5, key=3)
    assert own.shape == (2, 1)
    assert float(own[0, 0]) == 1.5
    orders = [(first, second) for first in ((4, 8), (8, 4)) for second in ((4, 8), (8, 4))]
    ends = []
    for order in orders:
        y = 0.0
        for row in (*order[0], *order[1]):
            y += 0.5 * (row - y)
        ends.append(y)
    assert float(own[1, 0]) in ends
    with pytest.raises(ValueError, match="local_rate = -1"):
        fine_tune(population, jnp.zeros(1), 1, -1, key=0)
    endless = Generated(lambda id: id, lambda x, data: x**2)
    with pytest.raises(ValueError, match="the population is endless"):
        fine_tune(endless, jnp.zeros(()), 1, 0.1, key=0)


def test_rows_of_many_labels_count_as_often_as_they_have_labels():
    data = FederatedData.of(
        [("a", {"label": np.array([[1, 2, 3], [4, -1, -1]])}), ("b", {"label": np.array([[5, 6, -1]])})]
    )
    share = lambda x, rows: jnp.array([1.0, 0.0, 0.5])[: rows["label"].shape[0]]
    found = Evaluation.of(data, share, quantiles=())(jnp.zeros(1))
    assert float(found["accuracy"]) == pytest.approx((3 * 1.0 + 1 * 0.0 + 2 * 0.5) / 6)
    assert float(found["accuracy.clients"]) == pytest.approx((0.75 + 0.5) / 2)


def test_several_evaluations_have_names():
    look = Named(
        {"a": Evaluation.of(PEOPLE, squares, quantiles=()), "b": Evaluation.of(PEOPLE, squares, quantiles=(0.25,))}
    )
    found = look(jnp.zeros(3))
    assert set(found) == {"a.accuracy", "a.accuracy.clients", "b.accuracy", "b.accuracy.clients", "b.accuracy.q25"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Evaluation.of(clients((0, 0)), squares), "nothing to evaluate on"),
        (lambda: Evaluation.of(PEOPLE, squares, quantiles=(10,)), r"quantile = 10 must lie in \[0, 1\]"),
        (lambda: Evaluation.of(PEOPLE, squares, block=0), "block = 0 must be a whole number"),
        (lambda: Target("loss"), "give one of them"),
        (lambda: Target("loss", at_least=1, at_most=1), "give one of them"),
        (lambda: Target("loss", at_most=float("nan")), "'loss' is NaN, which no value reaches"),
    ],
)
def test_wrong_evaluations_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- targets --------------------------------------------------------------------------------------------------------


def loss_probe():
    return Evaluation.of(PEOPLE, lambda x, rows: {"loss": squares(x, rows)}, quantiles=())


@pytest.mark.slow
@pytest.mark.parametrize("segment", [4, pytest.param(1000, marks=pytest.mark.thorough)])
def test_a_run_ends_where_its_target_is_reached_and_not_before(tmp_path, segment):
    population = PEOPLE.population(squares)
    method, options = fedavg(3, 2, 0.1), {"key": 0, "probe": loss_probe(), "every": 2, "keep": Keep(every=segment)}
    whole = simulate(method, population, jnp.zeros(3), rounds=40, **options)
    value = float(np.sort(whole.probes["loss"])[3])
    first = int(np.argmax(whole.probes["loss"] <= value))
    target = Target("loss", at_most=value)
    run = simulate(method, population, jnp.zeros(3), rounds=40, until=target, folder=tmp_path, **options)
    assert str(run.status) == f"reached: loss = {whole.probes['loss'][first]:.6g} is at most {value:g}"
    assert run.rounds == 2 * first < 40
    np.testing.assert_array_equal(run.probes["loss"], whole.probes["loss"][: first + 1])
    assert restore(method, population, jnp.zeros(3), tmp_path)[1] == run.rounds
    # reached by several evaluations in a row, which may lie in several segments
    below = whole.probes["loss"] <= np.median(whole.probes["loss"])
    third = int(np.argmax(below[:-2] & below[1:-1] & below[2:])) + 2
    strict = Target("loss", at_most=float(np.median(whole.probes["loss"])), evaluations=3)
    assert simulate(method, population, jnp.zeros(3), rounds=40, until=strict, **options).rounds == 2 * third
    # resumed with the same target it stays there; with none it goes on, to the same bits
    resumed = {"folder": tmp_path, "resume": True, **options}
    again = simulate(method, population, jnp.zeros(3), rounds=40, until=target, **resumed)
    assert (again.status, again.rounds) == (run.status, run.rounds)
    on = simulate(method, population, jnp.zeros(3), rounds=40, **resumed)
    np.testing.assert_array_equal(on.params, whole.params)


@pytest.mark.slow
def test_targets_from_below_and_targets_out_of_reach():
    population = PEOPLE.population(squares)
    options = {"key": 0, "rounds": 10, "probe": loss_probe()}
    run = simulate(fedavg(3, 2, 0.1), population, jnp.zeros(3), until=Target("loss", at_least=1e-3), **options)
    assert run.rounds == 1  # reached from the first look on, and a run has one round at least
    with pytest.raises(ValueError, match=r"until.probe = 'accuracy' is not a probe of this run; it has \['loss', "):
        simulate(fedavg(3, 2, 0.1), population, jnp.zeros(3), until=Target("accuracy", at_least=1), **options)
    # watching for divergence goes on beside it
    watched = {"watch": Watch(growth=10.0, probe="loss"), "until": Target("loss", at_most=-1.0)}
    run = simulate(fedavg(3, 2, 30.0), population, jnp.zeros(3), **watched, **options)
    assert run.status.kind == "diverged"
    run = simulate(fedavg(3, 2, 0.1), population, jnp.zeros(3), **watched, **options)  # the same trace
    assert (run.status.kind, run.rounds) == ("completed", 10)


# --- data on the host -----------------------------------------------------------------------------------------------

METHODS = {
    "fedavg": fedavg(3, 2, 0.1, weighted=True),
    "spam_pp": spam_pp(3, 0.5, 0.3, solver=LOCAL),
    "scaffold": scaffold(3, 2, 0.1),  # clients that remember
    "saber": saber(3, 0.5, 0.4, solver=LOCAL),  # a coin that decides who is asked, everyone sometimes
}
HEAVY = [pytest.mark.thorough]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "spam_pp", *(pytest.param(n, marks=HEAVY) for n in ("scaffold", "saber"))])
def test_data_on_the_host_gives_the_same_bits(name):
    method = METHODS[name]
    options = {"rounds": 11, "key": 3, "record": ()}
    here = simulate(method, PEOPLE.population(squares, batch=2), jnp.zeros(3), **options)
    there = simulate(method, Stored.of(PEOPLE, squares, batch=2, window=3), jnp.zeros(3), **options)
    np.testing.assert_array_equal(there.params, here.params)
    assert there.rows.keys() == here.rows.keys()
    np.testing.assert_array_equal(there.rows["bytes_up"], here.rows["bytes_up"])


@pytest.mark.slow
def test_a_client_fetched_from_the_host_is_the_same_client():
    for weighted, batch in ((False, None), (True, 2)):
        here = PEOPLE.population(squares, weighted=weighted, batch=batch)
        there = Stored.of(PEOPLE, squares, weighted=weighted, batch=batch)
        ids = jnp.arange(8, dtype=jnp.uint32)
        look = jax.jit(
            lambda population, x: jax.vmap(lambda i: jax.value_and_grad(population.client(i))(x, jax.random.key(1)))(
                ids
            )
        )
        for a, b in zip(
            jax.tree.leaves(look(here, jnp.ones(3))), jax.tree.leaves(look(there, jnp.ones(3))), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-14)
        assert there.size == here.size
        np.testing.assert_array_equal(there.sample(jax.random.key(0), 4), here.sample(jax.random.key(0), 4))


def lender(method, window=4):
    population = Stored.of(PEOPLE, squares, window=window)
    key = jax.random.key(0)
    setup = engine.Setup(method, population, jnp.zeros(3), key)
    return host_data._Lender(setup, window, 100, None), engine.begin(setup)[0]


@pytest.mark.slow
def test_a_window_holds_who_is_asked_and_only_them():
    made, carry = lender(METHODS["fedavg"])
    made._carry = carry
    window = made._make(8)
    asked = set()
    for k in range(8, 12):
        fed = made._setup.fed((), k)
        asked |= set(np.asarray(fed.sample(jax.random.fold_in(jax.random.key(0), k), 3).ids).tolist())
    assert set(np.asarray(window.ids).tolist()) == asked != set(range(8))
    someone = min(asked)
    assert float(window.client(jnp.uint32(someone))(jnp.zeros(3))) == pytest.approx(
        float(np.mean(squares(jnp.zeros(3), PEOPLE[f"c{someone}"])))
    )
    nobody = min(set(range(8)) - asked)  # never asked; were it, nobody else's data would answer for it
    assert np.isnan(window.client(jnp.uint32(nobody))(jnp.zeros(3)))


@dataclasses.dataclass(frozen=True)
class Curious:
    """Asks the client that a draw, its state or the last reply points at."""

    by: str

    @on_client
    def gradient(self, oracle, key, *, x):
        return jax.grad(oracle)(x, key)

    def round(self, state, key, fed):
        cohort = fed.sample(key, 2)
        reply = fed.mean(cohort, self.gradient, x=state["x"])
        pointed = {"key": cohort.ids[0], "state": state["k"], "reply": reply[0]}[self.by]
        fed.mean(Cohort(jnp.asarray(pointed, jnp.uint32)[None] % fed.population_size, key), self.gradient, x=state["x"])
        return state, ()


@pytest.mark.parametrize(("by", "depends"), [("key", False), ("state", True), ("reply", True)])
def test_draws_that_cannot_be_told_ahead_are_recognised(by, depends):
    carry = engine.Carry({"x": jnp.zeros(3), "k": jnp.int32(0)}, (), jnp.int32(0))
    population = Stored.of(PEOPLE, squares)
    setup = engine.Setup(Curious(by), population, jnp.zeros(3), jax.random.key(0))
    made = host_data._Lender(setup, 4, 100, None)
    assert host_data._depends_on_state(made._ids_of, carry, jax.random.key(0)) is depends
    if depends:
        assert made(carry, 0, 4) is population


@pytest.mark.slow
def test_data_mapped_from_disk_serves_and_is_part_of_the_identity(tmp_path):
    mapped = datasets.write_mapped(iter(PEOPLE), tmp_path / "data")
    run = simulate(METHODS["fedavg"], Stored.of(mapped, squares, window=5), jnp.zeros(3), rounds=7, key=0)
    same = simulate(METHODS["fedavg"], PEOPLE.population(squares), jnp.zeros(3), rounds=7, key=0)
    np.testing.assert_array_equal(run.params, same.params)
    one, other = (describe.describe(Stored.of(data, squares)) for data in (PEOPLE, clients(seed=1)))
    assert one != other
    with pytest.raises(ValueError, match="client 1 has 0 examples"):
        Stored.of(clients((3, 0)), squares)


# --- chunks and precision -------------------------------------------------------------------------------------------


def wide(x, rows):
    return 0.5 * jnp.sum((jnp.tanh(rows["x"] @ x["w"]) - 1) ** 2, axis=1)


@pytest.mark.slow
def test_the_chunk_that_fits_is_the_largest_that_does(tmp_path):
    population, params = PEOPLE.population(wide), {"w": jnp.ones((3, 4000))}
    method = fedavg(8, 2, 0.1)
    need = [chunking.round_memory(method, population, params, chunk) for chunk in (1, 4)]
    assert need[0] < need[1]
    assert chunking.fitting_chunk(method, population, params) == 8
    simulate(method, population, params, rounds=1, key=0, chunk="fit", folder=tmp_path)
    assert records.read(tmp_path)[0]["identity"]["layout"]["chunk"] == 8
    chunk = chunking.fitting_chunk(method, population, params, memory=need[1])
    assert 2 <= chunk <= 4
    assert chunking.round_memory(method, population, params, chunk) <= need[1]
    with pytest.raises(ValueError, match=r"with one client at a time, .* take a smaller minibatch"):
        chunking.fitting_chunk(method, population, params, memory=need[0] / 2)
    assert chunking.free_memory() > 0


@pytest.mark.slow
def test_models_train_in_bfloat16():
    from fedspam.models import mlp

    data = datasets.synthetic(0.0, 0.0, clients=6, dimension=6, classes=3, iid=True, seed=1)
    small = FederatedData.of((name, {part: rows[part][:40] for part in rows}) for name, rows in data)
    model = mlp(6, 3, hidden=(16,), dtype="bfloat16")
    population = small.population(model.loss, batch=10)
    judge = Evaluation.of(small, model.correct, quantiles=(0.1,))
    run = simulate(fedavg(6, 5, 0.3), population, model.init(0), rounds=40, key=0, probe=judge, every=40, record=())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(run.params)} == {"float32"}
    assert run.probes["accuracy"][-1] > max(0.85, run.probes["accuracy"][0] + 0.1)
    assert run.probes["accuracy.q10"][-1] <= run.probes["accuracy"][-1]
