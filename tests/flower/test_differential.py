"""Differential privacy of the gradient exchange: the noise that is there, and the epsilon that is reported."""

import dataclasses
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from loading import load_code

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install '.[privacy]'")

import dp_accounting as accounting
from flwr.app import Context, RecordDict

from fedspam import simulate, spam_pp
from fedspam.clients import DataOracle
from fedspam.federation import works_of
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.client.app import RefusedError
from fedspam.flower.privacy.differential import Privacy, noise_for, rho_for
from fedspam.flower.privacy.mods import GRADIENTS, clipping_mod, not_refused, opened
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.methods import METHODS, auto, mvr
from fedspam.problems import quadratics
from fedspam.solvers import Exact


def epsilon_of(rho, delta):
    """The smallest epsilon that Renyi divergences of at most alpha * rho allow (Canonne, Kamath, Steinke 2020, Prop.
    12): their bound, minimized over alpha > 1 without a library of privacy."""
    bound = lambda alpha: alpha * rho + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)
    return minimize_scalar(lambda log: bound(1 + math.exp(log)), bounds=(-7, 14), method="bounded").fun


def summed(bound, noise_multiplier, least, **others):
    """A mechanism whose server sees only sums over at least `least` clients."""
    return Privacy(bound, noise_multiplier, least, secure=SecureSum(least=least), **others)


# --- the accountant ---


SETTINGS = [
    (1.0, 1), (2.0, 4), (5.0, 100), (0.7, 1), (4.0, 20), (10.0, 20), (3.0, 1), (8.0, 500), (1.5, 3), (20.0, 50),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("z", "times"), SETTINGS)
def test_epsilon_is_that_of_an_independent_accountant(z, times):
    """Each exchange costs 1 / 2z^2 of zero-concentrated privacy. It is never less than that of Gaussian noise, whose
    exact distribution of the privacy loss another accountant composes, and at most a tenth more."""
    for delta in (1e-5, 1e-3):
        found = summed(1.0, z, 3).epsilon(delta, participations=times)
        assert found == pytest.approx(epsilon_of(times / (2 * z * z), delta), rel=2e-3)
        gaussian = accounting.pld.PLDAccountant().compose(accounting.GaussianDpEvent(z), times).get_epsilon(delta)
        assert gaussian <= found <= 1.25 * gaussian


def test_epsilon_does_not_depend_on_the_bound_and_grows_with_participations():
    assert summed(1.0, 2.0, 3).epsilon(1e-5, 5) == summed(7.0, 2.0, 9).epsilon(1e-5, 5)
    spent = [summed(1.0, 2.0, 3).epsilon(1e-5, count) for count in (1, 2, 8)]
    assert spent == sorted(spent)
    assert spent[0] < spent[2]


@pytest.mark.slow
def test_amplification_is_that_of_the_accountant_and_never_the_default():
    privacy = summed(1.0, 4.0, 10)
    found = privacy.epsilon_amplified(1e-5, exchanges=50, clients=1000, cohort_size=10)
    accountant = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(
        accounting.SampledWithoutReplacementDpEvent(1000, 10, accounting.GaussianDpEvent(2.0)), 50
    )  # the sum moves by 2C if a client is replaced
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert found < privacy.epsilon(1e-5, participations=50)  # for whoever does not know the cohorts
    assert privacy.report(1e-5, 50)["epsilon"] == privacy.epsilon(1e-5, 50)
    assert privacy.report(1e-5, 50)["amplification by sampling"] == "not counted"


@pytest.mark.slow
def test_noise_for_a_budget_spends_it():
    z = noise_for(2.0, 1e-5, participations=10)
    assert summed(1.0, z, 3).epsilon(1e-5, 10) <= 2.0
    assert summed(1.0, 0.99 * z, 3).epsilon(1e-5, 10) > 2.0


def test_the_report_says_what_is_not_covered():
    clear = Privacy(1.0, 2.0, 3, in_clear=("train.prox",)).report(1e-5, 1)
    assert clear["not covered"] == ["train.prox"]
    assert not clear["private parameters"]
    assert Privacy(1.0, 2.0, 3, in_clear=("evaluate",)).report(1e-5, 1)["private parameters"]


