"""Models and rows that do not fit each other: each is refused with the value, the rule and the remedy."""

import jax
import numpy as np
import pytest

from fedspam import Ragged, models


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


@pytest.mark.slow
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
    equinox = pytest.importorskip("equinox")

    class Keyless(equinox.Module):
        linear: equinox.nn.Linear
        dropout: equinox.nn.Dropout

        def __call__(self, row):
            return self.dropout(self.linear(row), inference=True)

    module = Keyless(equinox.nn.Linear(4, 3, key=jax.random.key(0)), equinox.nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="has dropout, which stays off, because its __call__ takes no key"):
        models.from_equinox(module)
