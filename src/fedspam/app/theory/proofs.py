"""`fedspam theory --verify`: check proofs of the constants with fractions, without a solver."""

import math
import time
from collections.abc import Iterator
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from fedspam.theory.constants import effective_cohort, least_fresh_weight
from fedspam.theory.tight import best_rate, best_weight, drift, multipliers, prox_round

RATIOS = tuple(Fraction(text) for text in ("1/50", "1/20", "1/10", "1/4", "1/2", "3/4", "9/10"))
COHORTS = (1, 5, 10, 50)
CLIENTS = 100  # that cohorts are drawn from, without replacement
RELATIVE = Fraction(4331, 10_000)  # at least the sqrt(3)/4 of the relative test
ANY = Fraction(1, 96)  # the drift of every cohort with the paper's fresh weight is below it, as p > 0


def prove(ratio: Fraction, spread: Fraction, relative: Fraction = Fraction(0)) -> float:
    """The rate with the best weight, after its proof was checked; infinite where there is none."""
    if math.isinf(best_rate(float(ratio), float(spread), float(relative))):
        return math.inf
    weight = best_weight(float(ratio), float(spread), float(relative))
    found = multipliers(ratio, spread, Fraction(weight).limit_denominator(10_000), relative)
    prox_round(ratio, spread, relative).verify(found)
    return float(1 / found["gain"])


def corrected() -> None:
    """Check the corrected constants of Theorems 3.2, 3.5 and 5.1, for every cohort and every γδ up to 1/4."""
    for weight in (Fraction(15, 16), Fraction(3)):
        prox_round(Fraction(1, 4), ANY).verify({"gain": Fraction(1, 32), "weight": weight})
    found = multipliers(Fraction(1, 4), ANY, Fraction(3), RELATIVE)
    prox_round(Fraction(1, 4), ANY, RELATIVE).verify({**found, "gain": Fraction(1, 40)})


def rows() -> Iterator[tuple[Fraction, list[float]]]:
    """For each γδ: the rates of the cohorts with the paper's fresh weight, of any cohort, and of the relative test."""
    for ratio in RATIOS:
        rates = []
        for cohort in COHORTS:
            effective = Fraction(effective_cohort(cohort, CLIENTS)).limit_denominator(CLIENTS)
            p = least_fresh_weight(ratio, 1, effective, Fraction(96))
            rates.append(prove(ratio, drift(ratio, p, effective, 2)))
        yield ratio, [*rates, prove(ratio, ANY), prove(ratio, ANY, RELATIVE)]


def verify() -> int:
    """Check every proof and print the constants. Returns the exit code."""
    began = time.perf_counter()
    corrected()
    shown = Table(title="R in (1/K) Σ E‖∇f‖² ≤ R (F/(γK) + ...), proved; p = 96(γδ)²/(96(γδ)² + B_eff)")
    for name in ("γδ", *(f"B = {cohort}" for cohort in COHORTS), "any B", "relative", "paper"):
        shown.add_column(name, justify="right", no_wrap=True)
    count = 3
    for ratio, rates in rows():
        count += sum(map(math.isfinite, rates))
        texts = [f"{rate:.4f}" if math.isfinite(rate) else "–" for rate in rates]
        shown.add_row(f"{float(ratio):g}", *texts, "32" if ratio <= Fraction(1, 4) else "–")
    console = Console()
    console.print(shown)
    seconds = time.perf_counter() - began
    console.print(
        f"{count} proofs checked with fractions in {seconds:.1f} s. Each also covers every smaller γδ, with the same "
        f"or a larger p. Cohorts are drawn without replacement from {CLIENTS} clients; {RELATIVE} ≥ √3/4 is the "
        "precision of the relative test.",
        highlight=False,
    )
    return 0
