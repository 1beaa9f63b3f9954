"""The experiment: SPAM on the paper's ridge regression, with three settings and three ways to compute the prox."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedspam._internal import checks
from fedspam.app import devices
from fedspam.app.named_problems import QuadraticProbe
from fedspam.methods import spam
from fedspam.problems import ridge
from fedspam.simulation import simulate_many
from fedspam.solvers import Exact, GradientDescent, LocalSolver

LEAST_ROUNDS = 8  # the observations use the last two quarters


class PaperSetting(NamedTuple):
    """One panel of the figure."""

    name: str
    ratio: float  # gamma * delta
    fresh_weight: float
    stretch: int  # a factor on the number of rounds


SETTINGS = (
    PaperSetting("left", 10.0, 0.1, 1),
    PaperSetting("middle", 10.0, 0.9, 1),
    PaperSetting("right", 0.5, 0.1, 2),
)
SOLVERS: Mapping[str, LocalSolver] = {"exact": Exact(), "1": GradientDescent(1), "10": GradientDescent(10)}
LABELS = {"exact": "exact prox", "1": "1 local step", "10": "10 local steps"}

# the note below the figure: what the paper says, and what was chosen where it says nothing
READING = (
    r"The paper: $n=10$ clients, one a round; $d=100$; $\lambda=0.1$; $A_\xi=A_0A_0^\top+B_\xi$, plus its least "
    r"eigenvalue times $I$; $p=0.1$ left, $0.9$ middle; $\gamma=0.5/\delta$ and twice the rounds right.",
    r"Left open there, chosen here: $B_\xi=B_0B_0^\top$ with a standard normal $B_0$ of each client; "
    r"$\delta=\max\|H_\xi-H\|$ with $H_\xi=2A_\xi^\top A_\xi+\lambda I$, as the loss has no ½;",
    r"$\gamma=10/\delta$ left and middle; $p=0.1$ right; local gradient steps of size $1/(L_\xi+1/\gamma)$; "
    r"$g_{-1}=\nabla f(x_0)$; the number of rounds.",
)

Curves = Mapping[tuple[str, str], Float[np.ndarray, "seeds rounds"]]  # by panel and prox


def experiment(
    seeds: int, rounds: int, seed: int = 0, progress: Callable[[], None] = lambda: None
) -> tuple[Curves, Float[np.ndarray, " seeds"]]:
    """The relative gradient norms of all panels and proxes, and delta of every problem; in float64.

    Arguments:
        seeds: how many problems. Each has its own cohorts, which all panels and proxes share.
        rounds: of the left and middle panels; the right one has twice as many.
        seed: the first seed; the others follow it.
        progress: called ``len(SOLVERS) * seeds`` times.
    """
    checks.whole("seeds", seeds, 1)
    checks.whole("rounds", rounds, LEAST_ROUNDS)
    checks.whole("seed", seed, 0)
    runs: dict[tuple[str, str], list[np.ndarray]] = {(s.name, label): [] for s in SETTINGS for label in SOLVERS}
    deltas = []
    with jax.enable_x64(True):
        for number in range(seed, seed + seeds):
            population, start = ridge(number)
            start, delta = jnp.asarray(start), population.delta
            g = population.gradient(start)
            probe = QuadraticProbe.of(population, start)
            for label, solver in SOLVERS.items():
                build = functools.partial(spam, solver=solver, start=g, first="update")
                methods = [build(s.ratio / delta, s.fresh_weight) for s in SETTINGS]
                lengths = [rounds * setting.stretch for setting in SETTINGS]
                run = simulate_many(
                    methods, population, start, rounds=lengths, keys=[number], probe=probe, record=(),
                    side_by_side=False, devices=devices.chosen(),
                )  # fmt: skip
                for setting, curve, length in zip(SETTINGS, run.probes["gradient"], lengths, strict=True):
                    runs[setting.name, label].append(curve[0, : length + 1])
                progress()
            deltas.append(delta)
    return {name: np.stack(rows) for name, rows in runs.items()}, np.array(deltas)
