"""From a configuration to what `simulate` takes: clients, a method, a start and a probe."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal.trees import Params
from fedspam.app.compare import problems
from fedspam.app.config import Config, ConfigError, methods, schema
from fedspam.app.experiment.data import examples
from fedspam.app.experiment.model import learner
from fedspam.app.experiment.probes import ProblemLook, QuadraticProbe, evaluation, look_at
from fedspam.clients import Population, Ragged
from fedspam.problems import Quadratics, quadratics, ridge
from fedspam.simulation.stopping import Target

RISING = ("accuracy",)  # metrics of which more is better
FIRST = ("loss", "gradient", "accuracy")  # those that are told first


@dataclass(frozen=True)
class Experiment:
    """What a configuration asks for, ready to run."""

    config: Config
    method: Any
    population: Population
    start: Params
    probe: Any
    metrics: tuple[str, ...]  # what the probe tells

    @property
    def target(self) -> Target | None:
        """What is to be reached: an accuracy at least, anything else at most."""
        asked = self.config.evaluate
        if asked.target is None:
            return None
        metric = asked.metric or ("accuracy" if "accuracy" in self.metrics else "loss")
        return Target(metric, **{"at_least" if metric in RISING else "at_most": asked.target})


def make(config: Config) -> Experiment:
    """Read the data and build what a configuration asks for; a `ConfigError` names the setting that is wrong."""
    population, start, probe = _world(config)
    cohort = getattr(config.algorithm, "cohort", None)
    if cohort is not None and population.size is not None and cohort > population.size:
        raise ConfigError(
            f"algorithm.cohort_size = {cohort} is more than the {population.size} clients that there are; "
            f"ask for at most {population.size}"
        )
    try:
        method = methods.method(config.algorithm, config.prox, population.size)
    except ValueError as error:
        raise ConfigError(f"algorithm: {error}") from None
    if config.prox is not None and methods.name_of(config.prox) == "exact" and not isinstance(population, Quadratics):
        raise ConfigError("prox.name = 'exact' needs quadratic clients; take 'lbfgs' or 'newton'")
    seen = jax.eval_shape(lambda probe, start: probe(start), probe, start)
    metrics = tuple(sorted(seen, key=lambda name: (name not in FIRST, FIRST.index(name) if name in FIRST else 0, name)))
    asked = config.evaluate.metric
    if asked is not None and asked not in metrics:
        raise ConfigError(
            f"evaluate.metric = {asked!r} is not looked at here, {', '.join(metrics)} are; an accuracy needs classes, "
            "test rows (data.test) and a model that guesses (predict)"
        )
    return Experiment(config, method, population, start, probe, metrics)


def _world(config: Config) -> tuple[Population, Params, Any]:
    """Clients, a start and a probe."""
    data = config.data
    if isinstance(data, schema.QuadraticsSection):
        clients = quadratics(
            data.seed, data.clients, data.dimension,
            delta=data.delta, condition=data.condition, curvature=data.curvature, noise=data.noise,
        )  # fmt: skip
        return _quadratic(clients, jnp.zeros(data.dimension))
    if isinstance(data, schema.RidgeSection):
        return _quadratic(
            *ridge(data.seed, data.clients, data.dimension, regularization=data.regularization, scale=data.scale)
        )
    if isinstance(data, schema.ProblemSection):
        try:
            problem = problems.load(data.name, data.folder)
        except (OSError, ValueError) as error:
            raise ConfigError(f"data: {error}") from None
        if isinstance(problem.population, Quadratics):
            return _quadratic(problem.population, problem.start)
        assert isinstance(problem.population, Ragged)
        clients, start = problem.population, problem.start
        return clients, start, ProblemLook(look_at(clients, start, None), problem.look)
    found = examples(data, config.clients)
    made = learner(config.model, found, seed=config.run.seed, precision=config.run.precision)
    clients = found.train.population(made.loss, batch=config.clients.batch, weighted=config.clients.weighted)
    return clients, made.start, look_at(clients, made.start, evaluation(made, found))


def _quadratic(clients: Quadratics, start: Any) -> tuple[Population, Params, Any]:
    start = jnp.asarray(start, clients.hessians.dtype)
    unit = jnp.linalg.norm(clients.gradient(start))
    return clients, start, QuadraticProbe(clients, unit)
