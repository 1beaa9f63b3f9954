"""The comparison: equal budgets, numbers that follow from the curves, curves from the methods; its command."""

import csv
import dataclasses
import json
import math
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import datasets, simulate
from fedspam.app import named_problems
from fedspam.app.arrival import arrival, arrivals, percentiles
from fedspam.app.cli import main
from fedspam.app.compare import (
    ComparisonPlan,
    costs_csv,
    curves_csv,
    options,
    parts,
    run_comparison,
    sweep,
    tuning,
    tuning_header,
)
from fedspam.app.compare.measures import MEASURES, Curves, Trial, best, best_of_all, cell
from fedspam.app.figures import draw_sweep
from fedspam.app.named_problems import PROBLEMS, load
from fedspam.federation import ledger
from fedspam.methods import METHODS, Scales
from fedspam.solvers import Exact

ROOT = Path(__file__).parents[2]
SEEDS, ROUNDS, BUDGET, COHORT, TARGETS = (4, 5), 20, 14, 7, (0.3, 0.05)
FILES = {"tuning.csv", "curves.csv", "table.csv", "figure.png", "figure.svg", "manifest.json", "command"}


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny comparison by the command line."""
    folder = tmp_path_factory.mktemp("compare") / "run"
    line = (
        f"compare --methods mvr,spam_pp --seeds {len(SEEDS)} --seed {SEEDS[0]} --rounds {ROUNDS} --cohort {COHORT} "
        f"--budget {BUDGET} --targets {TARGETS[1]},{TARGETS[0]} --exact --out {folder}"
    )
    assert main(line.split()) == 0
    return folder, f"fedspam {line}"


@pytest.fixture(scope="module")
def tiny():
    """A problem on which everything is quick."""
    clients, start = named_problems.similar_quadratics(0.1, 0.1, clients=8, dimension=3)
    return named_problems.of_quadratics("tiny", "tiny quadratics", clients, start)


FLOOR = 1e-6  # gradients relative to the first one; float32 has 6e-8, and sums of twenty such numbers less
TINY = ComparisonPlan(rounds=16, cohort=3, targets=(0.5,), seeds=2, budget=4, exact=True)


# --- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.users
@pytest.mark.slow
def test_all_files_are_there(made):
    folder, line = made
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "figure.svg").read_text()[:1000]
    assert (folder / "command").read_text() == f"{line}\n"
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["command"] == line
    assert (facts["seeds"], facts["methods"]) == (list(SEEDS), ["mvr", "spam_pp"])
    assert not set(facts["seeds"]) & set(facts["tuned_on"])
    assert facts["problem"]["delta"] == pytest.approx(0.03, rel=1e-5)


@pytest.mark.slow
@pytest.mark.users
def test_every_method_tries_as_many_settings(made):
    rows = read(made[0] / "tuning.csv")
    for key in ("mvr", "spam_pp"):
        mine = [row for row in rows if row["method"] == key]
        assert [int(row["trial"]) for row in mine] == list(range(1, BUDGET + 1))
        # first the registry's own proposals, in their order
        proposed = METHODS[key].grid(load("quadratics").scales(COHORT))
        told = [json.loads(row["setting"]) for row in mine[: len(proposed)]]
        for setting, one in zip(proposed, told, strict=True):
            assert one == pytest.approx(dict(setting), rel=1e-6)
        assert len({row["setting"] for row in mine}) == BUDGET
        assert {row["status"] for row in mine} <= {"fine", "diverged"}


@pytest.mark.users
@pytest.mark.slow
def test_the_table_follows_from_the_curves(made):
    """Every number again, by the definition: the first probe at the target from which a window is, in mean square."""
    window = min(10, (ROUNDS + 1) // 4)
    curves = {}
    for row in read(made[0] / "curves.csv"):
        curves.setdefault((row["method"], row["trial"], row["seed"]), []).append(row)
    table = read(made[0] / "table.csv")
    assert len(table) == 2 * len(TARGETS) * len(MEASURES)
    arrived = 0
    for row in table:
        costs = []
        for seed in SEEDS if row["trial"] else ():
            looks = curves[row["method"], row["trial"], str(seed)]
            assert [int(look["rounds"]) for look in looks] == list(range(ROUNDS + 1))
            errors = [float(look["error"]) for look in looks]
            there = [
                k
                for k in range(len(errors) - window + 1)
                if errors[k] <= float(row["target"])
                and math.sqrt(statistics.fmean(error**2 for error in errors[k : k + window])) <= float(row["target"])
            ]
            costs.append(float(looks[there[0]][row["measure"]]) if there else math.inf)
        median = statistics.median(costs) if costs else math.inf
        assert (float(row["median"]) if row["median"] else math.inf) == pytest.approx(median, rel=1e-9)
        assert int(row["reached"]) == sum(map(math.isfinite, costs))
        arrived += math.isfinite(median)
    assert arrived >= len(table) / 2  # SPAM-PP arrives everywhere: there is something to compare


@pytest.mark.slow
@pytest.mark.users
def test_each_number_is_of_the_setting_that_tuning_found_cheapest(made):
    tried = read(made[0] / "tuning.csv")
    for row in read(made[0] / "table.csv"):
        column = f"{row['measure']}_to_{row['target']}"
        mine = {r["trial"]: float(r[column]) for r in tried if r["method"] == row["method"] and r[column]}
        if mine:
            assert mine[row["trial"]] == min(mine.values())
        else:
            assert row["trial"] == row["median"] == ""


@pytest.mark.users
@pytest.mark.slow
@pytest.mark.parametrize("key", ["mvr", "spam_pp"])
def test_curves_are_those_of_the_method(made, key):
    """One chosen setting, run by itself: errors from the arrays of the problem, bytes from the ledger."""
    problem = load("quadratics")
    clients = problem.population
    H, b = np.asarray(clients.hessians, np.float64).mean(0), np.asarray(clients.linears, np.float64).mean(0)
    row = next(row for row in read(made[0] / "table.csv") if (row["method"], row["measure"]) == (key, "rounds"))
    more = {"solver": Exact()} if key == "spam_pp" else {}
    method = METHODS[key].build(**json.loads(row["setting"]), cohort_size=COHORT, **more)
    run = simulate(method, clients, jnp.zeros(20), rounds=ROUNDS, key=SEEDS[1], probe=lambda x: {"x": x})
    errors = np.linalg.norm(run.probes["x"] @ H - b, axis=1) / np.linalg.norm(b)
    looks = [
        look
        for look in read(made[0] / "curves.csv")
        if (look["method"], look["trial"], look["seed"]) == (key, row["trial"], str(SEEDS[1]))
    ]
    np.testing.assert_allclose([float(look["error"]) for look in looks], errors, rtol=1e-5, atol=FLOOR)
    plan = ledger.plan(method, jnp.zeros(20), clients)
    up, down, asked_in = (
        [sum(e.cohort * getattr(e, unit) for e in part) for part in (plan.start, plan.round)]
        for unit in ("bytes_up", "bytes_down", "floats_up")
    )
    assert asked_in[1] == 20 * (COHORT + (key == "spam_pp"))
    k = np.arange(ROUNDS + 1)
    np.testing.assert_array_equal([int(look["bytes_up"]) for look in looks], up[0] + k * up[1])
    np.testing.assert_array_equal(
        [int(look["bytes"]) for look in looks], sum(up[:1] + down[:1]) + k * (up[1] + down[1])
    )
    # two gradients a client of the cohort; the start one each; the exact prox counts as one
    gradients = COHORT + k * (2 * COHORT + (key == "spam_pp"))
    np.testing.assert_array_equal([float(look["gradients"]) for look in looks], gradients)


# --- measures --------------------------------------------------------------------------------------------------------


def test_one_low_error_is_no_arrival():
    there = [0.1] * 10
    before = [1.0] * 30
    error = np.array(
        [
            [*before, 1.0, 0.01, 0.5, *there, 0.2],  # the low error before the end of `before` does not count
            [*before, 1.0, 0.5, 0.4, 0.2, *there],  # arrives with its last ten errors
            [*before, 1.0, 0.5, 0.4, 0.2, 0.2, *there[1:]],  # nine are too few
            [*before, 1.0, 1e200, 1e250, *there, 0.3],  # overflows on the way
            [*before, 1.0, np.nan, *there, np.inf, 0.1],
            [*before, 1.0, *there[:5], np.nan, *there[3:]],
        ]
    )
    assert arrivals(error, 0.1).tolist() == [33, 34, np.inf, 33, 32, np.inf]
    assert arrivals(error[:, 31:32], 0.5).tolist() == [0, 0, 0, np.inf, np.inf, 0]  # the only error there is
    assert arrivals(error[0], 0.1) == 33
    # the root mean square from probe 0 on is below the target, but the first error is not
    assert arrivals(np.array([[1.0, *[0.01] * 50]]), 0.5).tolist() == [1]
    assert arrivals(np.zeros((2, 0)), 0.1).tolist() == [np.inf, np.inf]


def test_few_probes_are_averaged_over_a_quarter_of_them():
    assert arrivals(np.array([[1.0, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1]]), 0.1).tolist() == [3]
    assert arrivals(np.array([[1.0, 0.5, 0.1, 0.1]]), 0.1).tolist() == [2]


def test_arrival_at_negative_losses_and_rising_metrics():
    loss = np.concatenate([np.linspace(1, -5, 40), np.full(20, -5.0)])
    assert arrival(loss, 0.5) == int(np.argmax(loss <= 0.5))
    assert arrival(loss, -4.9) == int(np.argmax(loss <= -4.9))
    assert arrival(loss, -6.0) is None
    accuracy = 1 - 0.9 ** np.arange(60.0)
    assert arrival(accuracy, 0.9, rising=True) == 22
    assert arrival(10 * accuracy, 9.0, rising=True) == 22
    assert arrival(accuracy, 1.0, rising=True) is None


def test_medians_with_runs_that_never_arrive():
    assert cell(np.array([1.0, np.inf, 3.0]))[:1] == (3.0,)
    assert cell(np.array([1.0, np.inf]))[:1] == (np.inf,)
    assert cell(np.array([2.0, 1.0, np.inf, np.inf, 3.0])).reached == 3
    values = np.random.default_rng(0).random((7, 4))
    np.testing.assert_allclose(percentiles(values, (10, 50, 90)), np.percentile(values, (10, 50, 90), axis=0))
    np.testing.assert_allclose(percentiles(values, (5, 95), axis=1), np.percentile(values, (5, 95), axis=1))
    assert percentiles(np.array([1.0, np.inf, 2.0]), (0, 50, 100)).tolist() == [1, 2, np.inf]


def curves_of(*errors, price=10.0, void=0.0):
    error = np.array(errors)
    looks = np.broadcast_to(np.arange(error.shape[1], dtype=float), error.shape)
    return Curves(error, looks, price * looks, 2 * price * looks, looks, np.full(len(error), void))


def trial(number, *errors, **more):
    curves = curves_of(*errors, **more)
    return Trial("mvr", number, {}, curves, "diverged" if curves.diverged else "fine")


def test_the_best_is_the_cheapest_and_of_equals_the_lower():
    low, high = [0.1] * 10, [50.0] * 10
    slow, fast, dear, wild = (
        trial(1, [1.0, 0.5, *low, *[0.01] * 10]),
        trial(2, [1.0, *low, 0.1]),
        trial(3, [1.0, *low, 0.05], price=100.0),
        trial(4, [1.0, *high]),
    )
    assert wild.status == "diverged"
    assert best([slow, fast, dear], "rounds", 0.1) is dear
    assert best([slow, fast, dear], "bytes", 0.1) is fast
    assert best([slow, fast, dear], "bytes", 0.01) is slow
    assert best([slow, wild], "bytes", 0.001) is None
    assert best_of_all([slow, fast], "rounds", (0.1, 0.01)) is slow
    assert best_of_all([wild, fast, slow], "rounds", (1e-4,)) is slow


def test_what_counts_as_diverged():
    last = lambda value: [1.0, *[value] * 10]
    assert not curves_of(last(9.0)).diverged
    assert curves_of(last(11.0)).diverged
    assert curves_of(last(np.nan)).diverged
    assert curves_of(last(0.5), void=1.0).diverged
    assert not curves_of(last(0.1), last(np.inf), last(0.1)).diverged


# --- tuning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_diverged_setting_is_recorded_and_harms_no_other(tiny, monkeypatch):
    grid = lambda scales: [{"step_size": s / scales.smoothness, "fresh_weight": 0.5} for s in (0.9, 1e3, 1e30)]
    monkeypatch.setitem(METHODS, "mvr", dataclasses.replace(METHODS["mvr"], grid=grid))
    plan = dataclasses.replace(TINY, budget=3)
    found = run_comparison(tiny, ["mvr"], plan)
    assert found.entry("mvr", 0.5, "rounds").trial == 1
    assert math.isfinite(found.entry("mvr", 0.5, "rounds").median)
    status = tuning_header(plan).index("status")
    assert [row[status] for row in found.methods["mvr"].tuning] == ["fine", "diverged", "diverged"]


@pytest.mark.slow
def test_a_method_of_which_every_setting_diverges_is_a_row_without_numbers(tiny, monkeypatch, tmp_path):
    from fedspam.app.compare import compare

    grid = lambda scales: [{"step_size": s, "fresh_weight": 0.5} for s in (1e6, 1e30)]
    monkeypatch.setitem(METHODS, "mvr", dataclasses.replace(METHODS["mvr"], grid=grid))
    found = compare(tiny, ["mvr"], TINY, tmp_path / "run")
    assert {row[tuning_header(TINY).index("status")] for row in found.methods["mvr"].tuning} == {"diverged"}
    assert len(found.methods["mvr"].tuning) == TINY.budget
    assert all(entry.trial is None and entry.reached == 0 for entry in found.entries)
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    assert read(tmp_path / "run" / "table.csv")[0]["median"] == ""


@pytest.fixture(scope="module")
def ended_and_whole(tiny):
    """A comparison whose runs may end early, as on data, and the same with whole runs; their trials in tuning and those
    of the chosen settings, and how far the runs of the first got."""
    sizes = (0.9, 0.9 * (1 + 1e-9), 0.1, 1e30, 0.002)  # two alike, one diverges, one is slow
    grid = lambda scales: [{"step_size": s / scales.smoothness, "fresh_weight": 0.5} for s in sizes]
    plain = dataclasses.replace(tiny, exact=False)
    plan = dataclasses.replace(TINY, rounds=48, targets=(0.7, 0.5), budget=6)
    done, ends, many = [], tuning._ends, tuning.simulate_many
    trials, again, tune, try_settings = [], [], tuning.tune, tuning.try_settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspam.app.compare.tune", lambda *a: trials.append(tune(*a)) or trials[-1])
        patch.setattr(
            "fedspam.app.compare.try_settings", lambda *a, **k: again.append(try_settings(*a, **k)) or again[-1]
        )
        patch.setitem(METHODS, "mvr", dataclasses.replace(METHODS["mvr"], grid=grid))
        patch.setattr(tuning, "simulate_many", lambda *a, **k: done.append(many(*a, **k)) or done[-1])
        ended = run_comparison(plain, ["mvr"], plan)
        calls = [run.rounds_done for run in done]
        patch.setattr(tuning, "_ends", lambda plan, whole: ends(plan, True))
        whole = run_comparison(plain, ["mvr"], plan)
    return ended, whole, (*trials, *again), calls, plan


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "data"])
def test_evaluations_are_as_far_apart_as_asked(tiny, exact):
    """A comparison with every = 5 measures what one with every = 1 does, in every fifth round; 16 rounds have three."""
    problem = dataclasses.replace(tiny, exact=exact)
    settings = METHODS["mvr"].grid(problem.scales(TINY.cohort))[:2]
    run = lambda every: tuning.try_settings(
        "mvr", settings, problem, dataclasses.replace(TINY, every=every), [3, 4], first=1, whole=True
    )
    for often, seldom in zip(run(1), run(5), strict=True):
        assert seldom.curves.rounds[0].tolist() == [0, 5, 10, 15]
        for name in ("error", "rounds", "bytes_up", "bytes", "gradients"):
            each, fifth = (getattr(trial.curves, name) for trial in (often, seldom))
            np.testing.assert_allclose(fifth, each[:, ::5], rtol=1e-9)


@pytest.mark.slow
def test_runs_that_end_early_change_neither_table_nor_curves(ended_and_whole):
    ended, whole, (trials, *_), _, plan = ended_and_whole
    assert costs_csv(ended) == costs_csv(whole)
    assert curves_csv(ended) == curves_csv(whole)
    ended_rows, whole_rows = (
        [dict(zip(tuning_header(plan), row, strict=True)) for row in found.methods["mvr"].tuning]
        for found in (ended, whole)
    )
    for one, other, trial in zip(ended_rows, whole_rows, trials, strict=True):
        final = one.pop("final_error"), other.pop("final_error")
        assert one == other
        assert trial.early or final[0] == final[1]  # only of those that arrived it is the error of their end
    assert ended.methods["mvr"].diverged == whole.methods["mvr"].diverged == 1


@pytest.mark.slow
def test_settings_that_arrive_or_diverge_end_and_those_that_tie_run_again(ended_and_whole):
    _, _, (trials, whole_trials, finals, _), (first, again, *_), _ = ended_and_whole
    assert np.all(first[:4] < 48)
    assert np.all(first[4] == 48)
    assert np.all(first[5:] == 1)  # idle
    one, other, slower, wild = trials[:4]
    assert one.cost("rounds", 0.5) == other.cost("rounds", 0.5) < slower.cost("rounds", 0.5)
    assert np.all(again[:2] == 48)
    assert np.all(again[2:] == 1)
    assert (one.early, other.early, slower.early, wild.early) == (False, False, True, False)
    assert not any(trial.early for trial in [*whole_trials, *finals])


@pytest.mark.slow
def test_parts_keep_what_a_table_of_runs_that_ended_needs(ended_and_whole, tmp_path):
    ended = ended_and_whole[0]
    results = {(0, key): result for key, result in ended.methods.items()}
    parts.write_part(tmp_path, parts.ComparisonPart(1, 1), {}, {}, results, "fedspam compare")
    read_back = parts.results_of(parts.read_parts([tmp_path]))[0, "mvr"]
    kept = dataclasses.asdict(ended.methods["mvr"])
    np.testing.assert_equal(dataclasses.asdict(read_back), kept)
    (curves, *_) = ended.methods["mvr"].finals.values()
    several = {(0, "mvr"): dataclasses.replace(ended.methods["mvr"], finals={2: curves, 10: curves})}
    parts.write_part(tmp_path, parts.ComparisonPart(1, 1), {}, {}, several, "fedspam compare")
    assert list(parts.results_of(parts.read_parts([tmp_path]))[0, "mvr"].finals) == [2, 10]  # the order of curves.csv


def test_settings_near_another_change_numbers_alone(tiny):
    random = np.random.default_rng(0)
    setting = {"local_rate": 0.5, "fresh_weight": 0.9, "local_steps": 3}
    drawn = [tuning.nearby("ce_lsgd", setting, tiny, TINY, random) for _ in range(50)]
    assert {one["local_steps"] for one in drawn} == {3}
    sizes, fresh_weights = (np.array([one[name] for one in drawn]) for name in ("local_rate", "fresh_weight"))
    assert 0.125 <= sizes.min() < 0.2 < 1.2 < sizes.max() <= 2.0
    assert fresh_weights.max() <= 1  # those above are refused by the method, and drawn again
    assert len(set(sizes)) == 50


@pytest.mark.parametrize("budget", [1, 4, 12, 15])
def test_the_budget_is_what_is_tried(tiny, budget, monkeypatch):
    tried = []
    fake = lambda key, settings, *rest, first: (
        tried.extend(settings) or [trial(first + i, [1.0, 0.5], [1.0, 0.4]) for i in range(len(settings))]
    )
    monkeypatch.setattr(tuning, "try_settings", fake)
    ticks = []
    plan = dataclasses.replace(TINY, budget=budget)
    # the fake trials carry no settings to search around
    monkeypatch.setattr(tuning, "nearby", lambda key, *rest: {"step_size": 1.0})
    assert len(tuning.tune("mvr", tiny, plan, lambda: ticks.append(1))) == budget == len(tried)
    assert len(ticks) <= tuning.waves(budget)


def test_a_method_without_numbers_is_tried_once(tiny, monkeypatch):
    monkeypatch.setitem(METHODS, "mvr", dataclasses.replace(METHODS["mvr"], grid=lambda scales: [{"cohort_size": 3}]))
    monkeypatch.setattr(tuning, "try_settings", lambda key, settings, *rest, first: [trial(first, [1.0, 0.5])])
    assert len(tuning.tune("mvr", tiny, TINY)) == 1


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.slow
def test_every_method_can_be_compared(key, tiny):
    """Its grid builds, on quadratics and elsewhere; and it counts its clients' gradients."""
    plain = dataclasses.replace(tiny, exact=False)
    for scales in (tiny.scales(3), Scales(delta=1e-4, smoothness=50.0, clients=8, cohort=8)):
        settings = METHODS[key].grid(scales)
        assert settings
        for setting in settings:
            tuning.build(key, setting, plain, dataclasses.replace(TINY, cohort=scales.cohort))
    method = tuning.build(key, METHODS[key].grid(tiny.scales(3))[0], tiny, TINY)
    fed = lambda: ledger.Null(tiny.population, memory=method.client_state(tiny.start))
    draw = jax.random.key(0)
    state = jax.eval_shape(lambda x: method.init(x, draw, fed()), tiny.start)
    _, info = jax.eval_shape(lambda state: method.round(state, draw, fed()), state)
    assert jnp.shape(info.gradients) == ()


