"""The best constants of a round: exact proofs, the closed form against the solver, and instances that attain it."""

from fractions import Fraction
from importlib.util import find_spec

import numpy as np
import pytest

from fedspam.app.cli import main
from fedspam.app.theory.proofs import ANY, RATIOS, RELATIVE, corrected
from fedspam.methods.schedules import TightFreshWeightOf, constant, cube_root
from fedspam.theory import (
    Constants,
    constant_bound,
    inexact_bound,
    least_fresh_weight,
    promise,
    trips_needed,
    varying_bound,
)
from fedspam.theory.rounds import averaged_round, prox_round, round_of_clients, several_rounds
from fedspam.theory.tight import averaged_rate, best_rate, best_weight, drift, least_tight_weight, multipliers, rate

pytestmark = pytest.mark.x64
solver = pytest.mark.skipif(find_spec("clarabel") is None, reason="needs the solver of the extra `tight`")
QUARTER = Fraction(1, 4)


def paper(ratio, factor=96):
    """The drift with the least fresh weight that the paper allows one client."""
    return drift(ratio, least_fresh_weight(ratio, 1, 1, Fraction(factor)), 1, 2)


def test_the_command_checks_its_proofs(capsys):
    assert main(["theory", "--verify"]) == 0
    assert "proofs checked" in capsys.readouterr().out


def test_the_constants_of_the_paper_are_an_order_too_large():
    assert best_rate(0.25, paper(QUARTER)) < 1 / 0.39
    assert best_rate(0.25, paper(QUARTER, 6.5)) < 32  # 6.5 is enough where the paper has 96
    assert best_rate(0.25, paper(QUARTER, 5.9)) == np.inf
    assert best_rate(0.9, paper(Fraction(9, 10))) < 4  # and steps nearly four times as long


def test_the_corrected_constants_hold_for_every_cohort():
    corrected()
    with pytest.raises(ValueError, match="not a sum of squares"):
        prox_round(QUARTER, ANY).verify({"gain": Fraction(2, 5), "weight": Fraction(15, 16)})


@pytest.mark.parametrize("relative", [Fraction(0), Fraction(1, 10), RELATIVE])
@pytest.mark.parametrize("ratio", RATIOS[:5])
def test_every_weight_has_an_exact_proof_and_no_better_one(ratio, relative):
    spread = paper(ratio)
    best = best_weight(float(ratio), float(spread), float(relative))
    for weight in (Fraction(best).limit_denominator(100), Fraction(5 * best / 4).limit_denominator(100)):
        found = multipliers(ratio, spread, weight, relative)
        program = prox_round(ratio, spread, relative)
        program.verify(found)
        assert float(1 / found["gain"]) >= best_rate(float(ratio), float(spread), float(relative)) * (1 - 1e-12)
        with pytest.raises(ValueError, match="not a sum of squares"):
            program.verify({**found, "gain": found["gain"] + Fraction(1, 10**9)})


def value(form, at):
    """A quadratic form where the vectors are numbers."""
    return sum(factor * np.prod([at[name] for name in key]) for key, factor in form.terms.items())


@pytest.mark.parametrize("relative", [0.0, 0.4])
@pytest.mark.parametrize("ratio", [0.05, 0.25, 0.5])
def test_the_best_rate_is_attained(ratio, relative):
    """One dimension is enough: the error points back, and the client that moves bends as little as it may."""
    s = 0.6 * (1 - ratio) / 2
    program = prox_round(Fraction(ratio), Fraction(s) ** 2, Fraction(relative))
    share = (1 - ratio - 2 * s) / (1 - ratio - s + relative)
    at = {"d": 1.0, "e": -s, "change": ratio * (2 * share - 1), "residual": relative}
    gain = value(program.base, at) / -value(program.unknowns["gain"], at)
    assert 1 / gain == pytest.approx(best_rate(ratio, s**2, relative))
    held = [value(form, at) for name, form in program.unknowns.items() if name != "gain"]
    assert max(held) < 1e-12


def test_rate_takes_arrays():
    ratios = np.array([0.1, 0.25])
    weights = best_weight(ratios, 0.01)
    assert rate(ratios, 0.01, weights) == pytest.approx([best_rate(ratio, 0.01) for ratio in ratios])


# --- with the solver ---


@solver
@pytest.mark.parametrize("relative", [Fraction(0), RELATIVE])
@pytest.mark.parametrize("ratio", [Fraction(1, 20), QUARTER, Fraction(3, 4)])
def test_the_solver_finds_the_closed_form(ratio, relative):
    found = prox_round(ratio, paper(ratio), relative).solve()
    assert 1 / found["gain"] == pytest.approx(best_rate(float(ratio), float(paper(ratio)), float(relative)), rel=1e-5)


@solver
@pytest.mark.parametrize("cohort", [1, 5])
def test_a_round_with_all_its_clients_is_at_least_as_good_and_hardly_better(cohort):
    p = least_fresh_weight(QUARTER, 1, cohort, Fraction(96))
    limit = 1 / best_rate(0.25, float(drift(QUARTER, p, cohort, 2)))
    gains = [round_of_clients(clients, QUARTER, p, cohort).solve()["gain"] for clients in (2, 3, 8)]
    assert all(limit < gain < 1.002 * limit for gain in gains)
    assert gains[-1] < gains[0]  # more clients come nearer to the limit


