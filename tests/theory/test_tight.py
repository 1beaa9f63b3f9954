"""The best constants of a round: exact proofs, the closed form against the solver, and instances that attain it."""

from fractions import Fraction
from importlib.util import find_spec

import numpy as np
import pytest

from fedspam.app.cli import main
from fedspam.app.theory.proofs import ANY, RATIOS, RELATIVE, corrected
from fedspam.theory import least_fresh_weight
from fedspam.theory.tight import (
    RoundProgram,
    Terms,
    best_rate,
    best_weight,
    drift,
    multipliers,
    prox_round,
    rate,
    round_of_clients,
    symbols,
    total,
)

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


def test_a_proof_needs_multipliers_that_are_not_negative_and_values_that_cancel():
    found = multipliers(QUARTER, ANY, Fraction(3, 4))
    with pytest.raises(ValueError, match="weight is -1; it must not be negative"):
        prox_round(QUARTER, ANY).verify({**found, "weight": -1})
    with pytest.raises(ValueError, match=r"f\+ does not cancel"):
        round_of_clients(2, QUARTER, Fraction(6, 7)).verify({"gain": 0})


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
def test_the_solver_says_when_there_is_no_proof():
    d, e = symbols("d e")
    impossible = RoundProgram(-(d @ d), {"gain": -(e @ e)})
    with pytest.raises(ValueError, match="solver ended with"):
        impossible.solve()


def point_saga(n, smooth, convex):
    """The example of PEPit: a step of Point SAGA on n functions that are L-smooth and mu-strongly convex.

    The optimum is 0. Client i has the gradient s_i there, g_i in the table, and v_i at its own prox y_i.
    """
    gamma = Fraction((((n - 1) ** 2 + 4 * n * smooth / convex) ** 0.5 / 2 / n - (1 - 1 / n) / 2) / smooth)
    smooth, convex = Fraction(smooth), Fraction(convex).limit_denominator(1000)
    x, *table = symbols("x " + " ".join(f"g{i}" for i in range(n)))
    optimal = symbols(" ".join(f"s{i}" for i in range(1, n)))
    optimal = [-total(optimal), *optimal]
    reached, values = (symbols(" ".join(f"{letter}{i}" for i in range(n))) for letter in ("v", "f"))
    square = lambda vector: vector @ vector
    share = Fraction(1, n) / (smooth * convex)
    apart = [share * square(mine - best) for mine, best in zip(table, optimal, strict=True)]
    after, held = Terms(), {}
    for i in range(n):
        y = x + gamma * (table[i] - Fraction(1, n) * total(table) - reached[i])
        mine = square(y) + total(apart) - apart[i] + share * square(reached[i] - optimal[i])
        after = after + Fraction(1, n) * mine
        change = reached[i] - optimal[i]
        bend = 1 / smooth * square(change) + convex * square(y) - 2 * convex / smooth * (change @ y)
        bend = 1 / (2 * (1 - convex / smooth)) * bend
        held[f"forth {i}"] = optimal[i] @ y + bend - values[i]  # f_i is 0 at the optimum
        held[f"back {i}"] = values[i] - reached[i] @ y + bend
    before = square(x) + total(apart)
    return RoundProgram(before - after, {"gain": -before, **held})


@solver
def test_the_rate_that_pepit_finds_for_point_saga():
    assert 1 - point_saga(10, 1.0, 0.01).solve()["gain"] == pytest.approx(0.97140540, abs=2e-6)
