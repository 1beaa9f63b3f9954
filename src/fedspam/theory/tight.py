r"""The best constants that the assumptions allow for one round, with proofs that are checked in exact arithmetic.

A `RoundProgram` is the performance estimation of one round (Drori, Teboulle 2014; Taylor, Hendrickx, Glineur 2017) as
data: the inequality to prove, and the inequalities that the assumptions give. A proof is a multiplier for each of them
such that what is left is a sum of squares. `RoundProgram.verify` checks that with fractions. `RoundProgram.solve`
searches for the best proof with Clarabel (``pip install clarabel``).

For SPAM the best proof has a closed form, `rate`. It needs no solver:

.. math:: \mathrm{E}V_{k+1} \le V_k - \frac{\gamma}{R}\,\mathrm{E}\|\nabla f(x_{k+1})\|^2 + \text{noise}, \qquad
    R = 4r + \frac1c + \frac{(2c(1 - r + \theta) - 1)^2}{c\,(2c(1 - r) - 1 - 4c^2s^2)}

Here :math:`r = \gamma\delta`; :math:`\theta` is the relative precision of the prox (0 if it is exact); c is the
weight of the estimator's error in V; and :math:`s^2` is the drift of the estimator, :math:`\mathrm{E}\,e_{k+1} \le
(1 - q)e_k + qs^2\|x_{k+1} - x_k\|^2/\gamma^2 + \text{noise}` with :math:`q = 2p - p^2`. The paper has R = 32 for
:math:`r \le 1/4`. The derivation is in docs/tight.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from fedspam._internal import checks

Exact: TypeAlias = Fraction | int


# --- the closed form ---


def drift(ratio: Any, fresh_weight: Any, cohort: Any = 1.0, split: Any = 2.0) -> Any:
    r""":math:`s^2` of momentum variance reduction, :math:`\frac{u}{u-1}\frac{r^2(1-p)^2}{(2p-p^2)B_\mathrm{eff}}`.

    Arguments:
        split: u > 1, where the noise of a round is :math:`u\alpha p^2\sigma^2/B_\mathrm{eff}`; 2 in the paper.
    """
    kept = (ratio * (1 - fresh_weight)) ** 2
    return split * kept / ((split - 1) * fresh_weight * (2 - fresh_weight) * cohort)


def margin(ratio: Any, drift: Any, weight: Any) -> Any:
    """There is a proof with this weight where this is positive."""
    return 2 * weight * (1 - ratio) - 1 - 4 * weight**2 * drift


def best_weight(ratio: Any, drift: Any, relative: Any = 0.0) -> Any:
    """The weight c with the smallest rate; it exists where 2 s < 1 - r."""
    s = drift**0.5
    return (s + relative) / (2 * s * (1 - ratio - s + relative)) if relative else 1 / (2 * (1 - ratio - s))


def rate(ratio: Any, drift: Any, weight: Any, relative: Any = 0) -> Any:
    """R with these numbers, fractions or arrays; it is a proof where `margin` is positive.

    >>> rate(Fraction(1, 4), 0, Fraction(3, 4))  # without drift; the paper has 32
    Fraction(5, 2)
    """
    slope = 2 * weight * (1 - ratio + relative) - 1
    return 4 * ratio + 1 / weight + slope**2 / (weight * margin(ratio, drift, weight))


def best_rate(ratio: float, drift: float, relative: float = 0.0) -> float:
    r"""The smallest R over all weights: no proof of this form has a smaller one, whatever the number of clients.

    .. math:: R^* = 4r + \frac{2(1 - r - s + \theta)^2}{1 - r - 2s}

    It is infinite where :math:`2s \ge 1 - r`.

    >>> round(best_rate(0.25, drift(0.25, 6 / 7)), 3), best_rate(0.25, 0.2)
    (2.508, inf)
    """
    checks.between("ratio", ratio, 0, 1)
    s = math.sqrt(drift)
    left = 1 - ratio - 2 * s
    return 4 * ratio + 2 * (1 - ratio - s + relative) ** 2 / left if left > 0 else math.inf


def multipliers(ratio: Exact, drift: Exact, weight: Exact, relative: Exact = 0) -> dict[str, Fraction]:
    """The proof of `rate` for the program `prox_round`."""
    found = {"gain": 1 / Fraction(rate(ratio, drift, weight, relative)), "weight": Fraction(weight)}
    if relative:
        slope = 2 * weight * (1 - ratio + relative) - 1
        found["relative"] = Fraction(margin(ratio, drift, weight), 1) / (2 * relative * slope)
    return found


# --- programs ---


class Terms:
    """A linear combination with exact coefficients: of vectors, or of inner products and function values.

    The key of a vector or of a function value is its name, that of an inner product is a pair of names.
    """

    def __init__(self, terms: Mapping[tuple[str, ...], Exact] | None = None) -> None:
        self.terms = {key: Fraction(value) for key, value in (terms or {}).items() if value}

    def __add__(self, other: "Terms") -> "Terms":
        keys = {**self.terms, **other.terms}
        return Terms({key: self.terms.get(key, 0) + other.terms.get(key, 0) for key in keys})

    def __rmul__(self, number: Exact) -> "Terms":
        return Terms({key: number * value for key, value in self.terms.items()})

    def __neg__(self) -> "Terms":
        return -1 * self

    def __sub__(self, other: "Terms") -> "Terms":
        return self + -other

    def __matmul__(self, other: "Terms") -> "Terms":
        """The inner product of two vectors."""
        total: dict[tuple[str, ...], Fraction] = {}
        for (left,), a in self.terms.items():
            for (right,), b in other.terms.items():
                key = (min(left, right), max(left, right))
                total[key] = total.get(key, Fraction(0)) + a * b
        return Terms(total)


def symbols(names: str) -> list[Terms]:
    """One vector, or one function value, for each name."""
    return [Terms({(name,): 1}) for name in names.split()]


def total(terms: Sequence[Terms]) -> Terms:
    return sum(terms, Terms())


@dataclass(frozen=True)
class RoundProgram:
    """To prove: `base` plus the sum of multipliers times `unknowns` is never negative, for multipliers >= 0.

    Each unknown is what a multiplier adds: minus an inequality that holds, a weight of the Lyapunov function, or minus
    the quantity whose share is to be as large as possible.
    """

    base: Terms
    unknowns: Mapping[str, Terms]

    def left(self, multipliers: Mapping[str, Exact]) -> Terms:
        return self.base + total([Fraction(value) * self.unknowns[name] for name, value in multipliers.items()])

    def verify(self, multipliers: Mapping[str, Exact]) -> None:
        """Raise ValueError unless these multipliers are a proof. All arithmetic is exact."""
        negative = [name for name, value in multipliers.items() if value < 0]
        if negative:
            raise ValueError(f"the multiplier of {negative[0]} is {multipliers[negative[0]]}; it must not be negative")
        left = self.left(multipliers)
        values = [key[0] for key in left.terms if len(key) == 1]
        if values:
            raise ValueError(f"the function value {values[0]} does not cancel; its multipliers must sum to its factor")
        if not semidefinite(gram(left, names_of(left))):
            raise ValueError("these multipliers are not a proof: what they leave is not a sum of squares")

    def solve(self, goal: str = "gain") -> dict[str, float]:
        """The multipliers with the largest `goal`, up to the tolerance of the solver."""
        try:
            import clarabel
        except ImportError:
            raise ValueError("no solver is installed; install it: pip install clarabel") from None
        from scipy import sparse

        solver: Any = clarabel  # a compiled module without types

        parts = [self.base, *self.unknowns.values()]
        names = names_of(total([Terms(dict.fromkeys(part.terms, 1)) for part in parts]))
        values = sorted({key[0] for part in parts for key in part.terms if len(key) == 1})
        columns = np.array([_column(part, names, values) for part in parts]).T
        count, rows = len(self.unknowns), columns.shape[0]
        cost = -np.array([float(name == goal) for name in self.unknowns])
        settings = solver.DefaultSettings()
        settings.verbose = False
        found = solver.DefaultSolver(
            sparse.csc_matrix((count, count)), cost, sparse.csc_matrix(np.vstack([-columns[:, 1:], -np.eye(count)])),
            np.concatenate([columns[:, 0], np.zeros(count)]),
            [solver.ZeroConeT(len(values)), solver.PSDTriangleConeT(len(names)), solver.NonnegativeConeT(count)],
            settings,
        ).solve()  # fmt: skip
        if str(found.status) not in ("Solved", "AlmostSolved"):
            raise ValueError(f"the solver ended with {found.status} on {rows} equations; there may be no proof")
        return dict(zip(self.unknowns, found.x, strict=True))


def names_of(form: Terms) -> list[str]:
    return sorted({name for key in form.terms if len(key) == 2 for name in key})


def gram(form: Terms, names: Sequence[str]) -> list[list[Fraction]]:
    """The symmetric matrix of a quadratic form in the inner products of vectors."""
    entry = lambda a, b: form.terms.get((min(a, b), max(a, b)), Fraction(0)) / (1 if a == b else 2)
    return [[entry(a, b) for b in names] for a in names]


def semidefinite(matrix: Sequence[Sequence[Fraction]]) -> bool:
    """Whether a symmetric matrix of fractions is positive semidefinite, by symmetric elimination.

    >>> semidefinite([[1, 1], [1, 1]]), semidefinite([[1, 2], [2, 1]])
    (True, False)
    """
    rows = [list(map(Fraction, row)) for row in matrix]
    while rows:
        k = max(range(len(rows)), key=lambda i: rows[i][i])
        pivot, others = rows[k][k], [i for i in range(len(rows)) if i != k]
        if pivot <= 0:  # then all must be zero
            return not any(map(any, rows))
        rows = [[rows[i][j] - rows[i][k] * rows[k][j] / pivot for j in others] for i in others]
    return True


def _column(form: Terms, names: Sequence[str], values: Sequence[str]) -> list[float]:
    """The function values, then the upper triangle of the matrix by columns, as Clarabel wants them."""
    matrix = gram(form, names)
    triangle = [float(matrix[i][j]) * (1 if i == j else 2**0.5) for j in range(len(names)) for i in range(j + 1)]
    return [float(form.terms.get((value,), 0)) for value in values] + triangle


# --- rounds ---


def lower(step: Terms, change: Terms, delta: Exact) -> Terms:
    r"""The least :math:`h(x + d) - h(x) - \langle\nabla h(x), d\rangle` where the gradient of h is
    :math:`\delta`-Lipschitz and changes by `change` along d."""
    bend = Fraction(1, 1) / delta * (change @ change) - delta * (step @ step)
    return Fraction(1, 4) * bend + Fraction(1, 2) * (step @ change)


def prox_round(ratio: Exact, drift: Exact, relative: Exact = 0) -> RoundProgram:
    r"""A round in which any client moves, by a prox that is exact or has a relative precision; in units of gamma.

    The vectors are the step d, the error e of g, the client's change of :math:`\nabla f_i - \nabla f` along d, and
    :math:`\nabla\phi(x_{k+1})`. Lists: docs/tight.md.
    """
    d, e, change, residual = symbols("d e change residual")
    slope = d + e + change  # minus the gradient of f at the new point
    if relative:
        slope = slope + residual
    unknowns = {
        "gain": -(slope @ slope),
        "weight": e @ e - Fraction(drift) * (d @ d),
        "similar": change @ change - Fraction(ratio) ** 2 * (d @ d),
    }
    if relative:
        unknowns["relative"] = residual @ residual - Fraction(relative) ** 2 * (d @ d)
    # f(x) - f(x+) is at least this, because the prox does not increase phi
    base = Fraction(1, 2) * (d @ d) + e @ d + lower(d, change, ratio)
    return RoundProgram(base, unknowns)


def round_of_clients(clients: int, ratio: Exact, fresh_weight: Exact, cohort: Exact = 1) -> RoundProgram:
    r"""The same round of SPAM with all its n clients: their gradients at both points and their values, in units of
    gamma. Nothing is eliminated by hand, so it is a check of `prox_round`. Client 0 moves by an exact prox.

    The gradients of :math:`h_i = f_i - f` are a_i at x and b_i at the new point, and f and h_i are 0 at x.
    """
    d, e, f = symbols("d e f+")
    others = range(1, clients)
    a, b, h = (symbols(" ".join(f"{letter}{i}" for i in others)) for letter in ("a", "b", "h"))
    a, b, h = ([-total(each), *each] for each in (a, b, h))
    p, r = Fraction(fresh_weight), Fraction(ratio)
    mean = lambda each: Fraction(1, clients) * total(each)
    noise = mean([v @ v for v in ([y - (1 - p) * x for x, y in zip(a, b, strict=True)])])
    spread = 2 * p**2 * mean([v @ v for v in b])
    slope = d + e + b[0] - a[0]  # minus the gradient of f at the new point
    held = {"prox": f + h[0] + (e - a[0]) @ d + Fraction(1, 2) * (d @ d)}  # <= 0
    for i in range(clients):
        least = lower(d, b[i] - a[i], r)
        held[f"forth {i}"] = least + a[i] @ d - h[i]
        held[f"back {i}"] = h[i] - b[i] @ d + least
    weight = e @ e - 1 / (p * (2 - p) * cohort) * (noise - spread)
    return RoundProgram(-f, {"gain": -(slope @ slope), "weight": weight, **held})
