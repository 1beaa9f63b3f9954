"""The report: what it reads, what it computes, and how its page looks and behaves in a browser."""

import base64
import csv
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import browser as pages
from fedspam import Keep, Ragged, simulate, spam_pp, spam_ppa
from fedspam._internal.describe import describe
from fedspam.app import appearance, reproduce
from fedspam.app.amounts import SUPERSCRIPT, amount, number
from fedspam.app.arrival import arrival
from fedspam.app.cli import main
from fedspam.app.compare import ComparisonPlan, ComparisonResult, _panels, chosen_numbers, result_of, write_files
from fedspam.app.compare.measures import MEASURES, Curves, Trial
from fedspam.app.compare.parts import ProblemFacts
from fedspam.app.experiment.scores import LABELS
from fedspam.app.figures import Line, draw_comparison, draw_curves
from fedspam.app.report import BoundOverlay, Curve, Paid, _figures, page, read, read_all, tables, targets, write
from fedspam.app.report.provenance import method_name
from fedspam.app.report.series import AskedTarget, ModelScores, straightened, thin
from fedspam.app.reproduce.experiment import READING, SETTINGS, SOLVERS
from fedspam.methods import METHODS, fedavg
from fedspam.problems import quadratics
from fedspam.simulation import records
from fedspam.simulation.status import Status
from fedspam.solvers import SampledSteps
from fedspam.theory import Constants, inexact_bound

browser = pages.browser

CLIENTS = quadratics(0, clients=12, dimension=4, delta=0.5, noise=0.05)
EVIL = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">'


def look(clients: Any, x: Any) -> dict[str, Any]:
    ids = jnp.arange(clients.size, dtype=jnp.uint32)
    return {
        "gradient": jnp.linalg.norm(clients.gradient(x)),
        "loss": jax.vmap(lambda id: clients.client(id)(x))(ids),
        f"{EVIL}": jnp.sum(x**2),
    }


RUNS = {
    "one": spam_pp(4, step_size=1 / (4 * CLIENTS.delta), fresh_weight=0.6),
    "other": fedavg(4, local_steps=3, local_rate=0.02),
}
ONE, OTHER = (method_name(describe(method)) for method in RUNS.values())  # what a report calls them


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two runs on disk, and what simulate returned."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: (
            folder / name,
            simulate(
                method, CLIENTS, 3 * jnp.ones(4), rounds=60, key=0, probe=Partial(look, CLIENTS), every=2,
                folder=folder / name, keep=Keep(every=20),
            ),
        )
        for name, method in RUNS.items()
    }  # fmt: skip


@pytest.mark.slow
def test_a_run_is_read_as_it_was_recorded(runs: dict[str, Any]) -> None:
    folder, run = runs["one"]
    source = read(folder)
    (series,) = source.series
    assert (source.kind, source.status.kind, series.name) == ("run", "completed", ONE)
    curve = series.metrics["gradient"]
    assert curve.at.tolist() == list(range(0, 61, 2))
    assert np.array_equal(curve.value, run.probes["gradient"])
    paid = {"bytes_up": run.rows["bytes_up"], "gradients": run.rows["gradients"]}
    paid["bytes"] = run.rows["bytes_up"] + run.rows["bytes_down"]
    for measure, column in paid.items():
        assert series.paid[measure].after(np.array([0.0, 7.0, 60.0])) == pytest.approx(
            [0, column[:7].sum(), column.sum()]
        )
    losses = run.probes["loss"].astype(float)  # as the page takes them
    assert np.array_equal(series.clients["loss"][25].value, np.percentile(losses, 25, axis=1))
    assert series.certificates is not None
    assert series.certificates["share"] == pytest.approx(np.mean(run.rows["certificate.certified"]))


def test_how_long_it_took_is_recorded_without_compiling(runs: dict[str, Any]) -> None:
    folder, run = runs["one"]
    paid = read(folder).series[0].paid["seconds"]
    assert paid.at.tolist() == [0, 20, 40, 60]
    assert (np.diff(paid.amount) > 0).all()
    assert paid.amount[-1] == pytest.approx(run.run_seconds, abs=1e-5)


@pytest.mark.parametrize("key", METHODS)
def test_a_report_calls_a_method_what_the_table_of_methods_calls_it(key: str) -> None:
    row = METHODS[key]
    assert method_name({"type": "Anything", "name": key}) == row.name
    made = row.make()
    if hasattr(made, "name"):
        assert method_name(describe(made)) == row.name


def test_methods_outside_the_table_and_wrappers_have_names() -> None:
    assert method_name({"type": "Mine", "name": "mine"}) == "mine"
    assert method_name({"type": "Mine"}) == "Mine"
    assert method_name({"type": "Observed", "method": {"type": "Spam", "name": "spam_pp"}}) == "SPAM-PP"
    assert method_name({"type": 3}) is method_name(None) is None


def test_two_runs_of_one_method_have_names_of_their_own(runs: dict[str, Any]) -> None:
    folder = runs["one"][0]
    names = [source.series[0].name for source in read_all([folder, folder, runs["other"][0]])]
    assert names == [f"{ONE} · one", f"{ONE} · one (2)", OTHER]


def test_targets_are_levels_that_somebody_reaches() -> None:
    at = np.arange(100.0)
    slow, fast = Curve(at, 5 * 0.93**at), Curve(at, 5 * 0.8**at)
    found = targets.choose([slow, fast], up=False)
    assert found[0] == 1.0
    assert 0.01 in found  # the hardest that both reach
    assert arrival(slow.value, found[-1]) is None
    assert arrival(fast.value, found[-1]) is not None
    rising = Curve(at, 1 - 0.9**at)
    assert targets.choose([rising], up=True)[-1] == 0.99
    # what one has at its start, or all have at once, is no target, if there are others
    ahead = Curve(at, 0.6 + 0.03 * (1 - 0.9**at))
    behind = Curve(at, np.where(at > 0, 0.55 + 0.07 * (1 - 0.8**at), 0.2))
    assert targets.choose([ahead, behind], up=True) == [0.61, 0.62]