@solver
@pytest.mark.parametrize("weak", [Fraction(0), Fraction(1, 4), Fraction(1, 2)])
def test_spam_ppa_is_as_good_as_the_worse_of_its_mean_and_its_deviations(weak):
    found = averaged_round(QUARTER, Fraction(1, 100), weak).certify()
    weight = float(found["weight"])
    assert float(1 / found["gain"]) == pytest.approx(averaged_rate(0.25, 0.01, weight, float(weak)), rel=1e-3)
    assert averaged_rate(0.25, 0.01, 0.8, 0.75) == np.inf  # gamma (delta + rho) must be below 1


@pytest.mark.parametrize("weak", [0.0, 0.3])
def test_a_relative_prox_costs_spam_ppa_at_least_what_it_costs_each_client(weak):
    exact, loose = (averaged_rate(0.25, 0.01, 0.8, weak, relative) for relative in (0.0, 0.4))
    apart = 1 + 2 * (0.75 + 0.4) ** 2 / (0.75 - weak)
    assert loose >= max(apart, rate(0.25, 0.01, 0.8, 0.4)) - 1e-9
    assert exact < loose < 1.1 * max(apart, rate(0.25, 0.01, 0.8, 0.4))


@solver
def test_several_rounds_at_once_gain_little():
    spread = Fraction(1, 100)
    shares = [several_rounds(rounds, QUARTER, Fraction(1, 10), spread).solve()["gain"] for rounds in (1, 2, 4)]
    assert shares[0] == pytest.approx(1 / 2.5, rel=1e-6)  # g_0 has no error
    assert 1 / best_rate(0.25, 0.01) < shares[2] < shares[1] < shares[0]
    assert shares[2] < 1.003 / best_rate(0.25, 0.01)


def test_the_least_fresh_weight_with_the_rate_of_the_paper():
    for ratio, cohort in ((0.05, 1.0), (0.25, 1.0), (0.25, 5.57), (0.9, 1.0)):
        p = least_tight_weight(ratio, cohort)
        assert best_rate(ratio, drift(ratio, p, cohort)) == pytest.approx(32)


# --- what uses them ---


@pytest.mark.parametrize(("fresh_weight", "cohort"), [(0.05, 1.0), (0.5, 1.0), (0.2, 5.57)])
def test_the_tight_step_size_has_the_least_rate_per_length(fresh_weight, cohort):
    """min over r of R(r)/r: at r = 1/(1 + 3 kappa), where it is 4 + 8 kappa; and p is the one of that step size."""
    made = constant(2.0, fresh_weight, cohort=cohort, constants="tight")
    best = made.step_size.value * 2
    of = lambda ratio: best_rate(ratio, drift(ratio, fresh_weight, cohort)) / ratio
    kappa = (1 / best - 1) / 3
    assert of(best) == pytest.approx(4 + 8 * kappa)
    assert of(best) < min(of(0.98 * best), of(1.02 * best))
    assert float(TightFreshWeightOf(made.step_size, 2.0, cohort)(0)) == pytest.approx(fresh_weight)


@pytest.mark.parametrize("cohort", [1.0, 5.57, 50.0])
def test_the_tight_schedule_has_a_proof_that_does_not_end(cohort):
    made, k = cube_root(1.0, cohort=cohort, constants="tight"), np.arange(20_000)
    steps, fresh = np.asarray(made.step_size(k)), np.asarray(made.fresh_weight(k))
    known = Constants(delta=1.0, sigma=0.5, gap=10.0)
    bound = varying_bound(known, steps, fresh, cohort=cohort, version="tight").total
    assert np.isfinite(bound).all()
    assert bound[-1] < 10 ** (-0.6) * bound[1999]  # about as K^(-2/3)
    assert bound[-1] < varying_bound(known, steps, fresh, cohort=cohort).total[-1] / 5


def test_a_bound_is_the_closed_form_and_infinite_without_a_proof():
    known = Constants(delta=1.0, gap=1.0)
    bound = constant_bound(known, 0.25, 6 / 7, 100, version="tight")
    assert bound.total[-1] == pytest.approx(best_rate(0.25, drift(0.25, 6 / 7)) / 25, rel=1e-3)
    assert constant_bound(known, 0.25, 0.01, 100, version="tight").total[-1] == np.inf
    answers = inexact_bound(known, np.full(100, 0.25), np.full(100, 6 / 7), epsilon=0.1, version="tight")
    exact = inexact_bound(known, np.full(100, 0.25), np.full(100, 6 / 7), version="tight")
    assert answers.total[-1] == pytest.approx((exact.total[-1] ** 0.5 + 0.1) ** 2)


def test_fewer_trips_are_promised():
    known = Constants(delta=1.0, sigma=0.65, gap=10.0)
    for cohort in (1.0, 5.57):
        made = promise(known, 1000, cohort=cohort, version="tight")
        gamma, p = made.parameters.step_size.value, made.parameters.fresh_weight.value
        weight = best_weight(gamma, drift(gamma, p, cohort))
        noise = 0.65**2 / cohort * weight * (2 * p / (2 - p) + 1 / (500 * 500 * p * (2 - p)))
        expected = best_rate(gamma, drift(gamma, p, cohort)) * (10 / (gamma * 500) + noise)
        assert made.bound == pytest.approx(expected, rel=3e-2)
        assert made.bound <= expected * (1 + 1e-3)  # other weights may be better with noise
        few, many = (trips_needed(known, 0.8, cohort=cohort, version=name) for name in ("tight", "corrected"))
        assert few < many / 500