def test_without_a_secure_sum_epsilon_is_that_of_single_replies():
    """Nothing tells a client how many replies the server adds up, or whether it adds them at all."""
    seen, alone = Privacy(1.0, 4.0, least=30), Privacy(1.0, 4.0 / math.sqrt(30), least=1)
    assert seen.epsilon(1e-5, 20) == alone.epsilon(1e-5, 20) > 5 * summed(1.0, 4.0, 30).epsilon(1e-5, 20)
    assert seen.epsilon_amplified(1e-5, 20, 100, 30) == alone.epsilon_amplified(1e-5, 20, 100, 30)
    # the only client that SPAM asks is such a reply
    update = Privacy(1.0, 2.0, least=8, works=("update",)).report(1e-5, 4)
    assert update["epsilon"] == Privacy(1.0, 2.0 / math.sqrt(8), least=1).epsilon(1e-5, 4)
    assert "not enforced" in update["epsilon if the server sees sums only"]


def test_the_report_tells_sums_and_single_replies_apart():
    report = summed(1.0, 4.0, 30, participations=20).report(1e-5)
    assert report["epsilon"] == report["epsilon if the server sees sums only"] == pytest.approx(5.377, abs=1e-3)
    assert report["epsilon if the server sees single replies"] == Privacy(1.0, 4.0, 30).epsilon(1e-5, 20)
    assert report["participations"] == 20
    assert report["participations enforced"]


# --- what clients enforce ---


def run_of(privacy, *, cohort_size, secure, clients=8, rounds=2, twist=None):
    """A private run of MVR, whose server has settings of its own."""
    method, population, x = mvr(cohort_size, 0.1, 0.3), quadratics(0, clients=clients, dimension=3), jnp.ones(3)
    app = client_app(clients_of(population), method, x, privacy=privacy)
    grid = LoopbackGrid(app, clients) if twist is None else LoopbackGrid(app, clients, twist=twist)
    strategy = FedspamStrategy(method, x, secure=secure, replies=Replies(patience=1, retries=0, quorum=0.5))
    return strategy.start(grid, to_arrays(x), num_rounds=rounds, timeout=9)


def test_a_server_that_asks_fewer_clients_than_share_the_noise_learns_nothing():
    """With three clients in the sum its noise would be smaller by the factor sqrt(3 / 6)."""
    privacy = summed(1.0, 4.0, 6)
    run_of(privacy, cohort_size=6, secure=privacy.secure)
    with pytest.raises(RuntimeError, match=r"3 clients with 6 different keys are too few"):
        run_of(privacy, cohort_size=3, secure=SecureSum(least=3))


@pytest.mark.slow
def test_a_sum_that_lost_clients_with_their_noise_is_not_unmasked():
    privacy = summed(1.0, 4.0, 6)

    def lost(client, message, answer):
        return [] if client == 0 and message.metadata.message_type.startswith("train.") else [answer()]

    run_of(privacy, cohort_size=7, clients=7, secure=privacy.secure, twist=lost)  # six of seven stay
    with pytest.raises(RuntimeError, match="too few clients stayed"):
        run_of(privacy, cohort_size=6, clients=6, secure=privacy.secure, twist=lost)


def test_a_covered_reply_never_leaves_without_its_secure_sum():
    with pytest.raises(RuntimeError, match="needs a secure sum"):
        run_of(summed(1.0, 4.0, 3), cohort_size=3, secure=None)


def test_a_client_refuses_to_take_part_more_often_than_it_agreed_to():
    privacy = summed(1.0, 4.0, 4, participations=3)  # the start and two rounds
    run_of(privacy, cohort_size=4, clients=4, secure=privacy.secure, rounds=2)
    with pytest.raises(RuntimeError, match="took part 3 times in this run"):
        run_of(privacy, cohort_size=4, clients=4, secure=privacy.secure, rounds=3)
    with pytest.raises(ValueError, match=r"participations = 4 must be at most 3"):
        privacy.epsilon(1e-5, 4)
    with pytest.raises(ValueError, match=r"needs a limit"):
        Privacy(1.0, 4.0, 4).epsilon(1e-5)


