"""`fedspam theory --verify`: check proofs of the constants with fractions, without a solver."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from fedspam.app.terminal import numbers_table
from fedspam.theory import rounds
from fedspam.theory.constants import effective_cohort, least_fresh_weight
from fedspam.theory.tight import best_rate, best_weight, drift, multipliers

RATIOS = tuple(Fraction(number, 100) for number in (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90))
COHORTS = (1, 5, 10, 50)
CLIENTS = 100  # that cohorts are drawn from
RELATIVE = Fraction(4331, 10_000)  # at least the sqrt(3)/4 of the relative test
ANY = Fraction(1, 96)  # the drift of every cohort with the paper's fresh weight is below it, as p > 0
QUARTER = Fraction(1, 4)
STORED = Path(__file__).with_name("proofs.json")  # what a solver found, in fractions: reproductions/proofs.py writes it


def prove(ratio: Fraction, spread: Fraction, relative: Fraction = Fraction(0)) -> float:
    """The rate with the best weight, after its proof was checked; infinite where there is none."""
    if math.isinf(best_rate(float(ratio), float(spread), float(relative))):
        return math.inf
    weight = best_weight(float(ratio), float(spread), float(relative))
    found = multipliers(ratio, spread, Fraction(weight).limit_denominator(10_000), relative)
    rounds.prox_round(ratio, spread, relative).verify(found)
    return float(1 / found["gain"])


def corrected() -> int:
    """Check the corrected constants of Theorems 3.2, 3.5, 4.1, 5.1 and D.1, for every cohort and every γδ up to 1/4."""
    for weight in (Fraction(15, 16), Fraction(3)):
        rounds.prox_round(QUARTER, ANY).verify({"gain": Fraction(1, 32), "weight": weight})
    inexact = {"gain": Fraction(1, 40), "weight": Fraction(3), "relative": Fraction(1)}
    rounds.prox_round(QUARTER, ANY, RELATIVE).verify(inexact)
    rounds.averaged_round(QUARTER, ANY, QUARTER, RELATIVE).verify(inexact)  # γδ and γρ up to 1/4 each
    return 4


def smaller_factor() -> int:
    """Check that p ≥ Cr²/(Cr² + B_eff) is enough for the paper's rate 32, for every r = γδ up to 1/4, with C = 7.3 for
    any cohort and with C = 6.5 for one client.

    The drift is 2(1 - p)/(C(2 - p)), below 1/C. It falls with r: of the proofs for 6.5, the first is for r up to 1/5.
    """
    one = drift_of_factor(Fraction(13, 2), Fraction(1, 5))
    for ratio, spread in ((QUARTER, Fraction(10, 73)), (Fraction(1, 5), Fraction(2, 13)), (QUARTER, one)):
        if not prove(ratio, spread) <= 32:
            raise ValueError(f"there is no proof of the rate 32 at γδ = {ratio} with a drift of {spread}")
    return 3


def drift_of_factor(factor: Fraction, ratio: Fraction) -> Fraction:
    return drift(ratio, least_fresh_weight(ratio, 1, 1, factor), 1, 2)


def stored() -> list[tuple[str, float]]:
    """Check the stored proofs; a text and the gain of each."""
    found = []
    for row in json.loads(STORED.read_text()):
        arguments = {name: Fraction(value) for name, value in row["arguments"].items()}
        program(row["program"], arguments).verify({name: Fraction(text) for name, text in row["multipliers"].items()})
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in arguments.items())
        found.append((f"{row['program'].replace('_', ' ')}: {text}", float(Fraction(row["multipliers"]["gain"]))))
    return found


def program(name: str, arguments: Mapping[str, Fraction]) -> rounds.RoundProgram:
    whole: dict[str, Any] = {key: int(arguments[key]) for key in ("clients", "rounds") if key in arguments}
    return getattr(rounds, name)(**{**arguments, **whole})


def rows() -> Iterator[tuple[Fraction, list[float]]]:
    """For each γδ: the rates of the cohorts with the paper's fresh weight, of any cohort, and of the relative test."""
    cohorts = [(cohort, False) for cohort in COHORTS] + [(cohort, True) for cohort in COHORTS[1:]]
    for ratio in RATIOS:
        rates, alone = [], drift_of_factor(Fraction(96), ratio)
        for cohort, replace in cohorts:
            effective = Fraction(effective_cohort(cohort, CLIENTS, replace=replace)).limit_denominator(CLIENTS)
            p = least_fresh_weight(ratio, 1, effective, Fraction(96))
            rates.append(prove(ratio, drift(ratio, p, effective, 2)))
        yield ratio, [*rates, prove(ratio, ANY), prove(ratio, alone, RELATIVE)]


def verify() -> int:
    """Check every proof and print the constants. Returns the exit code."""
    began = time.perf_counter()
    count, lines = corrected() + smaller_factor(), []
    for ratio, rates in rows():
        count += sum(map(math.isfinite, rates))
        texts = [f"{rate:.3f}" if math.isfinite(rate) else "–" for rate in rates]
        lines.append([f"{float(ratio):g}", *texts, "32" if ratio <= QUARTER else "–"])
    repeated = (f"{cohort} ↻" for cohort in COHORTS[1:])
    header = ("γδ", *(f"B = {cohort}" for cohort in COHORTS), *repeated, "any", "relative", "paper")
    title = "R in (1/K) Σ E‖∇f‖² ≤ R (F/(γK) + ...), proved; p = 96(γδ)²/(96(γδ)² + B_eff)"
    others = [(text, f"{gain:.4f}") for text, gain in stored()]
    count += len(others)
    console = Console()
    console.print(numbers_table(header, lines, title=title, no_wrap=True))
    console.print(numbers_table(("program", "gain"), others, title="Found by the solver, rounded to fractions, stored"))
    seconds = time.perf_counter() - began
    console.print(
        f"{count} proofs checked with fractions in {seconds:.1f} s. Each of the first table also covers every smaller "
        f"γδ, with the same or a larger p. Cohorts are of {CLIENTS} clients, drawn without replacement or with it (↻); "
        f"{RELATIVE} ≥ √3/4 is the precision of the relative test. "
        "For the rate 32, 6.5 is enough in place of 96, and 7.3 with a cohort.",
        highlight=False,
    )
    return 0