def test_a_run_that_ended_at_its_target_has_arrived(runs: dict[str, Any]) -> None:
    """It has no values after it that could confirm it; harder levels and other metrics it has not reached."""
    (source,) = read_all([runs["one"][0]])
    at = np.arange(41.0)
    rising = Curve(at, np.append(np.linspace(0.1, 0.5, 40), 0.86))
    (series,) = [replace(one, metrics={"accuracy": rising}, paid={"rounds": Paid(at, at)}) for one in source.series]
    ended = replace(source, series=[series], asked=AskedTarget("accuracy", 0.85, 40.0))
    arrived = lambda source, *given: [cell.paid for cell in targets.cells([source], given)]
    assert [cell.target for cell in targets.cells([ended])] == [0.85]
    assert arrived(ended) == [40]
    assert arrived(ended, 0.8, 0.86) == [40, None]
    assert arrived(replace(ended, asked=None), 0.8) == [None]
    assert arrived(replace(ended, asked=AskedTarget("loss", 0.85, 40.0)), 0.8) == [None]


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    random = np.random.default_rng(1)
    long = Curve(np.arange(50_000.0), random.normal(size=50_000))
    short = thin(long)
    assert len(short.at) < 1300
    assert len(thin(long, 60).at) < 60
    assert set(short.at) >= set(range(100)) | {49_999.0}
    assert (short.value.min(), short.value.max()) == (long.value.min(), long.value.max())
    assert all(long.value[int(k)] == value for k, value in zip(short.at, short.value, strict=True))


def test_what_was_paid_is_the_same_line_through_fewer_points() -> None:
    each = np.repeat([3.0, 10.0, 3.0], [400, 5, 300])
    whole = Paid(np.arange(706.0), np.concatenate([[0.0], np.cumsum(each)]))
    short = straightened(whole)
    assert len(short.at) == 4
    assert np.interp(whole.at, short.at, short.amount) == pytest.approx(whole.amount)


def test_the_bound_is_that_of_the_theorem_and_holds(runs: dict[str, Any]) -> None:
    """SPAM-PP within the theorem's premises: its root mean square gradient stays below what is promised."""
    folder, run = runs["one"]
    start = 3 * jnp.ones(4)
    gap = float(CLIENTS.loss(start)) - CLIENTS.optimum
    sigma = float(max(CLIENTS.sigma(start), CLIENTS.sigma(jnp.asarray(CLIENTS.minimizer))))
    error = float(CLIENTS.sigma(start)) ** 2
    constants = Constants(CLIENTS.delta, sigma, gap, error)
    (source,) = read_all([folder], BoundOverlay(constants))
    series = source.series[0]
    name = "gradient, root mean square"
    gamma = run.rows["step_size"]
    expected = np.sqrt(inexact_bound(constants, gamma, 0.6, cohort=4.0).total)
    assert series.certificates is not None
    assert (series.certificates["epsilons"] == 0).all()
    assert series.bounds[name].value == pytest.approx(expected)
    curve, bound = series.metrics[name], series.bounds[name]
    squares = run.probes["gradient"][1:] ** 2
    assert curve.value[-1] == pytest.approx(np.sqrt(squares.mean()))
    assert (curve.value < np.interp(curve.at, bound.at, bound.value)).all()
    (source,) = read_all([folder], BoundOverlay(constants, version="tight"))
    tight = source.series[0].bounds[name]
    assert (tight.value < bound.value / 2).all()
    assert (curve.value < np.interp(curve.at, tight.at, tight.value)).all()


