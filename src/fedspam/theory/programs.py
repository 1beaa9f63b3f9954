r"""Rounds as semidefinite programs that are data, and proofs of them that are checked in exact arithmetic.

A `RoundProgram` is the performance estimation of a round (Drori, Teboulle 2014; Taylor, Hendrickx, Glineur 2017): the
inequality to prove, and the inequalities that the assumptions give, as linear combinations of inner products and
function values. A proof is a multiplier for each of them such that what is left is a sum of squares.
`RoundProgram.verify` checks that with fractions. `RoundProgram.solve` searches for the best proof with Clarabel
(``pip install clarabel``), and `RoundProgram.certify` makes fractions of what it found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

Exact: TypeAlias = Fraction | int
Held: TypeAlias = dict[str, "Terms"]  # each is at most 0


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

    def certify(
        self, goal: str = "gain", *, slack: Exact = Fraction(1, 10_000), limit: int = 10**6
    ) -> dict[str, Fraction]:
        """Multipliers in fractions that `verify` accepts, with a goal that is smaller than the best by `slack`."""
        given = Fraction(self.solve(goal)[goal]).limit_denominator(limit) * (1 - slack)
        squares = total([-(vector @ vector) for vector in symbols(" ".join(self._names()))])
        others = {name: form for name, form in self.unknowns.items() if name != goal}
        inside = RoundProgram(self.base + given * self.unknowns[goal], {**others, "margin": squares}).solve("margin")
        found = {name: Fraction(max(inside[name], 0)).limit_denominator(limit) for name in others}
        found = self._cancel({goal: given, **found}, [name for name in others if inside[name] > 1 / limit])
        self.verify(found)
        return found

    def _cancel(self, multipliers: dict[str, Fraction], free: Sequence[str]) -> dict[str, Fraction]:
        """The same with the least changes of `free` multipliers that make all function values cancel exactly."""
        rows, form = [], self.left(multipliers)
        for value in sorted({key for part in self.unknowns.values() for key in part.terms if len(key) == 1}):
            row = [self.unknowns[name].terms.get(value, Fraction(0)) for name in free]
            rows.append((row, -form.terms.get(value, Fraction(0))))
        products = [
            [sum((a * b for a, b in zip(row, other, strict=True)), Fraction(0)) for other, _ in rows] for row, _ in rows
        ]
        weights = _solution(products, [right for _, right in rows])
        change = [
            sum((w * row[i] for w, (row, _) in zip(weights, rows, strict=True)), Fraction(0)) for i in range(len(free))
        ]
        return {**multipliers, **{name: multipliers[name] + by for name, by in zip(free, change, strict=True)}}

    def _names(self) -> list[str]:
        return names_of(total([Terms(dict.fromkeys(part.terms, 1)) for part in (self.base, *self.unknowns.values())]))

    def solve(self, goal: str = "gain") -> dict[str, float]:
        """The multipliers with the largest `goal`, up to the tolerance of the solver."""
        try:
            import clarabel
        except ImportError:
            raise ValueError("no solver is installed; install it: pip install clarabel") from None
        from scipy import sparse

        solver: Any = clarabel  # a compiled module without types

        parts = [self.base, *self.unknowns.values()]
        names = self._names()
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


def _solution(matrix: Sequence[Sequence[Fraction]], right: Sequence[Fraction]) -> list[Fraction]:
    """A solution of a system that has one, by elimination in fractions."""
    rows, pivots = [[*row, value] for row, value in zip(matrix, right, strict=True)], []
    for column in range(len(right)):
        free = [i for i in range(len(pivots), len(rows)) if rows[i][column]]
        if free:
            k, place = free[0], len(pivots)
            rows[place], rows[k] = rows[k], rows[place]
            rows[place] = [value / rows[place][column] for value in rows[place]]
            for i in range(len(rows)):
                if i != place:
                    rows[i] = [a - rows[i][column] * b for a, b in zip(rows[i], rows[place], strict=True)]
            pivots.append(column)
    found = [Fraction(0)] * len(right)
    for row, column in zip(rows, pivots, strict=False):
        found[column] = row[-1]
    return found


def _column(form: Terms, names: Sequence[str], values: Sequence[str]) -> list[float]:
    """The function values, then the upper triangle of the matrix by columns, as Clarabel wants them."""
    matrix = gram(form, names)
    triangle = [float(matrix[i][j]) * (1 if i == j else 2**0.5) for j in range(len(names)) for i in range(j + 1)]
    return [float(form.terms.get((value,), 0)) for value in values] + triangle


def lower(step: Terms, change: Terms, smooth: Exact, convex: Exact | None = None) -> Terms:
    r"""The least :math:`h(x + d) - h(x) - \langle\nabla h(x), d\rangle` of a function whose gradient changes by
    `change` along d, and whose curvature is between `convex` (minus `smooth` by default) and `smooth`."""
    mu, smooth = -Fraction(smooth) if convex is None else Fraction(convex), Fraction(smooth)
    bend = 1 / smooth * (change @ change) + mu * (step @ step) - 2 * mu / smooth * (change @ step)
    return smooth / (2 * (smooth - mu)) * bend


def interpolate(label: str, points: Sequence[tuple[Terms, Terms, Terms]], bound: Callable[..., Terms]) -> Held:
    """What holds between the values of one function at points (x, gradient, value); `bound` is like `lower`."""
    held = {}
    for i, (x, g, f) in enumerate(points):
        for j, (y, v, h) in enumerate(points):
            if i != j:
                held[f"{label} {i} {j}"] = f + g @ (y - x) + bound(y - x, v - g) - h
    return held
