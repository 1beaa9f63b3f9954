"""Error feedback for messages: nothing is lost for ever, in every world, and gradient descent does not stall."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, simulate_many
from fedspam._internal.trees import static, struct
from fedspam.federation import ledger, loopback, on_client
from fedspam.federation.codecs import Codecs
from fedspam.federation.downlink import with_feedback
from fedspam.methods import mvr, page
from fedspam.problems import quadratics

pytestmark = pytest.mark.x64  # rounds by hand and identities, to the last digits

D, CLIENTS = 70, quadratics(0, clients=6, dimension=70, delta=0.5)
TOP, FED_TOP = "topk-0.2", "feedback-topk-0.2"


class Heard(NamedTuple):
    x: jax.Array
    x_prev: jax.Array


class ToldState(NamedTuple):
    x: jax.Array
    heard: Heard  # the sum of what clients received


@struct
class Telling:
    """A method that sends x and a neighbor of it, twice to one cohort, and sums up what clients received."""

    name: str = static(default="telling")

    def init(self, params, key, fed):
        return ToldState(params, Heard(jnp.zeros_like(params), jnp.zeros_like(params)))

    def round(self, state, key, fed):
        cohort, beside = fed.sample(key, 2), state.x + jnp.sin(jnp.arange(D))
        first = fed.mean(cohort, self.hear, x=state.x, x_prev=beside)
        again = fed.mean(cohort, self.hear_again, x=state.x)
        return ToldState(state.x, jax.tree.map(jnp.add, state.heard, first)), {"same": jnp.abs(again - first.x).max()}

    @on_client
    def hear(self, oracle, key, *, x, x_prev):
        return Heard(x, x_prev)

    @on_client
    def hear_again(self, oracle, key, *, x):
        return x

    def params(self, state):
        return state.x

    def client_state(self, params):
        return ()


@pytest.mark.slow
def test_messages_lose_nothing_for_ever():
    """The sums lack only the last error, which is bounded; x_prev loses nothing of its difference from x."""
    x, rounds = jnp.linspace(0.5, 1.0, D), 16
    run = simulate(Telling(), CLIENTS, x, rounds=rounds, key=0, codecs={"down": FED_TOP})
    missing = rounds * x - run.state.heard.x
    assert float(jnp.abs(missing).max()) < 10
    beside = rounds * jnp.sin(jnp.arange(D)) - (run.state.heard.x_prev - run.state.heard.x)
    assert float(jnp.abs(beside).max()) < 10
    assert run.rows["same"].tolist() == [0.0] * rounds  # held fields are neither sent nor corrected again
    state, fed = loopback.run(Telling(), CLIENTS, x, rounds=rounds, key=0, codecs={"down": FED_TOP})
    np.testing.assert_allclose(state.heard, run.state.heard, rtol=1e-9, atol=1e-12)
    assert fed.bytes_down == run.rows["bytes_down"].sum()
    plain = ledger.plan(Telling(), x, CLIENTS, codecs=Codecs.of({"down": TOP}))
    assert fed.bytes_down == rounds * sum(exchange.cohort * exchange.bytes_down for exchange in plain.round)


def norm_after(method, codec, rounds):
    run = simulate(method, CLIENTS, jnp.zeros(D), rounds=rounds, key=1, codecs={"x": codec})
    return float(jnp.linalg.norm(CLIENTS.gradient(run.params)) / jnp.linalg.norm(CLIENTS.gradient(jnp.zeros(D))))


@pytest.mark.slow
def test_gradient_descent_converges_with_feedback_and_stalls_without():
    """The error of x enters with the step size, which decreases."""
    rounds = 1500
    sizes = 0.5 / CLIENTS.smoothness / (1 + np.arange(rounds) / 30)
    method = mvr(6, sizes, 1.0, start="zero", first="update")
    assert norm_after(method, TOP, rounds) > 0.2
    assert norm_after(method, FED_TOP, rounds) < 0.02


@pytest.mark.slow
def test_branches_keep_their_errors_and_all_worlds_agree(tmp_path):
    method, codecs = page(3, 0.02, probability=0.5), {"down": FED_TOP}
    run = simulate(method, CLIENTS, jnp.ones(D), rounds=4, key=1, codecs=codecs)
    state, fed = loopback.run(method, CLIENTS, jnp.ones(D), rounds=4, key=1, codecs=codecs)
    np.testing.assert_allclose(method.params(state), run.params, rtol=1e-12, atol=1e-12)
    assert fed.bytes_down == run.rows["bytes_down"].sum() + sum(e.cohort * e.bytes_down for e in run.plan.start)
    many = simulate_many(method, CLIENTS, jnp.ones(D), rounds=4, keys=[1], codecs=codecs)
    np.testing.assert_allclose(many.params[0, 0], run.params, rtol=1e-12, atol=1e-12)
    simulate(method, CLIENTS, jnp.ones(D), rounds=2, key=1, codecs=codecs, folder=tmp_path)
    resumed = simulate(method, CLIENTS, jnp.ones(D), rounds=4, key=1, codecs=codecs, folder=tmp_path, resume=True)
    assert np.asarray(resumed.params).tobytes() == np.asarray(run.params).tobytes()


def test_without_feedback_a_method_stays_as_it_is():
    method, coded = page(3, 0.02, probability=0.5), Codecs.of({"down": TOP, "up": "quantize-8"})
    assert with_feedback(method, coded, ledger.plan(method, jnp.ones(D), CLIENTS, codecs=coded)) is method
