r"""The runs of the lab: one compiled program per method, with every slider as an argument.

Sizes are static in fedspam: another cohort or another number of local steps would compile again, for seconds. Here
both are arguments of compiled code:

- a cohort of B = 1, 2, 4, ..., 32 clients is a cohort of 32 that holds each of the B clients 32/B times. Every mean is
  the mean over B, and the same clients are drawn and chosen to move (`Repeated`);
- local steps are a loop whose length is an argument (`Descent`, `LocalSteps`).

The curves are those of the plain method up to rounding. A test compares them.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import lax
from jaxtyping import Array, Integer, Key, UInt32
from msgspec import Meta

from fedspam._internal import prng, trees
from fedspam._internal.trees import Params, static, struct
from fedspam.app.arrival import percentiles
from fedspam.app.config import to_toml
from fedspam.app.named_problems import Problem, of_quadratics
from fedspam.clients import Ids, Oracle, SmoothOracle
from fedspam.federation import ledger
from fedspam.methods import METHODS
from fedspam.methods._local import Trained, descend
from fedspam.methods.schedules import Schedule
from fedspam.problems import Quadratics, ridge
from fedspam.simulation import lanes
from fedspam.simulation.engine import Setup
from fedspam.solvers import LBFGS, Answer, Certificate, Exact, GradientDescent, LocalSolver, Never, Surrogate, certify
from fedspam.theory import constants as theory
from fedspam.theory.tight import least_tight_weight

CLIENTS, DIMENSION, ROUNDS = 100, 20, 300
SEEDS = 5  # each curve is the median over so many seeds
COHORTS = (1, 2, 4, 8, 16, 32)
WIDE = COHORTS[-1]
SOLVERS: Mapping[str, Callable[..., LocalSolver]] = {"gradient": GradientDescent, "exact": Exact, "lbfgs": LBFGS}
PROX, LOCAL, SERVER = "prox", "local", "server"  # how a method moves: by a prox, local steps, or a server step
RACERS: Mapping[str, str] = {
    "spam_pp": PROX,
    "spam": PROX,
    "spam_ppa": PROX,
    "mvr": SERVER,
    "fedavg": LOCAL,
    "ce_lsgd": LOCAL,
    "mime_mvr": LOCAL,
    "fedprox": PROX,
}
WITHOUT_FRESH_WEIGHT = ("fedavg", "fedprox")
WITHOUT_COHORT = ("spam",)
# the grid of the plane
RATIOS, FRESH_WEIGHTS = np.geomspace(0.01, 30, 15), np.geomspace(0.01, 1, 10)
Draw = Key[Array, ""]
_turn = threading.Lock()  # one run at a time, to leave some of the machine for others


class LabSetting(msgspec.Struct, frozen=True):
    """The positions of the sliders. Where they are at first, the theorems hold."""

    method: Literal[*RACERS] = "spam_pp"  # pyright: ignore[reportInvalidTypeForm]
    # of the clients' own part of the ridge; the similarity delta grows with it
    scale: Annotated[float, Meta(ge=1e-4, le=3)] = 0.03
    ratio: Annotated[float, Meta(ge=1e-3, le=100)] = 0.2  # step size times delta, for methods with a prox
    fresh_weight: Annotated[float, Meta(ge=1e-3, le=1)] = 0.4
    cohort: Literal[*COHORTS] = 8  # pyright: ignore[reportInvalidTypeForm]
    solver: Literal[*SOLVERS] = "gradient"  # pyright: ignore[reportInvalidTypeForm]
    steps: Annotated[int, Meta(ge=1, le=100)] = 5
    # step size times the largest smoothness of a client, for the other methods
    local: Annotated[float, Meta(ge=1e-3, le=10)] = 0.5
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0


# --- sizes as arguments ----------------------------------------------------------------------------------------------


@struct
class Repeated:
    """A population whose cohorts hold `cohort` different clients, repeated to fill the cohort."""

    population: Quadratics
    cohort: UInt32[Array, ""]

    @property
    def size(self) -> int:
        return self.population.size

    def sample(self, key: Draw, count: int) -> Ids:
        if count == 1:
            return self.population.sample(key, 1)
        place = jnp.arange(count, dtype=jnp.uint32) % self.cohort
        return jnp.where(self.cohort == 1, prng.index(key, self.size), prng.permuted(key, place, self.size))

    def client(self, id: UInt32[Array, ""]) -> Oracle:
        return self.population.client(id)


@struct
class Descent:
    """`GradientDescent` whose number of steps is traced."""

    steps: Any
    step_size: Any = None
    safeguard: bool = static(default=True)

    def __call__(
        self, oracle: Oracle, key: Draw, *, x: Params, g: Params, step_size: Any
    ) -> tuple[Params, Certificate]:
        def solve(phi: Surrogate) -> Answer:
            smoothness = oracle.smoothness if isinstance(oracle, SmoothOracle) else 0.0
            usual = 1 / (smoothness + 1 / phi.step_size)
            local = usual if self.step_size is None else self.step_size
            step = lambda _, point: phi.at(trees.axpy(-local, point.slope, point.y))
            return Answer(lax.fori_loop(0, self.steps, step, phi.start), self.steps, self.steps)

        return certify(solve, oracle, key, x=x, g=g, step_size=step_size, stop=Never(), safeguard=self.safeguard)


@struct
class LocalSteps:
    """The local training of FedAvg with a traced number of steps."""

    step_size: Schedule
    steps: Any

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        return {"local_rate": self.step_size(k)}

    def __call__(
        self, oracle: Oracle, key: Draw, x: Params, shift: Params | None, numbers: Mapping[str, Any]
    ) -> Trained:
        return Trained(descend(oracle, key, x, steps=self.steps, local_rate=numbers["local_rate"], shift=shift))

    def gradients(self, certificate: Any) -> Any:
        return self.steps


# --- methods ---------------------------------------------------------------------------------------------------------


def numbers(setting: LabSetting, problem: Problem) -> dict[str, Any]:
    """The numeric arguments of the constructor of the method."""
    kind = RACERS[setting.method]
    value = setting.ratio / problem.delta if kind == PROX else setting.local / problem.client_smoothness
    found: dict[str, Any] = {} if setting.method in WITHOUT_COHORT else {"cohort_size": setting.cohort}
    if kind == LOCAL:
        found["local_steps"] = setting.steps
    # rounded to the digits of the copied program
    found["local_rate" if kind == LOCAL else "step_size"] = float(f"{value:.6g}")
    return found if setting.method in WITHOUT_FRESH_WEIGHT else {**found, "fresh_weight": setting.fresh_weight}


def plain(setting: LabSetting, problem: Problem) -> Any:
    """The method as a user builds it."""
    steps = [setting.steps] if setting.solver == "gradient" else []
    solver = {"solver": SOLVERS[setting.solver](*steps)} if RACERS[setting.method] == PROX else {}
    return METHODS[setting.method].build(**numbers(setting, problem), **solver)


def traced(setting: LabSetting, problem: Problem) -> Any:
    """The same method with its cohort and its local steps as arguments of compiled code."""
    steps = jnp.asarray(setting.steps, jnp.int32)
    given = numbers(setting, problem)
    if "cohort_size" in given:
        given["cohort_size"] = WIDE
    kind = RACERS[setting.method]
    build: Callable[..., Any] = METHODS[setting.method].build
    if kind == PROX:
        return build(**given, solver=Descent(steps) if setting.solver == "gradient" else SOLVERS[setting.solver]())
    if kind == SERVER:
        return build(**given)
    method = build(**{**given, "local_steps": 1})
    if setting.method == "fedavg":
        return dataclasses.replace(method, training=LocalSteps(method.training.local_rate, steps))
    return dataclasses.replace(method, solver=Descent(steps, given["local_rate"], safeguard=False))


@functools.lru_cache(maxsize=64)
def problem_of(scale: float, seed: int) -> Problem:
    """The paper's ridge with 100 clients in 20 dimensions, always in float64."""
    what = f"the paper's ridge: {CLIENTS} clients, d = {DIMENSION}, scale {scale:g}"
    with jax.enable_x64(True):
        clients, start = ridge(seed, clients=CLIENTS, dimension=DIMENSION, scale=scale)
        return of_quadratics("ridge", what, clients, start)


