"""The paper's experiment: its curves against NumPy, its verdicts on made-up curves, its files, its command."""

import csv
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam._internal import prng
from fedspam.app import figures
from fedspam.app.arrival import percentiles
from fedspam.app.cli import main
from fedspam.app.folders import new_folder
from fedspam.app.reproduce import observations
from fedspam.app.reproduce.experiment import LABELS, READING, SETTINGS, SOLVERS, experiment
from fedspam.app.reproduce.observations import drift, floor, rise, rounds_to, swing
from fedspam.problems import ridge

SEED, SEEDS, ROUNDS = 5, 2, 16
FILES = {"figure.png", "figure.svg", "curves.csv", "observations.csv", "manifest.json", "command"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny run by the command line: two seeds, few rounds."""
    folder = tmp_path_factory.mktemp("reproduce") / "run"
    code = main(
        ["reproduce", "--seeds", str(SEEDS), "--rounds", str(ROUNDS), "--seed", str(SEED), "--out", str(folder)]
    )
    return folder, code


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@functools.cache
def problem(number):
    """Hessians, linear terms, start, each client's smoothness and delta: norms by singular values."""
    population, start = ridge(number)
    H, b = np.asarray(population.hessians), np.asarray(population.linears)
    norms = lambda matrices: np.linalg.svd(matrices, compute_uv=False)[:, 0]
    return H, b, start, norms(H), norms(H - H.mean(0)).max()


def spam_in_numpy(number, ratio, p, steps, rounds):
    """SPAM as Algorithm 1 prints it, on dense arrays, with the clients that the simulation drew."""
    H, b, start, L, delta = problem(number)
    full_H, full_b, gamma = H.mean(0), b.mean(0), ratio / delta
    key = jax.random.key(number)
    draw = lambda k: prng.index(prng.fold_name(jax.random.fold_in(key, k), "cohort"), len(H))
    clients = np.asarray(jax.vmap(draw)(jnp.arange(rounds)))
    x = previous = start
    g = full_H @ x - full_b
    unit, norms = np.linalg.norm(g), [1.0]
    for i in clients:
        g = H[i] @ x - b[i] + (1 - p) * (g - (H[i] @ previous - b[i]))
        previous = x
        if steps is None:
            x = x - np.linalg.solve(H[i] + np.eye(len(x)) / gamma, g)
        else:
            y, local = x, 1 / (L[i] + 1 / gamma)
            for _ in range(steps):
                y = y - local * (H[i] @ (y - x) + g + (y - x) / gamma)
            x = y
        norms.append(np.linalg.norm(full_H @ x - full_b) / unit)
    return np.array(norms)


@pytest.mark.users
@pytest.mark.slow
def test_all_files_are_there(made):
    folder, code = made
    assert {path.name for path in folder.iterdir()} == FILES
    assert code in (0, 1)
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "figure.svg").read_text()[:1000]
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["seeds"] == [5, 6]
    assert facts["rounds"] == {"left": 16, "middle": 16, "right": 32}
    assert "1/(L_\\xi+1/\\gamma)" in facts["reading"]


@pytest.mark.users
@pytest.mark.slow
@pytest.mark.x64  # as the experiment itself
def test_curves_are_those_of_the_printed_algorithm(made):
    rows = read(made[0] / "curves.csv")
    names = ["panel", "gamma_delta", "fresh_weight", "prox", "round", "median", "low", "high", "seed_5", "seed_6"]
    assert list(rows[0]) == names
    assert len(rows) == 3 * (17 + 17 + 33)
    for name, ratio, p, rounds in (("left", 10, 0.1, 16), ("middle", 10, 0.9, 16), ("right", 0.5, 0.1, 32)):
        for prox, steps in (("exact", None), ("1", 1), ("10", 10)):
            mine = [row for row in rows if (row["panel"], row["prox"]) == (name, prox)]
            assert [int(row["round"]) for row in mine] == list(range(rounds + 1))
            assert {(float(row["gamma_delta"]), float(row["fresh_weight"])) for row in mine} == {(ratio, p)}
            got = np.array([[float(row["seed_5"]), float(row["seed_6"])] for row in mine]).T
            # ten digits are written; the unstable curve amplifies rounding from round to round
            np.testing.assert_allclose(got[0], spam_in_numpy(5, ratio, p, steps, rounds), rtol=1e-7)
            np.testing.assert_allclose([float(row["median"]) for row in mine], got.mean(0), rtol=1e-8)
            band = np.array([[float(row["low"]), float(row["high"])] for row in mine]).T
            assert np.all(got.min(0) <= band[0] * (1 + 1e-8))
            assert np.all(band[1] <= got.max(0) * (1 + 1e-8))