# --- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ridge", "ridge-similar", "quadratics"])
def test_named_quadratics(name):
    problem, named = load(name), PROBLEMS[name]
    assert problem.clients == problem.population.size == named.clients >= named.cohort
    assert float(problem.probe(problem.start)["gradient"]) == pytest.approx(1)
    assert float(problem.probe(jnp.asarray(problem.population.minimizer))["gradient"]) < FLOOR
    assert problem.optimum == pytest.approx(float(problem.population.loss(jnp.asarray(problem.population.minimizer))))


@pytest.mark.slow
def test_named_problem_with_data(data):
    problem = load("heart", data)
    clients = problem.population
    assert problem.clients == clients.size == 4
    assert np.diff(np.asarray(clients.offsets)).tolist() == [200, 172, 30, 86]
    x = jnp.asarray(np.random.default_rng(0).standard_normal(14))
    f = lambda x: jnp.mean(jax.vmap(lambda i: clients.client(i)(x))(jnp.arange(4, dtype=jnp.uint32)))
    slope = lambda x: float(jnp.linalg.norm(jax.grad(f)(x)))
    seen = problem.probe(x)
    assert float(seen["gradient"]) == pytest.approx(slope(x) / slope(problem.start), rel=1e-5)
    assert 0 <= float(seen["accuracy"]) <= 1
    assert problem.metrics == ("gradient", "accuracy")
    plan = ComparisonPlan(rounds=16, cohort=2, targets=(0.6, 0.7), seeds=2, budget=1, metric="accuracy")
    found = run_comparison(problem, ["mvr"], plan)
    assert plan.errors == pytest.approx((0.4, 0.3))
    (curves,) = found.methods["mvr"].finals.values()
    assert curves.error[:, 0] == pytest.approx(1 - float(problem.probe(problem.start)["accuracy"]))
    assert curves.error[:, -1].max() < curves.error[0, 0]