def test_a_client_keeps_its_budget_over_runs_with_other_settings(tmp_path):
    """Each run has fresh states, as a SuperNode has that starts again; the folder remains."""
    method, first = mvr(3, step_size=0.1, fresh_weight=1.0, start="zero", first="update"), jnp.zeros(3)
    nodes = [{"partition-id": id, "num-partitions": 3, "memory-folder": str(tmp_path)} for id in range(3)]

    def run(z, rounds, nodes=nodes):
        privacy = Privacy(1.0, z, 4, lifetime=1.0)  # of single replies: the multiplier is z / 2
        app = client_app(clients_of(quadratics(0, clients=3, dimension=3)), method, first, privacy=privacy)
        strategy = FedspamStrategy(method, first, replies=Replies(retries=0, patience=1))
        strategy.start(LoopbackGrid(app, nodes), to_arrays(first), num_rounds=rounds)

    run(4.0, 4)  # 1/8 each
    run(2.0, 1)  # 1/2
    with pytest.raises(
        RuntimeError, match=r"it has spent rho = 1 in all runs, and 0.125 more is above its lifetime = 1"
    ):
        run(4.0, 1)
    assert all(len(list((tmp_path / "spent" / f"client-{id}").iterdir())) == 5 for id in range(3))
    with pytest.raises(RuntimeError, match=r"lifetime = 1 needs a folder"):
        run(4.0, 1, nodes=3)


def test_two_processes_do_not_spend_the_same_budget_twice(tmp_path, monkeypatch):
    """Both have read what was spent before either notes its own: the slower one reads again."""
    privacy = Privacy(1.0, 2.0, 1, lifetime=0.125)  # one reply
    context = Context(1, 1, {"partition-id": 0, "memory-folder": str(tmp_path)}, RecordDict(), {})
    privacy._spend(context)
    listed, seen = Path.iterdir, []
    monkeypatch.setattr(Path, "iterdir", lambda path: listed(path) if seen or seen.append(0) else iter(()))
    with pytest.raises(RefusedError, match=r"it has spent rho = 0\.125 in all runs"):
        privacy._spend(context)


@pytest.mark.parametrize("note", [b"", b"nan", b"-1", b"\xff"])
def test_a_damaged_note_counts_as_all_of_the_budget(tmp_path, note):
    folder = tmp_path / "spent" / "client-0"
    folder.mkdir(parents=True)
    (folder / "0").write_bytes(note)
    context = Context(1, 1, {"partition-id": 0, "memory-folder": str(tmp_path)}, RecordDict(), {})
    with pytest.raises(RefusedError, match=r"it has spent rho = inf in all runs"):
        Privacy(1.0, 2.0, 1, lifetime=1.0)._spend(context)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (2.0, 1e-5), (8.0, 1e-3)])
def test_rho_for_a_budget_spends_it(epsilon, delta):
    assert epsilon_of(rho_for(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-4)


def test_a_start_of_four_cohorts_counts_four_times():
    """All four may hold the same client, and every reply of it counts."""
    method, first = mvr(3, step_size=0.1, fresh_weight=1.0, start=4), jnp.zeros(3)
    privacy = Privacy(1.0, 4.0, 3, participations=4)
    app = client_app(clients_of(quadratics(0, clients=3, dimension=3)), method, first, privacy=privacy)
    strategy = FedspamStrategy(method, first, replies=Replies(retries=0, patience=1))
    with pytest.raises(RuntimeError, match=r"round 1: difference: .* took part 4 times in this run"):
        strategy.start(LoopbackGrid(app, 3), to_arrays(first), num_rounds=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"least": 30, "secure": SecureSum()}, r"secure.least = 3 must be at least least = 30.*SecureSum\(least=30\)"),
        ({"works": (*GRADIENTS, "begin"), "secure": SecureSum()}, r"\['begin'\] are noised but not summed securely"),
        ({"bound": 1e-9, "secure": SecureSum()}, r"must be at least 16 times the grid.*raise fraction_bits"),
        ({"secure": SecureSum(fraction_bits=2)}, r"must be at least 16 times the grid"),
        ({"bound": 4.0, "secure": SecureSum(fraction_bits=52)}, r"does not fit into 2\^53 steps of the grid.*fewer"),
        ({"noise_multiplier": 1e-12}, r"does not fit into 2\^53 steps of the grid.*more noise"),
    ],
)
def test_a_secure_sum_that_hides_too_little_noise_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Privacy(**{"bound": 1.0, "noise_multiplier": 2.0, "least": 3, **settings})


def test_privacy_brings_its_own_secure_sum():
    population, method = quadratics(0, clients=4, dimension=3), mvr(3, 0.1, 0.3)
    with pytest.raises(ValueError, match=r"is not that of privacy"):
        client_app(clients_of(population), method, jnp.ones(3), privacy=Privacy(1.0, 1.0, 3), secure=SecureSum())