@functools.lru_cache(maxsize=256)
def _prices(setting: LabSetting) -> dict[str, list[int]]:
    """Bytes up and bytes in total, of the start and of a round."""
    problem = problem_of(setting.scale, setting.seed)
    plan = ledger.plan(plain(setting, problem), problem.start, problem.population)
    total = lambda part, unit: sum(exchange.cohort * getattr(exchange, unit) for exchange in part)
    up = [total(part, "bytes_up") for part in (plan.start, plan.round)]
    down = [total(part, "bytes_down") for part in (plan.start, plan.round)]
    return {"bytes_up": up, "bytes": [a + b for a, b in zip(up, down, strict=True)]}


class Raced(NamedTuple):
    """The curve of one method: the relative gradient norm before every round, and after the last."""

    setting: LabSetting
    problem: Problem
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    every: np.ndarray  # of each seed
    prices: Mapping[str, list[int]]  # of the start and of a round
    compile_seconds: float
    run_seconds: float


def race(setting: LabSetting) -> Raced:
    """Run one method with several seeds, in float64."""
    with _turn, jax.enable_x64(True):
        problem = problem_of(setting.scale, setting.seed)
        seeds = range(setting.seed, setting.seed + SEEDS)
        seen, seconds = _simulate([traced(setting, problem)], problem, setting, seeds)
        # of all sliders only the cohort changes the bytes
        prices = _prices(LabSetting(setting.method, cohort=setting.cohort, solver=setting.solver))
    low, median, high = percentiles(seen[0], (0, 50, 100))
    return Raced(setting, problem, median, low, high, seen[0], prices, *seconds)