def test_the_data_folder_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    assert main(["compare", "--problem", "mushrooms", "--methods", "mvr", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedspam: error: no data found: FEDSPAM_DATA is not set")
    assert error.count("\n") == 1


# --- the sweep -------------------------------------------------------------------------------------------------------


def row(method, median, *, measure="rounds", target=0.01, case="0.1"):
    return sweep.Row("quadratics", case, 0.1, target, method, measure, median, median, median, 2, 2, 1, "{}")


def test_targets_are_told_with_all_their_digits_and_once():
    plan = ComparisonPlan(rounds=3, cohort=2, targets=(0.8765432, 0.8, 0.8), metric="accuracy")
    assert [plan.text(error) for error in plan.errors] == ["0.8", "0.8765432"]


def test_quotients_and_verdicts():
    assert [sweep.quotient(a, b) for a, b in ((30, 10), (math.inf, 10), (10, math.inf))] == [3, math.inf, 0]
    assert math.isnan(sweep.quotient(math.inf, math.inf))
    told = {3: "wins", math.inf: "wins", 0: "loses", 0.5: "loses", 1.2: "ties", 0.81: "ties", math.nan: "neither"}
    assert {ratio: sweep.verdict(ratio) for ratio in told} == told
    rows = [row("spam_pp", 10.0), row("mvr", 30.0), row("saber", 5.0)]
    rows += [row(key, math.inf, case="1") for key in ("spam_pp", "mvr")] + [row("saber", 7.0, case="1")]
    assert sweep.tally(rows, "rounds")["mvr"] == {"wins": 1, "ties": 0, "loses": 0, "neither": 1}
    assert sweep.tally(rows, "rounds")["saber"] == {"wins": 0, "ties": 0, "loses": 2, "neither": 0}
    rows += [one._replace(measure="bytes", median=1000 * one.median) for one in rows]
    text = sweep.markdown(rows)
    assert "| quadratics | 0.1 | 0.01 | 10 | 3 | **0.5** |" in text
    assert "| quadratics | 0.1 | 0.01 | – | – | **0** |" in text
    assert "| quadratics | 0.1 | 0.01 | 10 kB | 3 | **0.5** |" in text
    assert "| MVR | 1 | 0 | 0 | 1 | 0 | 0 | 1 |" in text
    assert sweep.from_csv(sweep.to_csv(rows)) == rows


@pytest.mark.slow
def test_a_tiny_sweep(tmp_path, tiny):
    chosen = [sweep.Case("tiny", f"{n}", lambda: tiny) for n in (1, 2)]
    ticks = []
    rows = sweep.sweep(
        tmp_path / "run", ["mvr"], TINY, chosen=chosen, command="fedspam", progress=lambda: ticks.append(1)
    )
    assert {path.name for path in (tmp_path / "run").iterdir()} == (FILES - {"curves.csv"}) | {"table.md"}
    assert len(rows) == 2 * 2 * len(MEASURES)  # problems, methods
    assert sweep.markdown(sweep.from_csv((tmp_path / "run" / "table.csv").read_text())) == sweep.markdown(rows)
    assert len(read(tmp_path / "run" / "tuning.csv")) == 2 * 2 * TINY.budget
    assert len(ticks) <= sweep.steps(1, TINY, 2)
    # the same problem, the same numbers
    first, second = ([one._replace(case="") for one in rows if one.case == case] for case in ("1", "2"))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 0.37])