@pytest.mark.users
@pytest.mark.slow
def test_observations_are_written_and_decide_the_exit_code(made):
    folder, code = made
    rows = read(folder / "observations.csv")
    assert list(rows[0]) == ["panel", "sentence", "value", "measured", "rule", "holds"]
    assert len(rows) == 12
    assert [row["panel"] for row in rows] == ["all"] * 2 + ["left"] * 2 + ["middle"] * 4 + ["right"] * 4
    fails = [row["sentence"] for row in rows if row["holds"] == "False"]
    assert json.loads((folder / "manifest.json").read_text())["fails"] == fails
    assert code == (1 if fails else 0)


@pytest.mark.users
def test_equal_seeds_give_equal_curves_and_progress_is_told(made):
    ticks = []
    curves, deltas = experiment(1, ROUNDS, SEED + 1, lambda: ticks.append(1))
    assert len(ticks) == len(SOLVERS)
    rows = [row for row in read(made[0] / "curves.csv") if (row["panel"], row["prox"]) == ("right", "10")]
    assert [f"{value:.9e}" for value in curves["right", "10"][0]] == [row["seed_6"] for row in rows]
    np.testing.assert_allclose(deltas, [ridge(SEED + 1)[0].delta])


@pytest.mark.users
@pytest.mark.slow
def test_float64_is_asked_for_in_the_experiment_alone():
    program = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from fedspam.app.reproduce.experiment import experiment\n"
        "assert not jax.config.jax_enable_x64\n"
        "curves, _ = experiment(1, 8)\n"
        "assert not jax.config.jax_enable_x64 and jnp.ones(1).dtype == jnp.float32\n"
        "assert all(curve.dtype == np.float64 for curve in curves.values())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


# --- verdicts --------------------------------------------------------------------------------------------------------


def decaying(rounds, rate, level, seeds=3, swings=0.4):
    """Geometric descent to a level, around which it then swings."""
    k = np.arange(rounds + 1)
    around = np.exp(swings * np.sin(1.3 * k[None] + np.arange(seeds)[:, None]))
    return np.maximum(rate**k, level) * np.where(rate**k > level, 1.0, around)


def exploding(rounds, seeds=3):
    return np.broadcast_to(1.05 ** np.arange(rounds + 1.0), (seeds, rounds + 1)).copy()


def as_the_paper_says():
    return {
        ("left", "exact"): exploding(400),
        ("left", "1"): decaying(400, 0.92, 8e-4),
        ("left", "10"): decaying(400, 0.92, 9e-4),
        ("middle", "exact"): decaying(400, 0.5, 3e-3),
        ("middle", "1"): decaying(400, 0.92, 1e-3),
        ("middle", "10"): decaying(400, 0.6, 3e-3),
        ("right", "exact"): decaying(800, 0.94, 5e-4),
        ("right", "1"): decaying(800, 0.96, 5e-4),
        ("right", "10"): decaying(800, 0.94, 5e-4),
    }


def fails(**changes):
    """The sentences that fail when some curves are replaced, by their first words."""
    curves = as_the_paper_says() | {tuple(name.split("_")): curve for name, curve in changes.items()}
    return {observation.sentence for observation in observations(curves) if not observation.holds}


def test_curves_as_the_paper_describes_them_hold():
    assert fails() == set()
    assert len(observations(as_the_paper_says())) == 12


@pytest.mark.parametrize(
    ("start_of_sentence", "changes"),
    [
        ("All plots indicate", {"left_10": decaying(400, 0.92, 0.02)}),
        ("followed by oscillations", {"right_1": decaying(800, 0.96, 5e-4, swings=0.0)}),
        ("followed by oscillations", {"right_1": decaying(800, 0.993, 1e-9)}),  # still on its way down
        ("Small p and γ", {"left_exact": decaying(400, 0.92, 9e-4)}),
        ("1 or 10 local steps", {"left_1": exploding(400)}),
        ("Greater p = 0.9", {"middle_10": np.concatenate([[[1.0, 0.4, 0.9]] * 3, decaying(397, 0.6, 3e-3)], axis=1)}),
        ("Greater p = 0.9", {"middle_exact": exploding(400)}),
        ("More accurate prox", {"middle_1": decaying(400, 0.6, 1e-3)}),
        ("More accurate prox", {"middle_exact": decaying(400, 0.7, 3e-3)}),
        ("but to a larger", {"middle_1": decaying(400, 0.92, 3e-3)}),
        ("This agrees", {"middle_10": decaying(400, 0.6, 1e-3)}),
        ("Smaller γ", {"right_1": decaying(800, 0.9, 5e-4)}),
        ("However, the method", {"right_1": decaying(800, 0.96, 9e-4)}),
        ("which does not", {"right_1": decaying(800, 0.96, 3e-4)}),
        ("10 local steps give", {"right_10": decaying(800, 0.95, 5e-4)}),
    ],
)
def test_each_sentence_can_fail(start_of_sentence, changes):
    assert any(sentence.startswith(start_of_sentence) for sentence in fails(**changes))