def plane(setting: LabSetting) -> np.ndarray:
    """The relative gradient norm at the end, for every fresh weight and step size."""
    if setting.method in WITHOUT_FRESH_WEIGHT or RACERS[setting.method] != PROX:
        raise ValueError(
            f"method = {setting.method!r} has no prox with a fresh weight, so it has no plane; choose 'spam_pp'"
        )
    with _turn, jax.enable_x64(True):
        problem = problem_of(setting.scale, setting.seed)
        points = [{"ratio": float(ratio), "fresh_weight": float(p)} for p in FRESH_WEIGHTS for ratio in RATIOS]
        grid = [msgspec.structs.replace(setting, **point) for point in points]
        seen, _ = _simulate([traced(one, problem) for one in grid], problem, setting, [setting.seed], every=ROUNDS)
    return seen[:, 0, -1].reshape(len(FRESH_WEIGHTS), len(RATIOS))


def _simulate(
    methods: Sequence[Any], problem: Problem, setting: LabSetting, seeds: Sequence[int], every: int = 1
) -> tuple[np.ndarray, tuple[float, float]]:
    """Relative gradient norms by method, seed and probe, and the seconds spent compiling and running.

    This is `simulate_many` without its ledger, which would take several times as long as the run.
    """
    assert isinstance(problem.population, Quadratics)
    population = Repeated(problem.population, jnp.asarray(setting.cohort, jnp.uint32))
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *methods)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    times = [time.perf_counter()]
    for count in (0, ROUNDS):  # with 0 rounds it compiles and runs nothing
        counts = jnp.full(len(methods), count, jnp.int32)
        seen = lanes.many(
            Setup(stacked, population, problem.start, keys, probe=problem.probe), counts,
            length=ROUNDS, every=every, record=(), side_by_side=True,
        ).probes  # fmt: skip
        found = np.asarray(seen["gradient"])
        times.append(time.perf_counter())
    return found, (times[1] - times[0], times[2] - times[1])


class Region(NamedTuple):
    """Where the theorems hold: for step sizes up to `limit` and fresh weights of at least `least`; and where there is a
    proof of the paper's rate 32 from its assumptions (`fedspam.theory.tight`): up to `reach`, from `repaired` on."""

    ratios: np.ndarray
    least: np.ndarray  # the paper's constant, 96
    repaired: np.ndarray
    limit: float
    reach: float
    cohort: float  # effective


def region(setting: LabSetting, problem: Problem) -> Region:
    cohort = 1 if setting.method in WITHOUT_COHORT else setting.cohort
    effective = theory.effective_cohort_of(problem.population, cohort)
    ratios = np.geomspace(RATIOS[0], RATIOS[-1], 120)
    least = np.asarray(theory.least_fresh_weight(ratios, 1.0, effective))
    repaired = least_tight_weight(ratios, min(effective, 1e12))
    averaged = setting.method == "spam_ppa"  # whose step size f's own curvature bounds
    share = 1 / (1 + problem.smoothness / problem.delta) if averaged else 1.0
    return Region(ratios, least, repaired, 0.25 * share, 0.9 * share, effective)


# --- a setting to copy ---


def as_python(setting: LabSetting, problem: Problem) -> str:
    """A program that runs the first seed of the curves."""
    given = [f"{name}={value!r}" for name, value in numbers(setting, problem).items()]
    imports = [f"from fedspam.methods import {setting.method}", "from fedspam.problems import ridge"]
    if RACERS[setting.method] == PROX:
        solver = SOLVERS[setting.solver].__name__
        given.append(f"solver={solver}({setting.steps if setting.solver == 'gradient' else ''})")
        imports.append(f"from fedspam.solvers import {solver}")
    lines = [
        "import jax",
        "import jax.numpy as jnp",
        "from fedspam import simulate",
        *imports,
        "",
        'jax.config.update("jax_enable_x64", True)',
        f"clients, start = ridge({setting.seed}, clients={CLIENTS}, dimension={DIMENSION}, scale={setting.scale!r})",
        f"# delta = {problem.delta:.4g}, L = {problem.smoothness:.4g}",
        f"method = {setting.method}({', '.join(given)})",
        'error = lambda x: {"gradient": jnp.linalg.norm(clients.gradient(x))}',
        f"run = simulate(method, clients, jnp.asarray(start), rounds={ROUNDS}, key={setting.seed}, probe=error)",
        'print(run.probes["gradient"][-1] / run.probes["gradient"][0])',
    ]
    return "\n".join(lines) + "\n"


def as_toml(setting: LabSetting, problem: Problem) -> str:
    """The same as a configuration: ``fedspam run experiment.toml``."""
    sizes = {"clients": CLIENTS, "dimension": DIMENSION, "scale": setting.scale, "seed": setting.seed}
    sections: dict[str, dict[str, Any]] = {
        "data": {"kind": "random_ridge", **sizes},
        "method": {"name": setting.method, **numbers(setting, problem)},
    }
    if RACERS[setting.method] == PROX:
        steps = {"steps": setting.steps} if setting.solver == "gradient" else {}
        sections["prox"] = {"name": setting.solver, **steps}
    sections["run"] = {"rounds": ROUNDS, "seed": setting.seed, "precision": "float64"}
    head = f"From fedspam lab: delta = {problem.delta:.4g}, L = {problem.smoothness:.4g}\nfedspam run experiment.toml"
    return to_toml(sections, head)
