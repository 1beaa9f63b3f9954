"""Clients that take time: the seconds of rounds that wait for them, and of rounds that do not."""

import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, fedavg, simulate, spam_pp
from fedspam._internal import prng
from fedspam.app.report.sources import read
from fedspam.clients import FixedDelay, MeasuredDelay, OverSelected, ParetoDelay, RandomDelay
from fedspam.federation.aggregation import Median
from fedspam.methods import buffered, mvr, page, scaffold
from fedspam.problems import quadratics
from fedspam.simulation.engine import start_key

CLIENTS, ROUNDS, FIRST = 12, 6, np.ones(3)
POPULATION = quadratics(0, clients=CLIENTS, dimension=3)
SECONDS = np.array([3.0, 8.0, 1.0, 5.0, 2.0, 7.0, 4.0, 6.0, 9.0, 2.5, 30.0, 1.5])  # what each client always takes
TABLE = FixedDelay(jnp.array(SECONDS))
RATE, SIZE = 0.05, 3
ROUNDING = 1e-5  # of some rounds in float32, against NumPy in float64
AVERAGE = fedavg(SIZE, 1, RATE)


def go(method, population, rounds=ROUNDS, **options):
    return simulate(method, population, FIRST, rounds=rounds, key=7, **options)


@pytest.fixture(scope="module")
def plain():
    return go(AVERAGE, POPULATION)


# rounds that wait


def test_a_round_waits_for_the_slowest_client_of_every_exchange():
    ids = {"cohort": np.array([[0, 3, 4], [1, 2, 11], [5, 9, 10]]), "prox": np.array([4, 1, 9])}
    run = go(spam_pp(3, step_size=0.5, fresh_weight=0.3), OverSelected(POPULATION, TABLE, more=0), 3, replay=ids)
    waited = SECONDS[ids["cohort"]].max(axis=1) + SECONDS[ids["prox"]]
    np.testing.assert_allclose(run.rows["seconds"], waited)


@pytest.mark.slow
def test_delays_change_no_draw_and_over_selection_waits_for_the_fastest(plain, tmp_path):
    assert "seconds" not in plain.rows
    slow = go(AVERAGE, OverSelected(POPULATION, RandomDelay(), more=0.0), folder=tmp_path)
    fast = go(AVERAGE, OverSelected(POPULATION, RandomDelay(), more=1.0))
    np.testing.assert_array_equal(slow.params, plain.params)
    assert slow.rows["seconds"].sum() > fast.rows["seconds"].sum()
    paid = read(tmp_path).series[0].paid["seconds"]  # the time axis of a report
    np.testing.assert_allclose(paid.amount, [0, *np.cumsum(slow.rows["seconds"])])
    for run, more in ((slow, 0.0), (fast, 1.0)):
        clients = OverSelected(POPULATION, RandomDelay(), more=more)
        key = lambda k: prng.fold_name(jax.random.fold_in(jax.random.key(7), k), "cohort")
        waits = jax.vmap(lambda k: clients.wait(key(k), SIZE))(jnp.arange(ROUNDS))
        np.testing.assert_allclose(run.rows["seconds"], waits)


def test_only_the_branch_that_is_taken_takes_time():
    method = page(3, step_size=0.1, probability=0.5)
    rows = go(method, OverSelected(POPULATION, FixedDelay(2.0), more=0), record=()).rows
    asked = sum(rows[name] > 0 for name in rows if name.endswith(".asked"))
    assert (asked == 1).all()
    assert len({name for name in rows if name.endswith(".asked") and "@" in name}) == 2
    np.testing.assert_allclose(rows["seconds"], 2.0)


# delays