# --- the noise ---


def flat(params, rows):
    """A loss that does not change."""
    return 0.0 * jnp.sum(params)


def test_the_noise_of_a_sum_has_the_deviation_that_was_promised():
    """20,000 entries: their deviation is known to 1 in 200 (one standard error); four are allowed."""
    privacy, count = Privacy(bound=0.5, noise_multiplier=3.0, least=4), 20_000
    value = np.full(count, 1.0)  # norm 141: clipped to 0.5
    clipped = 0.5 / math.sqrt(count)
    total = sum(privacy.protect({"reply": value})["reply"] for _ in range(4))
    assert np.std(total) == pytest.approx(3.0 * 0.5, rel=4 / math.sqrt(2 * count))
    assert np.mean(total) == pytest.approx(4 * clipped, abs=4 * 1.5 / math.sqrt(count))
    more = sum(privacy.protect({"reply": value})["reply"] for _ in range(6))
    assert np.std(more) == pytest.approx(3.0 * 0.5 * math.sqrt(6 / 4), rel=4 / math.sqrt(2 * count))


def test_clients_without_noise_weaken_it_as_the_page_says():
    """With k of m the multiplier is smaller by sqrt(1 - k/m)."""
    privacy, draws, (m, k) = summed(1.0, 2.0, 9), 4000, (9, 5)
    total = sum(privacy.protect({"reply": np.zeros(draws)})["reply"] for _ in range(m - k))
    assert np.std(total) == pytest.approx(2.0 * math.sqrt(1 - k / m), rel=0.06)  # 5 standard errors


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_last_bits_do_not_tell_the_value(dtype):
    """With noise in floating point, a quarter of the replies without a value had bits that none with it has."""
    privacy = Privacy(bound=1.0, noise_multiplier=1.0, least=1)
    without, with_it = (privacy.protect({"reply": np.array([v], dtype)})["reply"] for v in (0, 1))
    assert without.dtype == with_it.dtype == dtype
    finest = lambda value: 2.0**20 * np.concatenate([privacy.protect({"r": value})["r"] for _ in range(500)])
    for value in (np.zeros(1, dtype), np.ones(1, dtype)):
        np.testing.assert_array_equal(finest(value) % 1, 0)


def test_noise_of_a_secure_sum_is_made_in_the_units_of_its_grid():
    """Nothing is left to round, neither of the noise nor of the value, and clipped values round towards zero."""
    privacy = Privacy(4.0, 16.0, 4, secure=SecureSum(least=4, fraction_bits=0))
    value = {"reply": np.full(20_000, 0.9, np.float32), "more": np.float32(0.5)}
    total = sum(privacy.protect(value)["reply"] for _ in range(4))
    assert total.dtype == np.float64
    np.testing.assert_array_equal(total % 1, 0)
    assert np.std(total) == pytest.approx(4.0 * 16.0, rel=4 / math.sqrt(2 * len(total)))
    assert np.mean(total) == pytest.approx(0, abs=5 * 64 / math.sqrt(len(total)))


def test_the_noise_is_fresh_and_all_arrays_are_clipped_together():
    privacy = Privacy(bound=1.0, noise_multiplier=1e-9, least=3)
    values = {"reply.a": np.array([3.0], np.float32), "reply.b": np.array([0.0, 4.0])}
    found = privacy.protect(values)
    np.testing.assert_allclose(np.concatenate([found["reply.a"], found["reply.b"]]), [0.6, 0.0, 0.8], atol=1e-6)
    assert found["reply.a"].dtype == np.float32
    assert privacy.protect(values)["reply.b"][1] != found["reply.b"][1]


@pytest.mark.parametrize("secure", [None, SecureSum(least=4)], ids=["seen", "secure"])
def test_a_private_run_spreads_as_its_noise_says(secure):
    """One round from zero gradients: what moves is the noise alone, whose size in the mean of m is zC/m."""
    clients, dimension, z = 4, 2000, 2.0
    method = mvr(clients, step_size=1.0, fresh_weight=1.0, start="zero", first="update")
    privacy, x = Privacy(bound=1e-3, noise_multiplier=z, least=clients, secure=secure), jnp.zeros(dimension)

    app = client_app(lambda context: DataOracle(jnp.zeros(1), loss=flat), method, x, privacy=privacy)
    result = FedspamStrategy(method, x, secure=secure).start(
        LoopbackGrid(app, clients), to_arrays(x), num_rounds=1, timeout=9
    )
    moved = result.arrays["params"].numpy()
    assert np.std(moved) == pytest.approx(z * 1e-3 / clients, rel=4 / math.sqrt(2 * dimension))