def test_a_bound_without_its_ingredients_is_refused(runs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs the probe 'norm'"):
        read_all([runs["one"][0]], BoundOverlay.of("delta=1,gap=1,metric=norm"))
    for text, message in (
        ("delta", "with its value"),
        ("gap=1", "at least delta"),
        ("delta=x,gap=1", "a number"),
        ("delta=1,gap=1,version=best", "version"),
    ):
        with pytest.raises(ValueError, match=message):
            BoundOverlay.of(text)


# --- other folders ---------------------------------------------------------------------------------------------------


def ways(levels: Sequence[float], costs: Sequence[float]) -> Curves:
    """Made-up runs with five seeds that have these errors in turn, after 1, for ten rounds each; and their costs."""
    rounds = np.tile(np.arange(31.0), (5, 1))
    seeds = np.array([[1.0], [1.01], [1.02], [1.03], [1.04]])
    error = np.minimum(1.0, np.repeat([1.0, *levels, levels[-1]], 10)[:31] * seeds)
    return Curves(error, rounds, *(cost * rounds for cost in costs), np.zeros(5))


# by method: settings that are best for the easy or for the hard target, on one axis or another
TRIED = {
    "fedavg": [
        ways([0.14, 0.13], (10, 30, 4)),  # the fastest, but it never reaches the hard target
        ways([0.3, 0.08], (50, 90, 4)),  # reaches both in the fewest gradients
        ways([0.12, 0.07], (10, 30, 40)),  # reaches both in the fewest rounds and bytes
    ],
    "scaffold": [ways([0.5, 0.2], (10, 30, 4)), ways([0.5, np.nan], (10, 30, 4))],  # reaches neither
    "spam_pp": [ways([0.05, 0.01], (20, 40, 8))],
    "mvr": [ways([0.0975, 0.0975], (20, 40, 8))],  # two of five seeds miss the hard target
}
METRICS = {"accuracy": (0.85, 0.9), "loss": (0.15, 0.1), "gradient": (0.15, 0.1)}


def compared(folder: Path, metric: str) -> ComparisonResult:
    """The files that `fedspam compare` writes, of made-up runs whose best settings it chooses itself."""
    plan = ComparisonPlan(rounds=30, cohort=2, targets=METRICS[metric], seeds=5, budget=3, metric=metric)
    trials = {
        key: [Trial(key, i + 1, {"step_size": i / 8}, curves, "fine") for i, curves in enumerate(tried)]
        for key, tried in TRIED.items()
    }
    finals = {
        key: {number: tried[number - 1].curves for number in chosen_numbers(tried, plan)}
        for key, tried in trials.items()
    }
    methods = {key: result_of(tried, finals[key], plan) for key, tried in trials.items()}
    found = ComparisonResult(ProblemFacts("made", "made up", 4, 1.0, 2.0, 2.0, None), plan, methods)
    write_files(found, folder, "fedspam compare", 0.0)
    return found


@pytest.mark.parametrize("metric", METRICS)
def test_a_comparison_is_read_as_it_was_written(tmp_path: Path, metric: str) -> None:
    found, source = compared(tmp_path, metric), read(tmp_path)
    assert tuple(dict.fromkeys(goal.target for goal in source.goals)) == METRICS[metric]
    for goal, entry in zip(source.goals, found.entries, strict=True):
        cell = [value if math.isfinite(value) else None for value in (entry.median, entry.low, entry.high)]
        assert (goal.series, goal.measure) == (METHODS[entry.method].name, entry.measure)
        assert [goal.paid, goal.low, goal.high] == pytest.approx(cell)
    assert targets.cells([source]) == source.goals
    for key, measure in itertools.product(TRIED, MEASURES):  # the curve of the figure
        (series,) = [one for one in source.series if one.name == METHODS[key].name and one.against(measure)]
        shown = found.methods[key].shown[measure]
        assert series.trial == shown
        (curve,) = series.metrics.values()
        error = np.median(found.methods[key].finals[shown].error, axis=0)
        assert curve.value == pytest.approx(1 - error if metric == "accuracy" else error, rel=1e-8)
    numbers = {key: set(found.methods[key].shown.values()) for key in TRIED}
    assert numbers == {"fedavg": {2, 3}, "scaffold": {1}, "spam_pp": {1}, "mvr": {1}}
    assert source.command == "fedspam compare"


def test_a_seed_that_diverged_has_the_worst_accuracy(tmp_path: Path) -> None:
    """An error that is NaN is no accuracy above all others."""
    head = "method,trial,seed,rounds,bytes_up,bytes,gradients,error\n"
    rows = [f"auto,1,{seed},1,8,9,4,{error}\n" for seed, error in enumerate((0.1, 0.2, "nan"))]
    (tmp_path / "curves.csv").write_text(head + "".join(rows))
    (tmp_path / "manifest.json").write_text(json.dumps({"plan": {"metric": "accuracy"}}))
    (curve,) = read(tmp_path).series[0].metrics.values()
    assert (curve.value[0], curve.high[0]) == pytest.approx((0.8, 0.88))
    assert curve.low[0] == -math.inf


def test_settings_of_one_method_are_told_apart_in_tables(tmp_path: Path) -> None:
    compared(tmp_path, "accuracy")
    write([tmp_path], tmp_path / "r.html", csv=tmp_path / "c.csv")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    curves = Counter((row["series"], row["trial"]) for row in rows)
    assert curves == dict.fromkeys(
        [("FedAvg", "2"), ("FedAvg", "3"), ("SCAFFOLD", "1"), ("SPAM-PP", "1"), ("MVR", "1")], 31
    )


@pytest.mark.slow
def test_latex_prints_names_as_they_are(tmp_path: Path) -> None:
    for name in ("50%_{x}", "other"):
        (tmp_path / name).mkdir()
        compared(tmp_path / name, "accuracy")
    write([tmp_path / "50%_{x}", tmp_path / "other"], tmp_path / "r.html", latex=tmp_path / "r.tex")
    assert "\nFedAvg $\\cdot$ 50\\%\\_\\{x\\} & " in (tmp_path / "r.tex").read_text()


def test_targets_that_a_comparison_was_not_tuned_for_are_refused(tmp_path: Path) -> None:
    compared(tmp_path, "accuracy")
    with pytest.raises(ValueError, match=r"tuned for its own targets, 0.85, 0.9; leave out --targets"):
        write([tmp_path], tmp_path / "r.html", targets=[0.8])


def test_the_papers_experiment_is_read(tmp_path: Path) -> None:
    curves = {
        (setting.name, label): np.linspace(1, 0.1, 9 * setting.stretch)[None] * np.ones((3, 1))
        for setting in SETTINGS
        for label in SOLVERS
    }
    (tmp_path / "curves.csv").write_text(reproduce._curves_csv(curves, 0))
    (tmp_path / "manifest.json").write_text(json.dumps({"reading": " ".join(READING)}))
    source = read(tmp_path)
    assert not set("$\\^") & set(source.notes[0])
    assert "A_ξ=A₀A₀ᵀ+B_ξ" in source.notes[0]
    assert len(source.series) == 9
    assert source.series[0].name == "exact prox, γδ = 10.0, p = 0.1"
    assert source.series[0].metrics["relative gradient norm"].value[-1] == pytest.approx(0.1)


def test_what_is_no_run_is_refused_with_a_hint(tmp_path: Path, runs: dict[str, Any], capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path / "absent"), "--out", str(tmp_path / "r.html")])
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err
    for folder, message in (
        (tmp_path, "holds no manifest.json"),
        (runs["one"][0].parent, f"did you mean {runs['one'][0]}"),
    ):
        assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "curves.csv").write_text("a,b\n1,2\n")
    with pytest.raises(records.RecordError, match=r"neither rows.bin nor a curves.csv"):
        read(tmp_path)
    (tmp_path / "curves.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(records.RecordError, match=r"curves.csv is damaged"):
        read(tmp_path)
    assert main(["report", str(runs["one"][0]), "--out", str(tmp_path)]) == 1
    assert "is a folder; name the file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(runs["one"][0]), "--bound", "delta"])


def test_a_run_that_has_just_begun_is_shown(runs: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "young"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((runs["one"][0] / "manifest.json").read_bytes())
    data = (runs["one"][0] / "rows.bin").read_bytes()
    (folder / "rows.bin").write_bytes(data[: 8 + int.from_bytes(data[:8], "little")])
    (series,) = read(folder).series
    assert series.metrics["gradient"].at.tolist() == [0.0]
    assert series.certificates is None
    write([folder], tmp_path / "r.html", csv=tmp_path / "c.csv")


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with records.Store(tmp_path) as store:
        store.begin({})
        odd = {"void": np.zeros(3, bool), "bytes_up": np.ones(2, np.int64), "bytes_down": np.ones(3, np.int64)}
        store.append(3, jnp.zeros(1), odd, {"gradient": np.ones(2)})
    with pytest.raises(records.RecordError, match=r"columns of lengths .* one entry per round"):
        read(tmp_path)


def test_numbers_that_are_not_finite_leave_gaps(runs: dict[str, Any]) -> None:
    """Infinity and NaN in any number of a run: JSON has neither, and the report shows nothing in their place."""
    source = read(runs["one"][0])
    (series,) = source.series
    at = np.arange(3.0)
    odd = np.array([1.0, np.inf, np.nan])
    broken = replace(
        series, paid={"rounds": Paid(at, at), "gradients": Paid(at, odd)}, metrics={"loss": Curve(at, odd)}, clients={},
        certificates={"share": np.nan, "floor": np.inf, "passed": 0.5, "window": 1, "along": Curve(at, odd)},
    )  # fmt: skip
    text = page.render([replace(source, series=[broken], configuration={"growth": math.inf})], "odd")
    found = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])["series"][0]
    assert found["paid"]["gradients"]["amount"][-1] is None
    assert (found["certificates"]["share"], found["certificates"]["floor"]) == (None, None)
    assert found["metrics"]["loss"]["value"] == [1.0, None, None]


