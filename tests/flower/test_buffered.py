"""Buffered rounds over Flower: replies of clients that stay busy from round to round."""

import logging

import numpy as np
import pytest

from fedspam import fedavg, simulate
from fedspam.methods import buffered
from fedspam.problems import quadratics

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")

from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays, to_params

pytestmark = pytest.mark.x64  # compared to twelve digits

CLIENTS, ROUNDS, FIRST, SIZE = 12, 6, np.ones(3), 3
POPULATION = quadratics(0, clients=CLIENTS, dimension=3)
AVERAGE = fedavg(SIZE, 1, 0.05)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def go(method):
    return simulate(method, POPULATION, FIRST, rounds=ROUNDS, key=7)


class InOrder(LoopbackGrid):
    """Replies arrive in the order of their messages."""

    def pull_messages(self, message_ids):
        return [reply for name in list(message_ids) for reply in self._replies.pop(name, [])]


def over_flower(method, *, rounds=ROUNDS, twist=None, **options):
    """A federation whose replies arrive in the order of their messages, which is that of equal delays."""
    app = client_app(clients_of(POPULATION), method, FIRST)
    strategy = FedspamStrategy(method, FIRST, seed=7, **options)
    result = strategy.start(InOrder(app, CLIENTS, twist=twist), to_arrays(FIRST), rounds, 0.3)
    return to_params(result.arrays, FIRST), result.train_metrics_clientapp


@pytest.mark.slow
def test_a_federation_agrees_with_the_simulation_of_equal_delays():
    params, _ = over_flower(buffered(AVERAGE, SIZE))
    np.testing.assert_allclose(params, go(AVERAGE).params, rtol=1e-12)
    expected = go(buffered(AVERAGE, 2 * SIZE))
    params, rows = over_flower(buffered(AVERAGE, 2 * SIZE))
    np.testing.assert_allclose(params, expected.params, rtol=1e-12)
    assert [row["staleness"] for row in rows.values()] == expected.rows["staleness"].tolist() == [0, 1, 1, 1, 1, 1]
    assert [row["train.asked"] for row in rows.values()] == [2 * SIZE, *[SIZE] * (ROUNDS - 1)]


def test_lost_clients_are_replaced_and_a_killed_server_goes_on(tmp_path):
    def twist(id, message, answer):
        silent = id in (2, 5) and message.metadata.message_type.startswith("train")
        return [] if silent else [answer()]

    method = buffered(AVERAGE, 6)
    params, rows = over_flower(method, twist=twist, folder=tmp_path)
    assert all(row["train.accepted"] == SIZE and not row["void"] for row in rows.values())
    assert np.isfinite(params).all()
    resumed, rows = over_flower(method, twist=twist, folder=tmp_path, rounds=ROUNDS + 2, resume=True)
    assert len(rows) == ROUNDS + 2
    assert rows[ROUNDS + 1]["staleness"] == 0  # what was under way is lost; those clients are asked anew
    assert not np.array_equal(resumed, params)


def test_what_does_not_go_together_over_flower_is_refused():
    with pytest.raises(ValueError, match="leave secure and over_selection out"):
        FedspamStrategy(buffered(AVERAGE, 8), replies=Replies(over_selection=0.3))
