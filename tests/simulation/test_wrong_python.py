"""Wrong uses in Python: each gets an error or a warning that names the value, the rule and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedspam
from fedspam import Ragged, fedavg, models, simulate, spam_pp
from fedspam.problems import quadratics

CLIENTS = quadratics(0, clients=4, dimension=3)
METHOD = spam_pp(2, step_size=0.1, fresh_weight=0.3)


def rows(classes: int, width: int = 4) -> list[dict[str, np.ndarray]]:
    label = np.arange(6) % classes
    return [{"features": np.ones((6, width), np.float32), "label": label} for _ in range(2)]


def test_labels_that_the_outputs_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels reach from 0 to 2, but the model has 2 classes; .* 3 outputs"):
        Ragged.of(rows(3), models.softmax_regression(4, 2).loss)
    with pytest.raises(ValueError, match="labels reach from 0 to 2, but the model has 2 classes"):
        Ragged.of(rows(3), models.logistic_regression(4).loss)
    Ragged.of(rows(3), models.softmax_regression(4, 3).loss)
    Ragged.of(rows(2), models.logistic_regression(4).loss)
    signs = [{"features": part["features"], "label": 2 * part["label"] - 1} for part in rows(2)]
    Ragged.of(signs, models.logistic_regression(4).loss)
    with pytest.raises(ValueError, match="labels reach from -1 to 1"):
        Ragged.of(signs, models.softmax_regression(4, 2).loss)
    every = [{"features": np.ones((2, 5), np.int32), "label": np.full((2, 5), -1)}]
    Ragged.of(every, models.char_lstm(7, embedding=2, hidden=3, layers=1, every=True).loss)


def test_a_net_of_one_output_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"one output of shape \(rows, 1\).*outputs.squeeze\(-1\)"):
        Ragged.of(rows(2), models.from_torch(torch.nn.Linear(4, 1)).loss)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot take rows of shape \(5,\).*as many inputs"):
        Ragged.of(rows(3, width=5), models.softmax_regression(4, 3).loss)
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"cannot take rows of shape \(5,\)"):
        Ragged.of(rows(3, width=5), models.from_torch(torch.nn.Linear(4, 3)).loss)


def test_dropout_that_stays_off_is_said() -> None:
    nnx = pytest.importorskip("flax.nnx")
    with pytest.warns(UserWarning, match="Dropout, which stays off"):
        models.from_flax(nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))))
    equinox = pytest.importorskip("equinox")
    layers = [equinox.nn.Linear(4, 3, key=jax.random.key(0)), equinox.nn.Dropout(0.5)]
    with pytest.warns(UserWarning, match="Dropout, which stays off"):
        models.from_equinox(equinox.nn.Sequential(layers))


@pytest.mark.slow
def test_a_list_that_ends_before_the_run_is_said() -> None:
    method = spam_pp(2, step_size=[0.1, 0.2], fresh_weight=0.3)
    with pytest.warns(UserWarning, match="2 values for 3 rounds; later rounds use the last one. Give one value per"):
        simulate(method, CLIENTS, jnp.zeros(3), rounds=3, key=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": spam_pp}, r"method = spam_pp is a constructor, not a method; call it: spam_pp\("),
        ({"method": "fedavg"}, "method = fedavg is a constructor, not a method"),
        ({"method": type(METHOD)}, "is a constructor, not a method"),
        ({"devices": "gpu"}, r"devices = 'gpu' must be a list of devices, such as jax.devices\(\)"),
        ({"devices": [0]}, "must be a list of devices"),
        ({"record": [["step_size"]]}, r"record holds \['step_size'\]; it must be names of columns"),
    ],
)
def test_simulate_names_what_is_wrong(options: dict, told: str) -> None:
    given = {"method": METHOD, "rounds": 2, "key": 0, **options}
    with pytest.raises(ValueError, match=told):
        simulate(given.pop("method"), CLIENTS, jnp.zeros(3), **given)


def test_every_constructor_is_found_at_the_top() -> None:
    from fedspam import fedprox, scaffold  # type: ignore[attr-defined]

    assert (fedavg, fedprox, scaffold) == tuple(
        getattr(fedspam.methods, name) for name in ("fedavg", "fedprox", "scaffold")
    )
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        _ = fedspam.fedavgg  # type: ignore[attr-defined]


# --- when a run ends ---


@pytest.mark.slow
def test_a_run_without_improvement_ends(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """Patience ends it at the same round whatever the segments; the bar tells rounds and time."""
    unit = float(jnp.linalg.norm(CLIENTS.gradient(jnp.ones(3))))
    probe = lambda x: {"size": jnp.maximum(jnp.linalg.norm(CLIENTS.gradient(x)) / unit, 0.5)}  # stays at 0.5
    run = lambda **more: simulate(METHOD, CLIENTS, jnp.ones(3), rounds=60, key=0, probe=probe, every=2, **more)
    whole = run()
    first = int(np.argmax(whole.probes["size"] <= 0.5))
    ended = run(until=fedspam.Patience("size", 3), folder=tmp_path / "run", observe="bar")
    assert str(ended.status) == "reached: size has not improved on 0.5 for 3 evaluations"
    assert ended.rounds == 2 * (first + 3)
    shown = capsys.readouterr().err
    assert "compiling the rounds ..." in shown
    assert f"round {ended.rounds}/60" in shown
    assert "left" in shown
    np.testing.assert_array_equal(ended.probes["size"], whole.probes["size"][: first + 4])
    with pytest.raises(ValueError, match=r"until\.probe = 'accuracy' is not a probe of this run"):
        run(until=fedspam.Patience("accuracy", 3))


def test_a_loss_that_exploded_is_a_failure(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedspam.app.cli import main
    from fedspam.simulation import records

    line = "run --data quadratics --data.clients 4 --data.dimension 3 --method fedavg --method.cohort_size 2 "
    line += f"--method.local_steps 1 --method.local_rate 0.9 --watch.growth 0 --rounds 12 --out {tmp_path / 'run'}"
    assert main(line.split()) == 1
    shown = capsys.readouterr().out
    assert "diverged: the loss went from" in " ".join(shown.split())
    assert "lower the step size" in " ".join(shown.split())
    assert records.read(tmp_path / "run")[0]["status"]["reason"].startswith("the loss went from")