@pytest.mark.parametrize("paid", [[3.0, 3.0], [3.0, np.nextafter(3.0, 4.0)], [3.0, np.inf]])
def test_a_sweep_of_problems_alike_to_rounding_has_a_figure(ratio, paid):
    """Numbers that are equal but for a few units of the last place have no logarithms of their own, so no limits."""
    for units in range(4):
        ratios = np.array([ratio, ratio * (1 + units * np.finfo(float).eps)])
        figure = draw_sweep({"rounds": {"tiny": {"MVR": (ratios, np.array(paid))}}}, ["note"])
        figure.draw_without_rendering()  # warnings are errors
        low, high = figure.axes[0].get_xlim()
        assert low < 0.9 * ratio < 1.1 * ratio < high


def test_the_problems_of_the_sweep_are_what_they_say():
    by_family = {}
    for case in sweep.cases():
        by_family.setdefault(case.family, []).append(case)
    assert [len(part) for part in by_family.values()] == [5, 5, 5, 1]
    for family, noise in (("quadratics, small noise", sweep.SMALL), ("quadratics, large noise", sweep.LARGE)):
        for case in (by_family[family][0], by_family[family][-1]):
            problem = case.make()
            clients = problem.population
            assert problem.delta / problem.smoothness == pytest.approx(float(case.label), rel=1e-5)
            unit = float(jnp.linalg.norm(clients.gradient(problem.start)))
            assert float(clients.sigma(jnp.asarray(clients.minimizer))) == pytest.approx(noise * unit, rel=1e-5)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--methods spam_p", "there is no method 'spam_p'; did you mean 'spam_pp'?"),
        ("--methods ,", "there are no methods to compare"),
        ("--problem mushroom", "problem = 'mushroom' must be one of"),
        ("--problem mushroom", "did you mean 'mushrooms'?"),
        ("--problem=", "problem = '' must be one of"),
        ("--problem heart --cohort 5", "cohort = 5 is larger than the 4 clients of 'heart'; choose at most 4"),
        ("--sweep --cohort 500", "cohort = 500 is larger than the 200 clients of 'the sweep'"),
        ("--sweep --problem ridge", "cannot be combined with the sweep"),
        ("--sweep --metric accuracy", "have no test set"),
        ("--problem ridge --metric accuracy", "'ridge' has no test set for the accuracy; these problems have one"),
        ("--targets 0.1,2", "target = 2.0 must lie between 0 and 1"),
        ("--targets 0.1;2", "'0.1;2' must be a number"),
        ("--targets ,", "there are no targets"),
        ("--seeds 0", "--seeds: '0' must be a whole number from 1 to 10000"),
        ("--rounds none", "--rounds: 'none' must be a whole number"),
        ("--metric loss", "fedspam compare experiment.toml --metric loss"),
        ("--metric time", "invalid choice: 'time'"),
        ("--round 3", "unrecognized arguments: --round; did you mean --rounds?"),
    ],
)
def test_wrong_arguments_exit_with_2_and_say_why(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *arguments.split()])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_what_is_usual_is_filled_in():
    usual = options.checked()
    assert (usual.problem, usual.plan.seeds, usual.plan.budget) == ("quadratics", 5, 24)
    assert set(usual.methods) <= set(METHODS)
    swept = options.checked(sweep=True, methods=["mvr", "spam_pp"], rounds=7)
    assert (swept.problem, swept.methods, swept.plan.rounds, swept.plan.seeds) == (None, ("mvr",), 7, 10)
    assert options.checked(methods=["all"]).methods == tuple(METHODS)
    assert options.checked(problem="har", metric="accuracy").plan.label(0.05) == 0.95


@pytest.mark.slow
def test_quiet_prints_the_folder_alone_and_a_bad_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = "compare --methods mvr --rounds 2 --seeds 1 --budget 1 --quiet --out"
    assert main([*line.split(), str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("fedspam: error: cannot make the folder")
    assert main([*line.split(), str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "run")


def test_methods_are_listed(capsys):
    assert main(["methods", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == METHODS.keys()
    assert told["spam_pp"]["up"] == METHODS["spam_pp"].up._asdict()
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {key} " in shown for key in METHODS)
    with pytest.raises(SystemExit):
        main(["methods", "--json", "--markdown"])


def test_one_method_is_described(capsys):
    assert main(["methods", "scaffold"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("SCAFFOLD A fixed set of clients")
    assert "floats down, per client 2d floats up, per client d " in shown
    assert "clients keep no state – " in shown
    assert main(["methods", "scaffold", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"scaffold"}
    for words, told in (("scaffld", "did you mean 'scaffold'?"), ("scaffold --markdown", "leave out the key")):
        with pytest.raises(SystemExit):
            main(["methods", *words.split()])
        assert told in capsys.readouterr().err