@pytest.mark.slow
def test_an_endless_step_size_is_reported(tmp_path: Path) -> None:
    """Its proxes have an infinite step size, so its certificates hold numbers that are not finite."""
    rows = np.random.default_rng(0).normal(size=(6, 20, 3))
    clients = Ragged.of(list(rows), lambda x, row: jnp.sum((row - x) ** 2, axis=1), batch=4)
    method = spam_ppa(3, jnp.inf, 0.5, solver=SampledSteps(steps=4))
    simulate(method, clients, jnp.ones(3), rounds=4, key=0, folder=tmp_path / "run")
    certificates = read(tmp_path / "run").series[0].certificates
    assert certificates is not None
    assert not math.isfinite(certificates["floor"])
    write([tmp_path / "run"], tmp_path / "r.html", csv=tmp_path / "c.csv", figures=tmp_path / "figures")


def test_lone_surrogates_are_replaced(runs: dict[str, Any], tmp_path: Path) -> None:
    """Names of folders may hold bytes that are no text; Python reads them as lone surrogates."""
    folder = tmp_path / os.fsdecode(b"odd-\xff")
    try:
        shutil.copytree(runs["one"][0], folder)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    write([folder, runs["one"][0]], tmp_path / "r.html", csv=tmp_path / "c.csv", figures=tmp_path / "figures")
    assert "odd-?" in (tmp_path / "r.html").read_text()
    assert "odd-?" in (tmp_path / "c.csv").read_text()


def test_bounds_of_theorems_are_read(tmp_path: Path) -> None:
    header = "theorem,rounds,mean,low,high,corrected,printed,lyapunov,gap,error\n"
    (tmp_path / "curves.csv").write_text(
        header + "3.2,1,5,4,6,9,8,1,1,1\n3.2,2,4,3,5,7,6,1,1,1\n5.1,1,2,1,3,4,4,1,1,1\n"
    )
    (tmp_path / "manifest.json").write_text(json.dumps({"asked": {"delta": 1.0}}))
    source = read(tmp_path)
    assert [series.name for series in source.series] == ["Theorem 3.2", "Theorem 5.1"]
    assert source.series[0].metrics["mean squared gradient norm"].value.tolist() == [5, 4]
    assert source.series[0].bounds["mean squared gradient norm"].value.tolist() == [9, 7]
    page.render([source], "theory")


@pytest.mark.slow
def test_folders_without_curves_are_left_out_of_a_report_of_several(runs: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "manifest.json").write_text("{}")
    (source,) = read_all([tmp_path / "sweep", runs["one"][0]])
    assert source.notes == [f"Left out, because they hold no curves: {tmp_path / 'sweep'}"]
    with pytest.raises(records.RecordError, match=r"neither rows.bin nor"):
        read_all([tmp_path / "sweep"])
    # what else lies beside runs: a folder of a run that did not begin, and a report
    (tmp_path / "empty").mkdir()
    (tmp_path / "old.html").write_text("")
    beside = [tmp_path / "empty", tmp_path / "old.html", tmp_path / "sweep"]
    command = ["report", *map(str, [*beside, runs["one"][0]]), "--out", str(tmp_path / "r.html"), "--quiet"]
    assert main(command) == 0
    assert "old.html" in read_all([*beside, runs["one"][0]])[0].notes[0]
    with pytest.raises(records.RecordError, match="none of the 2 folders holds curves"):
        read_all([tmp_path / "sweep"] * 2)


# --- what is written -------------------------------------------------------------------------------------------------


def test_of_scores_the_page_knows_which_should_rise(runs: dict[str, Any]) -> None:
    source = read(runs["one"][0])
    labels = dict.fromkeys(LABELS.values(), 0.5)
    rising = page.content([replace(source, tested=ModelScores(labels))], "title")["rising"]
    assert set(LABELS.values()) - set(rising) == {"calibration error", "test RMSE", "test MAE"}