def test_the_prox_client_is_refused_unless_it_is_named():
    method = spam_pp(4, step_size=0.5, fresh_weight=0.3, solver=Exact())
    population, x = quadratics(0, clients=5, dimension=3, delta=0.1), jnp.ones(3)
    for in_clear in ((), ("train.prox",)):
        seen = []

        def twist(client, message, answer):
            reply = answer()
            if message.metadata.message_type == "train.difference":
                seen.append(opened(reply)[1]["reply"])
            return [reply]

        privacy = Privacy(bound=0.1, noise_multiplier=1e-6, least=4, in_clear=in_clear)
        app = client_app(clients_of(population), method, x, privacy=privacy)
        strategy = FedspamStrategy(method, x, replies=Replies(patience=1, retries=0))
        start = lambda: strategy.start(LoopbackGrid(app, 5, twist=twist), to_arrays(x), num_rounds=1, timeout=9)
        if in_clear:
            start()
        else:
            with pytest.raises(RuntimeError, match=r"'train.prox' is neither covered nor"):
                start()
        assert all(np.linalg.norm(reply) < 0.1001 for reply in seen)


def test_settings_without_meaning_are_refused():
    for wrong in ({"bound": 0.0}, {"noise_multiplier": -1.0}, {"least": 0}, {"works": ("prox",)}, {"works": ()}):
        with pytest.raises(ValueError, match=r"must|prox"):
            Privacy(**{"bound": 1.0, "noise_multiplier": 1.0, "least": 3, **wrong})
    privacy = Privacy(1.0, 1.0, 3)
    for call in (
        lambda: privacy.epsilon(0.0, 1),
        lambda: privacy.epsilon(1e-5, 0),
        lambda: privacy.epsilon_amplified(1e-5, 1, clients=3, cohort_size=4),
        lambda: noise_for(0.0, 1e-5, 1),
    ):
        with pytest.raises(ValueError, match="must"):
            call()


# --- the guide ---


def guide(name):
    text = (Path(__file__).parents[2] / "docs" / name).read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return code


def test_the_example_of_the_guide_runs(tmp_path, capsys):
    report = load_code(guide("secure.md"), tmp_path).report
    assert f"{round(report['epsilon'], 2)} True" in capsys.readouterr().out
    assert report["epsilon"] == summed(1.0, 4.0, 5).epsilon(1e-3, 4)


@pytest.mark.slow
def test_the_server_can_be_the_prox_client_on_proxy_data(tmp_path):
    """Client 0 moves, the others refuse to, and all that they say is masked."""
    mod = load_code(guide("privacy.md"), tmp_path).only_the_proxy_moves
    secure = SecureSum(in_clear=("train.prox",))
    population, x = quadratics(0, clients=6, dimension=3, delta=0.1), jnp.ones(3)
    spam = spam_pp(4, step_size=0.5, fresh_weight=0.3, solver=Exact())
    delegated, seen = dataclasses.replace(spam, movers="delegate"), []

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type.startswith("train.") and not_refused(reply):
            seen.append((client, message.metadata.message_type, *opened(reply)[1]))
        return [reply]

    def run(method):
        app = client_app(clients_of(population), method, x, secure=secure, mods=[mod])
        strategy = FedspamStrategy(method, x, seed=1, secure=secure, replies=Replies(patience=1, retries=0))
        return strategy.start(LoopbackGrid(app, 6, twist=twist), to_arrays(x), num_rounds=3, timeout=9)

    found = run(delegated).arrays["params"].numpy()
    np.testing.assert_allclose(found, simulate(delegated, population, x, rounds=3, key=1).params, atol=1e-7)
    assert {client for client, kind, *_ in seen if kind == "train.prox"} == {0}
    assert {name for _, kind, *names in seen if kind != "train.prox" for name in names} == {"masked"}
    other = dataclasses.replace(spam, movers="average")  # a server that asks others as well
    seen.clear()
    with pytest.raises(RuntimeError, match="only client 0"):
        run(other)


# --- what leaves a client ---

