"""Programs as data: the solver against known figures of PEPit, exact proofs, and the rounds of rivals."""

from fractions import Fraction
from functools import partial
from importlib.util import find_spec

import pytest

from fedspam.theory.programs import RoundProgram, Terms, interpolate, lower, symbols, total
from fedspam.theory.rounds import gradient_round, prox_round, round_of_clients, s_dane_round, sppm_round, svrp_round
from fedspam.theory.tight import multipliers

pytestmark = pytest.mark.x64
solver = pytest.mark.skipif(find_spec("clarabel") is None, reason="needs the solver of the extra `tight`")
QUARTER = Fraction(1, 4)


def test_a_proof_needs_multipliers_that_are_not_negative_and_values_that_cancel():
    found = multipliers(QUARTER, Fraction(1, 96), Fraction(3, 4))
    with pytest.raises(ValueError, match="weight is -1; it must not be negative"):
        prox_round(QUARTER, Fraction(1, 96)).verify({**found, "weight": -1})
    with pytest.raises(ValueError, match=r"f\+ does not cancel"):
        round_of_clients(2, QUARTER, Fraction(6, 7)).verify({"gain": 0})


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
        at = [(Terms(), optimal[i], Terms()), (y, reached[i], values[i])]
        held |= interpolate(f"f{i}", at, partial(lower, smooth=smooth, convex=convex))
    before = square(x) + total(apart)
    return RoundProgram(before - after, {"gain": -before, **held})


@solver
def test_the_rate_that_pepit_finds_for_point_saga():
    assert 1 - point_saga(10, 1.0, 0.01).solve()["gain"] == pytest.approx(0.97140540, abs=2e-6)


def numbered(letter, count):
    return symbols(" ".join(f"{letter}{i}" for i in range(count)))


def balanced(letter, count):
    """Vectors whose sum is 0."""
    free = numbered(letter, count - 1)
    return [-total(free), *free]


square = lambda vector: vector @ vector
mean = lambda each: Fraction(1, len(each)) * total(each)


def sgd(n, smooth, convex, gamma, start, spread):
    """The largest mean of |x_1 - x*|^2, where |x_0 - x*| <= start and the gradients at x* have this spread."""
    (x,), optimal, now, values = symbols("x"), balanced("s", n), numbered("g", n), numbered("f", n)
    held = {}
    for i in range(n):
        at = [(Terms(), optimal[i], Terms()), (x, now[i], values[i])]
        held |= interpolate(f"f{i}", at, partial(lower, smooth=smooth, convex=convex))
    after = mean([square(x - gamma * each) for each in now])
    share = Fraction(spread) ** 2 / Fraction(start) ** 2
    more = mean([square(each) for each in optimal]) - share * square(x)
    base = 10 * Fraction(1, start**2) * square(x) - after
    return RoundProgram(base, {"gain": -(Fraction(1, start**2) * square(x)), "spread": more, **held})


def saga(n, smooth, convex):
    """A step of SAGA on n smooth and strongly convex functions, and a convex one by its prox."""
    gamma = Fraction(1) / (2 * (convex * n + smooth))
    scale = Fraction(1) / (2 * gamma * (1 - convex * gamma) * n)
    (x,), points, table, past = symbols("x"), numbered("p", n), numbered("g", n), numbered("f", n)
    optimal, now, values = balanced("s", n), numbered("v", n), numbered("w", n)
    (out,), subs, costs = symbols("out"), numbered("u", n), numbered("h", n)
    optimal = [optimal[0] - n * out, *optimal[1:]]  # the mean gradient is -out, a subgradient of the convex one is out
    apart = lambda value, i, at: value - optimal[i] @ at  # f_i(x*) = 0
    before = scale * square(x) + mean([apart(past[i], i, points[i]) for i in range(n)])
    after, held, proxes = Terms(), {}, [(Terms(), out, Terms())]
    for i in range(n):
        reached = x - gamma * (now[i] - table[i] + mean(table) + subs[i])
        proxes.append((reached, subs[i], costs[i]))
        kept = [apart(past[j], j, points[j]) for j in range(n) if j != i]
        after = after + scale * square(reached) + Fraction(1, n) * total([*kept, apart(values[i], i, x)])
        at = [(Terms(), optimal[i], Terms()), (x, now[i], values[i]), (points[i], table[i], past[i])]
        held |= interpolate(f"f{i}", at, partial(lower, smooth=smooth, convex=convex))
    held |= interpolate("h", proxes, lambda step, change: Terms())
    return RoundProgram(before - Fraction(1, n) * after, {"gain": -before, **held})


def proximal_point(gamma, n):
    """The largest f(x_n) - f(x*) after n proxes from |x_0 - x*| <= 1, below 1."""
    (x,), slopes, values = symbols("x"), numbered("g", n), numbered("f", n)
    at, reached = [(Terms(), Terms(), Terms())], x
    for slope, each in zip(slopes, values, strict=True):
        reached = reached - gamma * slope
        at.append((reached, slope, each))
    held = interpolate("f", at, lambda step, change: Terms())
    return RoundProgram(square(x) - values[-1], {"gain": -square(x), **held})


@solver
def test_the_figures_of_pepit_for_sgd_saga_and_the_proximal_point_method():
    assert 10 - sgd(5, 1, Fraction(1, 10), Fraction(7, 10), 2, 1).solve()["gain"] == pytest.approx(4.183000, abs=1e-5)
    assert 1 - saga(5, 1, Fraction(1, 10)).solve()["gain"] == pytest.approx(0.9666667, abs=1e-5)
    assert 1 - proximal_point(3, 4).solve()["gain"] == pytest.approx(0.0208333, abs=1e-5)


# --- rivals ---


@solver
def test_page_has_the_gain_of_its_paper_at_its_step_size():
    chance, size = Fraction(1, 4), 3
    kappa = ((1 - chance) / (chance * size)) ** 0.5  # gamma = 1 / (L (1 + kappa)) promises 2 F / (gamma K)
    ratio = Fraction(1 / (1 + kappa)).limit_denominator(1000)
    found = gradient_round(ratio, (1 - chance) / (chance * size) * ratio**2).certify()
    assert found["gain"] > Fraction(1, 2)


@solver
def test_sppm_and_svrp_contract_as_their_paper_says():
    assert sppm_round(Fraction(1, 2)).solve()["gain"] == pytest.approx((1 + 1 / 2) ** 2, rel=1e-6)
    ratio, convex, chance, weight = Fraction(1, 8), Fraction(1, 8), Fraction(1, 4), Fraction(1, 4)
    share = 1 - (1 + weight * chance) / (1 + convex) ** 2
    other = chance - (1 + weight * chance) * ratio**2 / weight / (1 + convex) ** 2
    assert svrp_round(ratio, convex, chance, weight).solve()["gain"] == pytest.approx(
        float(min(share, other)), rel=1e-5
    )


@solver
def test_s_dane_keeps_its_promise_with_half_the_regularization():
    """Its Theorem has lambda = 2 delta and a gain of 1."""
    assert s_dane_round(Fraction(1, 2), Fraction(1, 10)).solve()["gain"] > 1
    assert s_dane_round(Fraction(1), Fraction(1, 10)).solve()["gain"] > 1


@solver
def test_what_a_solver_found_becomes_a_proof_in_fractions():
    program = round_of_clients(3, QUARTER, Fraction(6, 7))
    found = program.certify()
    assert all(isinstance(value, Fraction) for value in found.values())
    assert found["gain"] == pytest.approx(program.solve()["gain"], rel=2e-4)
    program.verify(found)