def test_measured_delays_are_drawn_as_they_were_measured(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = lambda delay, id: np.asarray(jax.vmap(lambda key: delay(key, jnp.uint32(id)))(keys))
    together = drawn(MeasuredDelay.of([1.0, 2.0, 2.0, 40.0]), 5)
    assert set(together.tolist()) == {1.0, 2.0, 40.0}
    np.testing.assert_allclose([(together == value).mean() for value in (1, 2, 40)], [0.25, 0.5, 0.25], atol=0.05)
    (tmp_path / "delays.csv").write_text("client, seconds\n1,7.5\n0,1.0\n0,3.0\n\n")
    each = MeasuredDelay.read(tmp_path / "delays.csv")
    assert set(drawn(each, 0).tolist()) == {1.0, 3.0}
    assert set(drawn(each, 1).tolist()) == {7.5}
    (tmp_path / "delays.csv").write_text("seconds\n4.0\n")
    assert MeasuredDelay.read(tmp_path / "delays.csv").offsets is None


@pytest.mark.parametrize(("text", "reason"), [
    ("client,time\n0,1\n", "needs a column 'seconds'"),
    ("client,seconds\n0,one\n", "line 2: seconds is 'one'; it must be a finite number"),
    ("client,seconds\n0\n", "line 2 has 1 cells, the header 2"),
    ("client,seconds\n0,1\n2,1\n", "nothing of client 1"),
    ("seconds\n-1\n", "line 2: seconds is '-1'; it must be"),
    ("seconds\nnan\n", "line 2: seconds is 'nan'; it must be"),
    ("seconds\n", "nothing of client 0"),
    ("", "needs a column"),
])  # fmt: skip
def test_files_of_delays_that_cannot_be_used_say_why(text, reason, tmp_path):
    (tmp_path / "delays.csv").write_text(text)
    with pytest.raises(ValueError, match=reason):
        MeasuredDelay.read(tmp_path / "delays.csv")


def test_delays_without_meaning_are_refused():
    for wrong in (lambda: FixedDelay(0.0), lambda: ParetoDelay(tail=0.0), lambda: ParetoDelay(least=-1.0)):
        with pytest.raises(ValueError, match="must be greater than 0"):
            wrong()
    with pytest.raises(ValueError, match="no measured seconds of client 1"):
        MeasuredDelay.of([[1.0], []])


# rounds that do not wait


def test_a_buffer_as_large_as_the_cohort_is_the_synchronous_method(plain):
    """FedAvg where all take equally long, and for any other delays."""
    for delay in (RandomDelay(2.0, spread=0.0), RandomDelay()):
        clients = OverSelected(POPULATION, delay, more=0)
        run = go(buffered(AVERAGE, SIZE), clients)
        np.testing.assert_allclose(run.params, plain.params, rtol=1e-14)
        np.testing.assert_array_equal(run.rows["staleness"], 0)
        np.testing.assert_allclose(run.rows["seconds"], go(AVERAGE, clients).rows["seconds"])
        for name in ("bytes_up", "bytes_down", "gradients"):
            np.testing.assert_array_equal(run.rows[name], plain.rows[name])


def by_hand(busy_at_once):
    """FedBuff as a program of events, with the draws of the simulation and the delays of the table."""
    gradient = jax.jit(lambda id, x: jax.grad(POPULATION.client(id))(x, None))
    key, x, now, waits, stale = jax.random.key(7), FIRST, 0.0, [], []
    busy = []  # (when it arrives, order of the message, move, update of the message)

    def send(ids, k):
        for id in ids:
            busy.append((now + SECONDS[id], len(sent), -RATE * np.asarray(gradient(id, x)), k, id))
            sent.append(id)

    sent = []
    drawn = POPULATION.sample(prng.fold_name(start_key(key, 0), "busy"), busy_at_once - SIZE)
    send(drawn.tolist(), 0)
    for k in range(ROUNDS):
        drawn = POPULATION.sample(prng.fold_name(jax.random.fold_in(key, k), "cohort"), busy_at_once).tolist()
        taken = {entry[4] for entry in busy}
        send([id for id in drawn if id not in taken][:SIZE], k)
        busy.sort()
        arrived, busy = busy[:SIZE], busy[SIZE:]
        x = x + sum(move / np.sqrt(1 + k - version) for _, _, move, version, _ in arrived) / SIZE
        waits.append(arrived[-1][0] - now)
        stale.append(np.mean([k - version for _, _, _, version, _ in arrived]))
        now = arrived[-1][0]
    return x, waits, stale


def test_stale_replies_are_those_of_a_program_of_events():
    x, waits, stale = by_hand(8)
    run = go(buffered(AVERAGE, 8), OverSelected(POPULATION, TABLE, more=0))
    np.testing.assert_allclose(run.params, x, rtol=ROUNDING)
    np.testing.assert_allclose(run.rows["seconds"], waits, rtol=ROUNDING)
    np.testing.assert_allclose(run.rows["staleness"], stale)
    assert max(stale) >= 1


def test_an_estimate_under_constant_staleness_is_the_gradient_at_the_stale_iterate():
    """Clients that are alike and take equally long: SPAM's recursion gives gradient descent with a delay of one."""
    alike = quadratics(0, clients=CLIENTS, dimension=3, delta=0.0, noise=0.0)
    method = mvr(SIZE, step_size=0.1, fresh_weight=0.3, first="update")
    run = go(buffered(method, 2 * SIZE), alike)
    x = [FIRST]
    for k in range(ROUNDS):
        x.append(x[-1] - 0.1 * np.asarray(alike.gradient(x[max(0, k - 1)])))
    np.testing.assert_allclose(run.params, x[-1], rtol=ROUNDING)
    assert run.rows["staleness"].tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.thorough
def test_a_buffered_run_resumes_and_takes_faults_and_rules(tmp_path):
    clients, method = OverSelected(POPULATION, ParetoDelay(), more=0), buffered(AVERAGE, 8)
    whole = go(method, clients)
    go(method, clients, 2, folder=tmp_path)
    resumed = go(method, clients, folder=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.params, whole.params)
    np.testing.assert_array_equal(resumed.rows["seconds"], whole.rows["seconds"])
    faulty = go(method, clients, faults=Faults(dropout=0.3, nan=0.2), aggregate=Median())
    assert np.isfinite(faulty.params).all()
    assert not np.allclose(faulty.params, whole.params)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: buffered(spam_pp(3, step_size=1.0, fresh_weight=0.3), 9), "spam_pp cannot be buffered"),
    (lambda: buffered(scaffold(3, 2, 0.1), 9), "scaffold cannot be buffered"),
    (lambda: buffered(mvr(3, step_size=0.1, fresh_weight=0.3), 9), "give first='update'"),
    (lambda: buffered(AVERAGE, 2), "concurrency = 2 must be a whole number of at least 3"),
])  # fmt: skip
def test_what_cannot_be_buffered_is_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()


@pytest.mark.thorough
def test_the_example_of_the_guide_runs(tmp_path, capsys):
    text = (Path(__file__).parents[2] / "docs" / "slow.md").read_text().split("## Slow clients: buffered")[1]
    (tmp_path / "guide.py").write_text(re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1])
    runpy.run_path(str(tmp_path / "guide.py"))
    waiting, hurried = (int(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert hurried < waiting / 5
