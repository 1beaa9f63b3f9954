"""From a configuration to the arguments of `simulate`: clients, a method, a start and a probe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import optax
from msgspec import Struct

from fedspam import solvers
from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.app import named_problems
from fedspam.app.config import Config, ConfigError, methods as sections, naming, schema
from fedspam.app.config.schema import name_of
from fedspam.app.experiment.data import LoadedExamples, examples
from fedspam.app.experiment.model import learner
from fedspam.app.experiment.parts import read_parts
from fedspam.app.experiment.probes import ProblemProbe, evaluation, rows_probe, usual_metric
from fedspam.clients import Population, Ragged
from fedspam.federation import ledger
from fedspam.federation.codecs import NO_CODECS, Codecs
from fedspam.methods import METHODS, Epochs, schedules
from fedspam.problems import Quadratics, quadratics, ridge
from fedspam.simulation.metrics import METRICS
from fedspam.simulation.stopping import Patience, Target

FIRST = ("loss", "gradient", "accuracy")  # metrics that are shown first

# clients, a start and a probe; examples, and the function of the user's own that predicts them, if there are any
World = tuple[Population, Params, Any, LoadedExamples | None, Callable[..., Any] | None]


@dataclass(frozen=True)
class Experiment:
    """What a configuration describes, ready to run."""

    config: Config
    method: Any
    population: Population
    start: Params
    probe: Any
    metrics: tuple[str, ...]  # what the probe measures
    examples: LoadedExamples | None = None  # None where the data has no rows
    codecs: Codecs = NO_CODECS
    predict: Callable[..., Any] | None = None  # of a file of the user's

    @property
    def target(self) -> Target | None:
        """What the run is to reach: at least a value of a metric that rises, at most a value of any other."""
        options = self.config.evaluate
        if options.target is None:
            return None
        if METRICS[self.metric].rising:
            return Target(self.metric, at_least=options.target)
        return Target(self.metric, at_most=options.target)

    @property
    def metric(self) -> str:
        """The metric of the target and of the patience."""
        usual = "accuracy" if self.examples is None else usual_metric(self.examples)
        return self.config.evaluate.metric or (usual if usual in self.metrics else "loss")

    @property
    def until(self) -> Target | Patience | None:
        """What ends the run before its last round."""
        options = self.config.evaluate
        if options.patience is not None:
            return Patience(self.metric, options.patience, largest=METRICS[self.metric].rising)
        return self.target if options.stop else None


def make(config: Config) -> Experiment:
    """Read the data and build what a configuration describes. A `ConfigError` names the setting that is wrong."""
    _check_numbers(msgspec.to_builtins(config))
    population, start, probe, rows, predict = WORLDS.get(type(config.data), _examples)(config)
    settings = msgspec.structs.asdict(config.method)
    cohort, proxy = settings.get("cohort_size"), settings.get("proxy", 0)
    if cohort is not None and population.size is not None and cohort > population.size:
        raise ConfigError(
            f"method.cohort_size = {cohort} is more than the {population.size} clients of the data; "
            f"give at most {population.size}"
        )
    if population.size is not None and proxy >= population.size:
        raise ConfigError(f"method.proxy = {proxy} is not a client of the data; give 0 to {population.size - 1}")
    with naming("method"):
        method = build_method(config.method, config.prox, population.size)
    if config.prox is not None and name_of(config.prox) == "exact" and not isinstance(population, Quadratics):
        raise ConfigError("prox.name = 'exact' needs quadratic clients; use 'lbfgs' or 'newton'")
    measured = jax.eval_shape(lambda probe, start: probe(start), probe, start)
    metrics = (*(name for name in FIRST if name in measured), *sorted(measured.keys() - set(FIRST)))
    metric = config.evaluate.metric
    if metric is not None and metric not in metrics:
        known = ", ".join(name for name in metrics if name in METRICS)
        raise ConfigError(
            f"evaluate.metric = {metric!r} is not measured here; choose one of {known}. Others need test rows "
            "(data.test): rmse numbers to predict, the rest classes and a model that predicts (predict), and auc one "
            "of this package"
        )
    with naming("codecs"):
        codecs = build_codecs(config.codecs)
        plan = ledger.plan(method, start, population, codecs=codecs) if codecs or config.run.record else None
    for name in config.run.record or ():
        if plan is not None and name not in plan.reported:
            raise ConfigError(f"run.record: {method.name} reports {', '.join(plan.reported)}, and not {name!r}")
    made = Experiment(config, method, population, start, probe, metrics, rows, codecs, predict)
    if config.evaluate.target is not None:
        with naming("evaluate.target"):
            METRICS[made.metric].check(made.metric, config.evaluate.target)
    return made


def _check_numbers(part: Any, where: str = "") -> None:
    """Refuse whole numbers that JAX would wrap or that no memory holds."""
    if isinstance(part, dict):
        for name, value in part.items():
            _check_numbers(value, f"{where}.{name}" if where else str(name))
    elif isinstance(part, int) and abs(part) >= 2**31:
        shown = str(part) if part.bit_length() < 200 else f"a number of {part.bit_length()} bits"
        raise ConfigError(f"{where} = {shown} must be below 2^31 = {2**31}; give a smaller number")


# --- clients, start and probe ---


@naming("data")
def _drawn(draw: Callable[..., Any], config: Config) -> Any:
    """Random clients with the settings of `[data]`."""
    settings = msgspec.structs.asdict(config.data)
    return draw(settings.pop("seed"), **settings)


@naming("data")
def _problem(config: Config) -> World:
    problem = named_problems.load(config.data.name, config.data.folder)
    clients, start = problem.population, problem.start
    if isinstance(clients, Quadratics):
        return _probed(clients, start)
    assert isinstance(clients, Ragged)
    return clients, start, ProblemProbe(rows_probe(clients, start, None), problem.probe), None, None


def _examples(config: Config) -> World:
    data = examples(config.data, config.clients)
    model = learner(config.model, data, seed=config.run.seed, precision=config.run.precision)
    batch = config.clients.batch
    if batch is not None:
        row = sum(column[:1].nbytes for column in data.train.examples.values())
        with naming("clients.batch"):
            checks.memory(f"minibatches of {batch} rows", batch * row, "give fewer, or leave it out")
    clients = data.train.population(model.loss, batch=batch, weighted=config.clients.weighted)
    probe = rows_probe(clients, model.start, evaluation(data, model, config.evaluate))
    return clients, model.start, probe, data, model.predict


@naming("data")
def _parts(config: Config) -> World:
    clients, model, probe, data = read_parts(config)
    return clients, model.start, probe, data, model.predict


def _probed(clients: Quadratics, start: Any) -> World:
    start = jnp.asarray(start, clients.hessians.dtype)
    return clients, start, named_problems.QuadraticProbe.of(clients, start), None, None


# kinds of data with clients of their own; all others are examples, which `[model]` learns from
WORLDS: Mapping[type[Struct], Callable[[Config], World]] = {
    schema.QuadraticsSection: lambda config: _probed(_drawn(quadratics, config), jnp.zeros(config.data.dimension)),
    schema.RidgeSection: lambda config: _probed(*_drawn(ridge, config)),
    schema.ProblemSection: _problem,
    schema.Parts: _parts,
}


# --- method and solver ---


def build_method(section: Struct, prox: Struct | None, population: int | None = None) -> Any:
    """The method that `[method]` and `[prox]` describe, for a population of a size."""
    settings = msgspec.structs.asdict(section)
    settings |= {name: VALUES[type(value)](value) for name, value in settings.items() if type(value) in VALUES}
    settings |= {
        name: _fresh_weight(value, settings, population)
        for name, value in settings.items()
        if isinstance(value, sections.Theorem)
    }
    if prox is not None:
        settings["solver"] = build_solver(prox)
    return METHODS[name_of(section)].build(**settings)


def build_solver(section: Struct) -> solvers.LocalSolver:
    """The local solver that `[prox]` describes."""
    settings = msgspec.structs.asdict(section)
    if "theta" in settings:
        theta, epsilon = settings.pop("theta"), settings.pop("epsilon")
        settings["stop"] = solvers.Relative(theta) if epsilon is None else solvers.Absolute(epsilon)
    return sections.SOLVERS[name_of(section)][0](**settings)


def build_codecs(section: schema.CodecsSection | None) -> Codecs:
    """The codecs that `[codecs]` describes."""
    if section is None:
        return NO_CODECS
    general = {"up": section.up, "down": section.down}
    return Codecs.of({name: text for name, text in (general | (section.fields or {})).items() if text is not None})


VALUES: Mapping[type, Callable[[Any], Any]] = {
    list: jnp.asarray,
    sections.PowerSetting: lambda value: schedules.Power(value.value, value.exponent, value.shift),
    sections.EpochsSetting: lambda value: Epochs(value.epochs, value.stragglers),
    sections.MomentumOptimizer: lambda value: _decayed(value.weight_decay, optax.trace(value.momentum)),
    sections.AdamOptimizer: lambda value: _decayed(value.weight_decay, optax.scale_by_adam()),
    **{
        section: lambda value, make=sections.SERVER_OPTIMIZERS[name][0]: make(**msgspec.structs.asdict(value))
        for name, section in sections.OPTIMIZERS.items()
    },
    **{
        section: lambda value, base=base: base(**msgspec.structs.asdict(value))
        for base, section in sections.BASES.items()
    },
}


def _decayed(weight_decay: float, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(weight_decay), optimizer) if weight_decay else optimizer


def _fresh_weight(value: sections.Theorem, settings: Mapping[str, Any], population: int | None) -> Any:
    """The fresh weight of the theorems at the method's own step size and cohort."""
    size = settings.get("cohort_size") or population or 1
    if population is not None:
        size = min(size, max(population - 1, 1))
    gamma = schedules.step_size_schedule(settings["step_size"])
    return schedules.FreshWeightOf(gamma, value.delta, schedules.effective_cohort(size, population))