def test_overflow_and_exact_zeros_give_verdicts_not_errors():
    overflow = np.full((3, 401), np.inf)
    overflow[:, 0] = 1
    assert fails(left_exact=overflow) == set()
    np.testing.assert_array_equal(percentiles(overflow, (10, 90))[:, :2], [[1, np.inf], [1, np.inf]])
    assert len(fails(**{f"right_{label}": np.full((3, 801), np.inf) for label in SOLVERS})) >= 4
    assert fails(middle_exact=np.concatenate([np.ones((3, 1)), np.zeros((3, 400))], axis=1))


def test_the_measures():
    curve = np.array([[1.0, 0.5, 0.8, 0.2, 0.1, 0.1, 0.4, 0.4], [1.0, 0.9, 0.7, 0.3, 0.1, 0.1, 0.4, 0.4]])
    assert floor(curve) == pytest.approx(0.4)  # the last quarter: two values
    assert drift(curve) == pytest.approx(4.0)
    assert swing(curve) == pytest.approx(1.0)
    assert swing(np.array([[1.0] * 6 + [1.0, 2.0]])) == pytest.approx(1.9 / 1.1)
    assert rounds_to(curve, 0.25) == 3.5
    assert rounds_to(curve, 0.01) == np.inf
    assert rise(curve, 0.25) == pytest.approx(1.6)  # 0.8 after 0.5; what follows 0.2 no longer counts
    assert rise(curve, 0.01) == pytest.approx(4.0)


# --- figure ----------------------------------------------------------------------------------------------------------


def test_the_figure_draws_overflow_and_cuts_no_text(tmp_path):
    overflow = exploding(400)
    overflow[:, 200:] = np.inf
    curves = as_the_paper_says() | {("left", "exact"): overflow}
    panels = [
        figures.Panel(setting.name, {label: figures.Band(*[curves[setting.name, label][0]] * 3) for label in SOLVERS})
        for setting in SETTINGS
    ]
    figure = figures.draw_ridge(panels, LABELS, READING)
    first = [path.read_bytes() for path in figures.save(figure, tmp_path, "one")]
    again = figures.save(figures.draw_ridge(panels, LABELS, READING), tmp_path, "two")
    assert first == [path.read_bytes() for path in again]  # the same figure, the same bytes
    assert "overflows" in [text.get_text() for text in figure.axes[0].texts]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(LABELS.values())
    assert len({axis.get_ylim() for axis in figure.axes}) == 1
    for text in (*figure.texts, *(axis.title for axis in figure.axes), figure.axes[0].yaxis.label):
        box = text.get_window_extent().transformed(figure.transFigure.inverted())
        assert 0 <= box.x0 <= box.x1 <= 1, text.get_text()
        assert -0.01 <= box.y0 <= box.y1 <= 1, text.get_text()


# --- command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--seeds", "0"], "--seeds: '0' must be a whole number from 1 to 10000"),
        (["reproduce", "--seeds", "many"], "--seeds: 'many' must be a whole number from 1 to 10000"),
        (["reproduce", "--rounds", "7"], "--rounds: '7' must be a whole number from 8 to 2147483647"),
        (["reproduce", "--seed", "-1"], "--seed: '-1' must be a whole number from 0 to 2147483647"),
        (["reproduce", "--round", "9"], "unrecognized arguments: --round 9; did you mean --rounds?"),
        (["reprodcue"], "invalid choice: 'reprodcue'"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_arguments_exit_with_2_and_say_why(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "--out", str(tmp_path / "file"), "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedspam: error: cannot make the folder")
    assert error.count("\n") == 1


def test_new_folders_do_not_collide(tmp_path):
    first = new_folder("reproduce", tmp_path)
    first.mkdir()
    second = new_folder("reproduce", tmp_path)
    assert first.name.startswith("reproduce-")
    assert second != first
    assert not second.exists()


def test_help_and_version(capsys):
    for arguments, expected in (
        (["--help"], "fedspam reproduce"),
        (["reproduce", "--help"], "or a sentence of the paper does not hold"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert expected in capsys.readouterr().out
    answer = subprocess.run(
        [sys.executable, "-m", "fedspam.app", "--version"], capture_output=True, text=True, timeout=600, check=True
    )
    from fedspam import __version__

    assert answer.stdout == f"fedspam {__version__}\n"