POPULATION = quadratics(0, clients=4, dimension=3)
MODS = {
    "none": dict,
    "clipping": lambda: {"mods": [clipping_mod(1.0)]},
    "privacy": lambda: {"privacy": Privacy(1.0, 1.0, 3)},
    "secure": lambda: {"secure": SecureSum()},
}


@pytest.mark.parametrize("mod", MODS)
def test_the_text_of_an_error_stays_on_the_client(mod, caplog):
    """Flower sends the text of an exception to the server, and it may hold data."""

    def oracle(context):
        raise ValueError("bad value in the row of patient Miller")

    method, settings = mvr(3, step_size=0.1, fresh_weight=0.3), MODS[mod]()
    grid = LoopbackGrid(client_app(oracle, method, jnp.ones(3), **settings), clients=4)
    strategy = FedspamStrategy(
        method, jnp.ones(3), replies=Replies(patience=1, retries=0), secure=settings.get("secure")
    )
    with pytest.raises(RuntimeError, match="could not start") as stopped:
        strategy.start(grid, to_arrays(jnp.ones(3)), 1, 5.0)
    said = [record for record in caplog.records if "whose text is not sent" in record.getMessage()]
    assert said
    for record in caplog.records:
        assert record in said or "Miller" not in record.getMessage()
    assert "Miller" not in str(stopped.value)
    if mod != "secure":
        assert "the client raised ValueError" in str(stopped.value)


def replies_of_auto(**settings):
    """The values that a client sends in auto's start and first exchange, by the type of message."""
    method, found = auto(3), {}
    privacy = Privacy(bound=1.0, least=3, works=(*GRADIENTS, "begin"), in_clear=("train.prox",), **settings)

    def twist(client, message, answer):
        reply = answer()
        if client == 0 and message.metadata.message_type.startswith("train") and not_refused(reply):
            found.setdefault(message.metadata.message_type, opened(reply)[1])
        return [reply]

    app = client_app(clients_of(POPULATION), method, jnp.ones(3), privacy=privacy)
    grid = LoopbackGrid(app, clients=4, twist=twist)
    FedspamStrategy(method, jnp.ones(3)).start(grid, to_arrays(jnp.ones(3)), 3, 5.0)
    return found


def test_auto_is_refused_under_privacy_unless_its_start_is_covered():
    method, privacy = auto(3), Privacy(1.0, 1.0, 3)
    grid = LoopbackGrid(client_app(clients_of(POPULATION), method, jnp.ones(3), privacy=privacy), clients=4)
    with pytest.raises(RuntimeError, match=r"'train.begin' is neither covered nor allowed in clear"):
        FedspamStrategy(method, jnp.ones(3), replies=Replies(patience=1, retries=0)).start(
            grid, to_arrays(jnp.ones(3)), 1, 5.0
        )


@pytest.mark.slow
def test_projections_and_losses_of_auto_are_clipped_and_noised_with_the_gradient():
    first, again = (replies_of_auto(noise_multiplier=1.0) for _ in range(2))
    assert {"reply.fresh.second", "reply.sampled"} <= first["train.begin"].keys()
    for name, value in first["train.begin"].items():
        assert not np.any(value == again["train.begin"][name])  # every number, each time anew
    quiet = replies_of_auto(noise_multiplier=1e-9)
    assert {"reply.c", "reply.bend", "reply.slope", "reply.sent.second"} <= quiet["train.difference"].keys()
    for kind in ("train.begin", "train.difference"):
        assert sum(np.sum(np.square(value)) for value in quiet[kind].values()) <= 1 + 1e-6  # all of it together


def test_the_page_on_replies_names_every_work():
    text = (Path(__file__).parents[2] / "docs" / "adversaries.md").read_text()
    for name, row in METHODS.items():
        for work in works_of(row.build(**row.example)):
            assert f"`{work}`" in text, (name, work)


def test_each_row_of_the_table_of_adversaries_names_tests_that_exist():
    """And all rows say who, what, and what enforces it."""
    root = Path(__file__).parents[2]
    section = (root / "docs" / "adversaries.md").read_text().split("## Adversaries\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    rows = [row for row in rows[2:] if len(row) == 4]
    tests = set(
        re.findall(r"^def (test_\w+)", "\n".join(path.read_text() for path in (root / "tests").rglob("*.py")), re.M)
    )
    assert len(rows) > 20
    for row in rows:
        assert all(row)
        named = re.findall(r"`(\w+)`", row[3])
        assert named
        assert set(named) <= tests, row