def test_tables_hold_every_point(runs: dict[str, Any], tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '.[parquet]'")
    folder, run = runs["one"]
    write([folder], tmp_path / "r.html", csv=tmp_path / "c.csv", parquet=tmp_path / "c.parquet")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    same = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert len(rows) == len(same)
    assert list(rows[0]) == list(same[0]) == list(tables.COLUMNS)
    seen = [row for row in same if (row["kind"], row["name"]) == ("metric", "gradient")]
    assert [row["value"] for row in seen] == run.probes["gradient"].tolist()
    assert seen[-1]["bytes_up"] == run.rows["bytes_up"].sum()
    assert seen[-1]["low"] is None
    for one, other in zip(rows, same, strict=True):
        assert one["value"] == "" or float(one["value"]) == pytest.approx(other["value"], rel=1e-9, nan_ok=True)
    kinds = {(row["kind"], row["name"]) for row in same}
    assert {("clients", "loss.q05"), ("detail", "step_size"), ("certificate", "share")} <= kinds


@pytest.mark.slow
def test_figures_are_png_and_pdf_and_always_the_same(runs: dict[str, Any], tmp_path: Path) -> None:
    for again in ("a", "b"):
        paths = write([runs["one"][0], runs["other"][0]], tmp_path / "r.html", figures=tmp_path / again)
    names = {path.name for path in paths} - {"r.html"}
    assert {"curves-gradient.png", "curves-gradient.pdf"} <= names
    for name in names:
        one, other = ((tmp_path / again / name).read_bytes() for again in ("a", "b"))
        assert one == other
        assert one.startswith(b"\x89PNG" if name.endswith("png") else b"%PDF")


def test_the_page_lets_nothing_out_and_nothing_else_in(runs: dict[str, Any]) -> None:
    """Data cannot end its element, and the policy names exactly the script and the style of the page."""
    sources = [replace(read(runs["one"][0]), status=Status("stopped", EVIL), notes=[EVIL])]
    text = page.render(sources, EVIL)
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["sources"][0]["status"] == f"stopped: {EVIL}"
    assert json.loads(data[1])["title"] == EVIL
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    for tag, kind in (("script", "script"), ("style", "style")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src &#x27;sha256-{digest}&#x27;" in policy[1]
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_the_command_says_what_it_wrote(runs: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "deep" / "r.html"
    assert main(["report", str(runs["one"][0]), "--out", str(out), "--title", "A run", "--targets", "0.5,0.1"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    text = out.read_text()
    assert "<title>A run · fedspam</title>" in text
    assert '"target":0.5' in text


def test_metrics_have_one_name_in_runs_and_comparisons(runs: dict[str, Any], tmp_path: Path) -> None:
    """`fedspam run` leaves a configuration, and its gradient is relative; probes of one's own keep their names."""
    own = tmp_path / "own"
    shutil.copytree(runs["one"][0], own)
    (own / "config.toml").write_text("[run]\nrounds = 60\n")
    (source,) = read_all([own], BoundOverlay(Constants(CLIENTS.delta, 0.0, 1.0)))
    assert "relative gradient norm" in source.series[0].metrics
    assert "gradient" not in source.series[0].metrics
    assert "relative gradient norm, root mean square" in source.series[0].bounds
    assert "gradient" in read(runs["one"][0]).series[0].metrics

    (tmp_path / "curves.csv").write_text(
        "method,trial,seed,rounds,bytes_up,bytes,gradients,error\nauto,1,0,0,0,0,0,0.5\nauto,1,0,1,8,9,4,0.2\n"
    )
    (tmp_path / "table.csv").write_text("method,measure,target,trial,median,low,high\nauto,rounds,0.8,1,1,1,1\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"plan": {"metric": "accuracy"}}))
    source = read(tmp_path)
    assert (source.series[0].name, source.series[0].metrics["accuracy"].value.tolist()) == ("auto", [0.5, 0.8])
    assert (source.goals[0].metric, source.goals[0].target) == ("accuracy", 0.8)


def test_what_the_test_rows_say_is_read(runs: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "tested"
    shutil.copytree(runs["one"][0], folder)
    facts = {"f1": 0.7, "auc": None, "r2": "nan", "confusion": [[3, 1], [0, 4]], "classes": ["ill", "well"]}
    (folder / "summary.json").write_text(json.dumps(facts))
    (folder / "clients.csv").write_text("client,test_rows,accuracy\nnorth,5,0.8\nsouth,0,\n")
    found = read(folder).tested
    assert (found.scores, found.confusion, found.classes) == (
        {"F1, mean of classes": 0.7},
        [[3, 1], [0, 4]],
        ["ill", "well"],
    )
    assert found.clients[0] == ["north", 5.0, 0.8]
    text = page.render([read(folder)], "tested")
    assert '"clients":[["north",5.0,0.8],["south",0.0,null]]' in text
    (folder / "summary.json").write_text("[1")
    with pytest.raises(records.RecordError, match=r"summary.json is damaged"):
        read(folder)


def test_a_page_opens_on_accuracy_or_on_the_bound_asked_for(runs: dict[str, Any]) -> None:
    (source,) = read_all([runs["one"][0]], BoundOverlay(Constants(CLIENTS.delta, 0.0, 1.0)))
    (series,) = source.series
    curve = Curve(np.arange(3.0), np.array([0.1, 0.5, 0.9]))
    opening = lambda **change: page.content([replace(source, series=[replace(series, **change)])], "title")["opening"]
    assert opening(metrics={"loss": curve, "accuracy": curve}, bounds={"loss": curve}) == "accuracy"
    assert opening(metrics={**series.metrics, "accuracy": curve}) == "gradient, root mean square"
    assert opening(metrics={"loss": curve}, bounds={"loss": curve}) == "loss"
    assert opening(metrics={"loss": curve}, bounds={}) is None


@pytest.mark.slow
def test_pages_of_many_runs_hold_fewer_points_per_curve(runs: dict[str, Any]) -> None:
    source = read(runs["one"][0])
    at = np.arange(2000.0)
    curve = Curve(at, np.geomspace(1, 1e-3, 2000))
    (series,) = [replace(one, metrics={"loss": curve}, details={"step_size": curve}) for one in source.series]
    points = lambda count: [
        len(one["metrics"]["loss"]["value"])
        for one in page.content([replace(source, series=[series] * count)], "many")["series"]
    ]
    assert points(1)[0] > 500
    assert sum(points(500)) < page.POINTS


def test_nine_curves_have_colors_that_stay_apart() -> None:
    """In both schemes, any two of the first nine differ in OKLab, also for those who see no green, and on the card."""
    cards = re.findall(r"--card: #\w{6}", page.asset("page.css"))
    schemes = zip(cards, re.findall(r":root \{(.*?)\}", appearance.style_sheet()), strict=True)
    linear = lambda color: np.array([((int(color[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (1, 3, 5)])
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    lab = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    no_green = np.array([[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]])
    for ground, text in schemes:
        colors = [linear(found) for found in re.findall(r"--series-\d: (#\w{6})", text)]
        assert len(colors) == 10
        card = linear(ground[-7:]) @ [0.2126, 0.7152, 0.0722]
        for sight, least in ((np.eye(3), 0.12), (no_green, 0.065)):
            seen = [lab @ np.cbrt(cones @ np.clip(sight @ color, 0, 1)) for color in colors[:9]]
            assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > least
        for color in colors:
            lights = sorted([card, color @ [0.2126, 0.7152, 0.0722]])
            assert (lights[1] + 0.05) / (lights[0] + 0.05) > 3


@pytest.mark.slow
def test_a_method_has_one_color_in_figures_and_on_the_page(runs: dict[str, Any], tmp_path: Path) -> None:
    """Also where the first of two runs lacks a metric: the page numbers all names, whatever it shows."""
    sources = read_all([runs["one"][0], runs["other"][0]])
    lacking = [replace(one, metrics={"loss": one.metrics["gradient"]}) for one in sources[0].series]
    content = page.content(sources := [replace(sources[0], series=lacking), sources[1]], "title")
    names = [one["name"] for one in content["series"]]
    colors = re.findall(r"--series-\d: (#\w{6})", page.render(sources, "title"))[:10]
    for figure in _figures(sources).values():
        for line in figure.axes[0].get_lines():
            assert line.get_color() == colors[names.index(line.get_label())]
    found = compared(tmp_path, "accuracy")
    figure = draw_comparison(_panels(found), "accuracy", 0.1, ())
    order = list(dict.fromkeys(one.name for one in read(tmp_path).series))
    shown = {line.get_label(): line.get_color() for line in figure.axes[0].get_lines()}
    assert shown == dict(zip(order, colors, strict=False))


@pytest.mark.slow
def test_styles_are_sizes_and_fonts(tmp_path: Path) -> None:
    compared(tmp_path, "accuracy")
    sizes, fonts = {}, {}
    for style in (*appearance.STYLES, None):
        out = tmp_path / str(style)
        line = ["report", str(tmp_path), "--out", str(out / "r.html"), "--figures", str(out), "--quiet"]
        assert main([*line, *(["--style", style] if style else [])]) == 0
        width, height = re.search(
            rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", (out / "curves-accuracy.pdf").read_bytes()
        ).groups()
        sizes[style] = (float(width) / 72, float(height) / 72)
        fonts[style] = set(re.findall(rb"/BaseFont /(?:\w+\+)?(\w+)", (out / "curves-accuracy.pdf").read_bytes()))
    wide = {style: size[0] for style, size in sizes.items()}
    assert wide == pytest.approx({"paper": 7, "column": 3.4, "slides": 12, None: 7})
    assert sizes["column"][1] > sizes["column"][0]  # panels below each other
    assert fonts[None] == fonts["paper"] == fonts["column"] == {b"STIXGeneral"}
    assert fonts["slides"] == {b"DejaVuSans"}
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path), "--style", "slide"])


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(runs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write([runs["one"][0], runs["other"][0]], path, title=EVIL)
    return path.as_uri()


def shapes(found: Any) -> dict[str, str]:
    """The path of every curve of the first chart, by name."""
    return found.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#curves .curve')]"
        ".map((curve) => [curve.dataset.name, curve.getAttribute('d')]))"
    )


@pytest.mark.slow
def test_curves_are_drawn_and_answer(report: str, browser: Any) -> None:
    with pages.opened(browser, report) as found:
        drawn = shapes(found)
        assert drawn.keys() == {ONE, OTHER}
        assert all(shape.count("L") == 30 for shape in drawn.values())
        press = lambda name: found.locator("#curves").get_by_role("button", name=name, exact=True).click()
        press("bytes up")
        by_bytes = shapes(found)
        assert by_bytes[OTHER] != drawn[OTHER]  # which sends less in a round
        assert found.locator("#curves text.label").text_content() == "bytes up"
        press("rounds")
        assert shapes(found) == drawn
        found.locator("#curves").get_by_role("group", name="vertical axis").get_by_text("linear").click()
        assert shapes(found) != drawn
        found.locator("#curves").get_by_role("group", name="vertical axis").get_by_text("log").click()
        press(OTHER)
        assert shapes(found).keys() == {ONE}
        press(OTHER)
        found.hover("#curves .chart > svg", position={"x": 400, "y": 100})
        tip = found.locator("#curves .tip").inner_text()
        assert ONE in tip
        assert re.search(r"\d+ rounds", tip)
        for card in ("final", "targets", "certificates", "clients", "details", "again"):
            assert found.locator(f"#{card}").is_visible()
        for card in ("certificates", "clients", "details"):
            assert found.locator(f"#{card} .curve").first.get_attribute("d").count("L") > 10
        assert found.evaluate("[window.hacked ?? null, document.querySelectorAll('img').length]") == [None, 0]
        assert found.locator("h1").inner_text() == EVIL


@pytest.mark.slow
def test_curves_are_seen_as_pixels(report: str, browser: Any) -> None:
    """Both colours cover some hundred pixels of the chart, in both schemes; they differ between the schemes."""
    from PIL import Image

    counts = {}
    for dark in (False, True):
        with pages.opened(browser, report, dark=dark) as found:
            picture = found.locator("#curves .chart").screenshot()
            pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
            for name in ("--series-0", "--series-1"):
                value = found.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{name}')").strip()
                wanted = [int(value[i : i + 2], 16) for i in (1, 3, 5)]
                counts[dark, name] = (int((np.abs(pixels - wanted).max(axis=2) < 12).sum()), value)
    assert all(count > 300 for count, _ in counts.values()), counts
    assert len({value for _, value in counts.values()}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("size", [pages.LAPTOP, pages.PHONE], ids=["laptop", "phone"])
def test_text_is_readable(report: str, browser: Any, size: tuple[int, int]) -> None:
    with pages.opened(browser, report, size) as found:
        for card in ("again", "configuration", "manifest"):
            found.locator(f"#{card} summary").click()
        assert pages.unreadable(found) == []


@pytest.mark.slow
def test_many_long_runs_and_odd_names_are_drawn(runs: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    """A list of 200,000 values is too long for Math.max(...values), and "constructor" is in every plain object."""
    source = read(runs["one"][0])
    (series,) = source.series
    at = np.arange(float(page.POINTS // 205))  # a page keeps all points of so short curves
    paid = {"rounds": Paid(at, at)}
    curve = Curve(at, np.geomspace(1, 1e-3, len(at)))
    many = [replace(series, name=f"run {i}", paid=paid, metrics={"gradient": curve}, clients={}) for i in range(200)]
    odd = replace(series, name="constructor", paid=paid, metrics={"__proto__": curve, "valueOf": curve}, clients={})
    path = tmp_path / "r.html"
    path.write_text(page.render([replace(source, series=[*many, odd])], "many"))
    with pages.opened(browser, path.as_uri()) as found:
        pages.eventually(found, "document.querySelectorAll('#curves .curve').length === 200")
        for name in ("__proto__", "valueOf"):
            found.locator("#curves").get_by_role("button", name=name, exact=True).click()
            assert shapes(found).keys() == {"constructor"}
        # long tables and the long legend show their first rows; tables that are folded are not made yet
        assert found.locator("#final tbody tr").count() == found.locator("#curves .legend button").count() - 1 == 24
        assert found.evaluate("document.querySelectorAll('*').length") < 5000
        found.locator("#final").get_by_role("button", name="Show all 201").click()
        assert found.locator("#final tbody tr").count() == 201
        # by the clock of the page; benchmarks/report.py measures 500 runs
        spent = found.get_by_role("button", name="gradient", exact=True).evaluate(
            "(one) => { const began = performance.now(); one.click(); return performance.now() - began; }"
        )
        assert spent < 2000


ODD = ("constructor", "__proto__", "toString")  # columns that every plain object of JavaScript has


@pytest.fixture(scope="module")
def tested_report(runs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two folders with an accuracy that rises at once, scores and clients."""
    at = np.arange(201.0)
    rising = Curve(at, 0.9 - 0.5 * 0.5**at)
    scores = ModelScores(
        {"F1": 0.81, "AUC": 0.9, "calibration error": 0.02}, [[40, 2], [5, 30]], ["ill", "well"],
        ["client", "train_rows", "test_rows", "accuracy", "f1", *ODD],
        [[f"hospital {number}", 50.0, 20.0, number / 40, 0.5, 1.0, 2.0, 3.0] for number in reversed(range(40))],
    )  # fmt: skip
    sources = read_all([runs["one"][0], runs["other"][0]])
    sources = [
        replace(source, tested=scores, series=[
            replace(one, metrics={**one.metrics, "accuracy": rising}, paid={"rounds": Paid(at, at)}, clients={})
            for one in source.series
        ])
        for source in sources
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("tested") / "report.html"
    path.write_text(page.render(sources, "Hospitals"))
    return path.as_uri()


@pytest.mark.slow
def test_final_numbers_come_first_and_what_was_run_is_folded(tested_report: str, browser: Any) -> None:
    with pages.opened(browser, tested_report) as found:
        assert found.evaluate("document.querySelector('main > section').id") == "final"
        assert found.locator("#final th").all_inner_texts()[1:4] == ["accuracy", "F1", "AUC"]
        assert found.locator("#curves h2").inner_text() == "accuracy"
        scale = found.get_by_role("group", name="horizontal scale").locator("[aria-pressed=true]")
        assert scale.inner_text() == "log"  # both arrive in the first rounds of 200
        clients = found.locator("#tested .pair > div").first
        heads = ["", "train rows", "test rows", "accuracy", "F1", "constructor", "  proto  ", "toString"]
        assert clients.locator("th").evaluate_all("(all) => all.map((one) => one.textContent)") == heads
        rows = clients.locator("tbody tr")
        assert rows.first.inner_text().split("\t") == ["hospital 0", "50", "20", "0", "0.5", "1", "2", "3"]
        assert rows.count() == 24
        found.get_by_role("button", name="Show all 40").click()
        assert rows.count() == 40
        assert found.locator("#tested table.confusion td").all_inner_texts() == ["40", "2", "5", "30"]
        assert not found.locator("#again pre").count()
        found.locator("#again summary").press("Enter")
        found.wait_for_selector("#again pre")  # made when it is opened


@pytest.mark.slow
def test_on_a_phone_tables_scroll_and_in_the_dark_the_chosen_tab_shows(tested_report: str, browser: Any) -> None:
    with pages.opened(browser, tested_report, pages.PHONE, dark=True) as found:
        assert pages.unreadable(found) == []
        wide = found.locator("#final .scroll")
        assert wide.evaluate("(one) => one.scrollWidth > one.clientWidth + 50")
        wide.press("ArrowRight")
        pages.eventually(found, "document.querySelector('#final .scroll').scrollLeft > 0")
        # the ring of the chosen tab against the ground of its group
        ring = found.locator("#curves .choice [aria-pressed=true]").first.evaluate(
            "(one) => [getComputedStyle(one).boxShadow, getComputedStyle(one.parentElement).backgroundColor]"
        )
        colors = [
            np.array([int(part) for part in re.findall(r"\d+", re.findall(r"rgb\(.*?\)", text)[0])]) for text in ring
        ]
        lights = sorted(((color / 255) ** 2.2) @ [0.2126, 0.7152, 0.0722] for color in colors)
        assert (lights[1] + 0.05) / (lights[0] + 0.05) > 3


@pytest.mark.slow
def test_keys_do_what_the_pointer_does(tested_report: str, browser: Any) -> None:
    with pages.opened(browser, tested_report) as found:
        found.get_by_role("group", name="metric").get_by_role("button", name="gradient", exact=True).focus()
        found.keyboard.press("Enter")
        assert found.locator("#curves h2").inner_text() == "gradient"
        found.get_by_role("group", name="vertical axis").get_by_role("button", name="linear").press("Enter")
        assert found.evaluate("document.activeElement.textContent") == "linear"  # the button keeps the focus
        chart = found.locator("#curves .chart > svg")
        chart.focus()
        for _ in range(3):
            found.keyboard.press("ArrowRight")
        assert found.locator("#curves .tip").is_visible()
        found.keyboard.press("Escape")
        assert not found.locator("#curves .tip").is_visible()
        found.keyboard.press("Home")
        assert re.match(r"[0-2] rounds", found.locator("#curves .tip").inner_text())
        legend = found.locator("#curves .legend button").first
        legend.press(" ")
        assert legend.get_attribute("aria-pressed") == "false"
        assert len(shapes(found)) == 1


# --- a comparison and a run, as the commands write them ---

EXPERIMENT = """
[data]
kind = "synthetic"
clients = 6
test = 0.3
[model]
name = "softmax"
[method]
name = "fedavg"
cohort_size = 3
local_steps = 2
local_rate = 0.02
[run]
rounds = 24
[evaluate]
every = 2
"""
COMPARED = "--methods fedavg,spam_pp --metric accuracy --targets 0.6,0.75 --budget 5 --seeds 3 --quiet"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a comparison and with three runs, one of which ended at its target, and one of which diverged."""
    folder = tmp_path_factory.mktemp("real")
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT)
    command = lambda line, name: main([*line.split(), "--out", str(folder / name), "--no-cache", "--quiet"])
    assert command(f"compare {file} {COMPARED}", "compared") == 0
    assert command(f"run {file} --evaluate.target 0.6125 --evaluate.stop true", "reached") == 0
    assert command(f"run {file} --method scaffold --method.cohort_size 3 --method.local_steps 2 "
                   "--method.local_rate 0.02", "whole") == 0  # fmt: skip
    assert command(f"run {file} --method.local_rate 1e30", "diverged") == 1
    return folder


def hues(shown: Any) -> list[str]:
    """The strongest of red, green and blue in the color of each text."""
    colors = shown.evaluate_all("(all) => all.map((one) => getComputedStyle(one).color.match(/\\d+/g).map(Number))")
    return [("red", "green", "blue")[np.argmax(color)] for color in colors]


def table_of(found: Any, card: str) -> list[list[str]]:
    """The texts of the cells of a table on the page, by row, without the status of runs."""
    return found.locator(f"#{card} tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((cell) => {"
        " const copy = cell.cloneNode(true); copy.querySelector('.status')?.remove();"
        " return copy.textContent.trim(); }))"
    )


SHOWN = {
    "real": ("real", (1440, 900)), "phone": ("real", pages.PHONE), **{name: (name, (1440, 900)) for name in METRICS},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("which", "size"), SHOWN.values(), ids=SHOWN)
def test_the_page_of_a_comparison_shows_its_files(
    real: Path, browser: Any, tmp_path: Path, which: str, size: tuple[int, int]
) -> None:
    """Every number of the page against the files of the comparison, on every axis; a real one, and made-up ones."""
    folder = real / "compared" if which == "real" else tmp_path
    if which != "real":
        compared(folder, which)
    rising = which in ("real", "accuracy")
    name = "accuracy" if rising else {"gradient": "relative gradient norm"}.get(which, which)
    rows, curves = (list(csv.DictReader((folder / file).read_text().splitlines())) for file in FILES)
    keys, end = list(dict.fromkeys(row["method"] for row in rows)), max(int(row["rounds"]) for row in curves)
    assert which != "real" or {int(row["rounds"]) % 2 for row in curves} == {0}  # evaluate.every = 2
    wanted = []
    for target in dict.fromkeys(row["target"] for row in rows):
        cells = {(row["method"], row["measure"]): row for row in rows if row["target"] == target}
        wanted.append([f"until {name} {'≥' if rising else '≤'} {target}"])
        wanted += [[METHODS[key].name, *(cost_text(cells[key, m]) for m in MEASURES)] for key in keys]
    write([folder], tmp_path / "r.html")
    with pages.opened(browser, (tmp_path / "r.html").as_uri(), size) as found:
        assert table_of(found, "targets")[1:] == wanted
        assert which == "real" or wanted[-1][:2] == ["MVR", "10 [10, ∞]"]
        assert pages.unreadable(found) == []
        assert found.locator(".stopped").count() == 0
        for measure, label in MEASURES.items():
            found.get_by_role("group", name="horizontal axis").get_by_role("button", name=label, exact=True).click()
            ends = []
            for key in keys:
                tuned = [row["trial"] for row in rows if (row["method"], row["measure"]) == (key, measure)]
                only = {row["trial"] for row in curves if row["method"] == key}
                trial = [*only, *filter(None, tuned)][-1]  # of the hardest target that was reached
                last = [row for row in curves if (row["method"], row["trial"], row["rounds"]) == (key, trial, str(end))]
                error, paid = (np.median([float(row[name]) for row in last]) for name in ("error", "bytes"))
                value = number(float(f"{1 - error if rising else error:.6g}"))  # a page has six digits
                ends.append([METHODS[key].name, value, str(end), amount(paid, "bytes")])
            assert table_of(found, "final")[1:] == ends
            drawn = found.locator("#curves .curve").evaluate_all("(all) => all.map((one) => one.dataset.name)")
            assert set(drawn) == {METHODS[key].name for key in keys}
            assert len(drawn) == len(keys)


def cost_text(row: Mapping[str, str]) -> str:
    """A row of table.csv as a reader sees it."""
    median, low, high = (amount(float(row[name]), row["measure"]) if row[name] else "∞" for name in BAND)
    shown = "not reached" if median == "∞" else median
    return shown if row["low"] in ("", row["high"]) else f"{shown} [{low}, {high}]"


BAND, FILES = ("median", "low", "high"), ("table.csv", "curves.csv")


@pytest.mark.slow
@pytest.mark.parametrize("names", [["compared"], ["reached", "whole", "diverged"], ["reached"]], ids=",".join)
def test_latex_has_the_numbers_of_the_page(real: Path, browser: Any, tmp_path: Path, names: list[str]) -> None:
    folders = [real / name for name in names]
    if names == ["compared"]:  # a name that LaTeX would not print as it is
        shutil.copytree(folders[0], odd := tmp_path / "50%_{x}")
        folders.append(odd)
    write(folders, tmp_path / "r.html", latex=tmp_path / "r.tex")
    text = (tmp_path / "r.tex").read_text()
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == text.count(r"\end{tabular}")
    tables = [_plain_table(part) for part in text.split(r"\begin{tabular}")[1:]]
    with pages.opened(browser, (tmp_path / "r.html").as_uri()) as found:
        if len(names) + len(folders) > 2:
            assert tables[0] == table_of(found, "final")
            bold = found.locator("#final td.best").all_inner_texts()
            assert re.findall(r"\\textbf\{(.*?)\}", text.partition("% Cost")[0]) == bold
        metric = found.locator("#curves h2").inner_text()
        (costs,) = [table for table in tables if len(table[1]) == 1 and f"until {metric} " in table[1][0]]
        assert costs == table_of(found, "targets")
        (part,) = [part for part in text.split("% Cost")[1:] if part.startswith(f" to reach a target: {metric}\n")]
        best = found.locator("#targets td.best").evaluate_all("(all) => all.map((one) => one.firstChild.textContent)")
        assert re.findall(r"\\textbf\{(.*?)\}", part) == best


def _plain_table(text: str) -> list[list[str]]:
    """The cells of a tabular as a reader sees them."""
    head, *rows = [line.removesuffix(r" \\") for line in text.splitlines() if line.endswith(r"\\")]
    plain = {r"$\geq$": "≥", r"$\leq$": "≤", r"$\infty$": "∞", r"$\cdot$": "·", "--": "–"}
    cells = []
    for row in (head, *rows):
        row = re.sub(r"\\multicolumn\{\d\}\{l\}\{(.*)\}", r"\1", re.sub(r"\\textbf\{(.*?)\}", r"\1", row))
        row = re.sub(r"\$\^\{(.*?)\}\$", lambda power: power[1].translate(SUPERSCRIPT), row)
        for latex, letter in plain.items():
            row = row.replace(latex, letter)
        cells.append([re.sub(r"\\([&%$#_{}])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)&", row)])
    return cells


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1440, 900), pages.PHONE], ids=["wide", "phone"])
def test_a_run_that_reached_its_target_ended_well(real: Path, browser: Any, size: tuple[int, int]) -> None:
    facts = json.loads((real / "reached" / "summary.json").read_text())
    rounds = str(facts["target"]["round"])
    assert facts["status"]["kind"] == "reached"
    write([real / "reached"], real / "alone.html")
    names = ("reached", "whole", "diverged")
    write([real / name for name in names], real / "several.html")
    with pages.opened(browser, (real / "alone.html").as_uri(), size) as found:
        assert found.locator(".tile.words b").inner_text() == str(Status.from_json(facts["status"]))
        assert found.locator(".stopped").count() == 0
        assert hues(found.locator(".tile.words b")) == ["green"]
        title, row = table_of(found, "targets")[1:]
        assert title == ["until accuracy ≥ 0.6125"]  # the one that was asked for, with all its digits
        assert row[:3] == ["FedAvg", rounds, amount(facts["target"]["bytes_up"], "bytes_up")]
    with pages.opened(browser, (real / "several.html").as_uri(), size) as found:
        status = [records.read(real / name)[0]["status"] for name in names]
        shown = found.locator("#final .status")  # of those that did not do all their rounds
        assert shown.all_inner_texts() == [str(Status.from_json(each)) for each in (status[0], status[2])]
        assert hues(shown) == ["green", "red"]
        title, reached, _, diverged = table_of(found, "targets")[1:]
        assert (title, reached) == (["until accuracy ≥ 0.6125"], ["FedAvg · reached", *row[1:]])
        assert diverged == ["FedAvg · diverged", *["not reached"] * 5]
        ends = "(one) => [one, one.closest('.scroll')].map((part) => part.getBoundingClientRect().right)"
        for own, whole in (each.evaluate(ends) for each in shown.all()):  # it is seen without scrolling the table
            assert own <= whole
        assert pages.unreadable(found) == []


@pytest.mark.parametrize(("panels", "rows"), [(1, [1]), (3, [3]), (4, [2, 2]), (5, [3, 2])])
def test_no_panel_of_a_figure_stands_alone_below_others(panels: int, rows: list[int]) -> None:
    line = Line("spam", np.arange(5.0), np.arange(1.0, 6.0), None, None, 0)
    figure = draw_curves({f"cost {number}": [line] for number in range(panels)}, "loss")
    drawn = [axis for axis in figure.axes if axis.axison]
    tops = sorted({round(axis.get_position().y1, 3) for axis in drawn}, reverse=True)
    assert [sum(round(axis.get_position().y1, 3) == top for axis in drawn) for top in tops] == rows
