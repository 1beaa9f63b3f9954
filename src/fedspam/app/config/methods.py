"""The sections `[algorithm]` and `[prox]`, made from what methods and solvers take, and methods made from them."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import msgspec
import optax
from msgspec import Meta, Struct

from fedspam import solvers
from fedspam.app.config.schema import Positive, Whole
from fedspam.methods import METHODS, Adam, Momentum, Plain, schedules


class PowerSetting(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="power"):
    """A value that decays like a power of the round: value * (k + 1 + shift)^-exponent."""

    value: Positive
    exponent: float
    shift: float = 0.0


class Theorem(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="theorem"):
    """The fresh weight that the theorems ask for at the method's step size and this similarity."""

    delta: Positive


class PlainBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="plain"):
    """Mime's server optimiser: plain steps."""


class MomentumBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="momentum"):
    """Mime's server optimiser: heavy-ball momentum."""

    momentum: float = 0.9


class AdamBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="adam"):
    """Mime's server optimiser: Adam."""

    momentum: float = 0.9
    square_momentum: float = 0.99
    epsilon: float = 1e-3


Value = float | list[float] | PowerSetting
# the types in a file of arguments that take objects in Python, by the argument's name
TYPES: Mapping[str, Any] = {
    "fresh_weight": float | list[float] | PowerSetting | Theorem,
    "start": Whole | Literal["cohort", "client", "zero"],
    "base": PlainBase | MomentumBase | AdamBase | None,
}
ABOUT: Mapping[str, str] = {
    "cohort_size": "clients asked in a round",
    "step_size": "of a step or prox: a number, a list with one a round, or a table",
    "fresh_weight": "weight of the fresh gradient in the estimate: likewise",
    "local_rate": "of a client's gradient steps: likewise",
    "momentum": "weight of the past in the server's step",
    "local_steps": "steps a client takes",
    "server_step_size": "how far the server goes along the mean of the clients' moves",
    "probability": "of a full round, or of communication",
    "start": "how the first estimate is made",
}


@functools.cache
def algorithm_section(name: str) -> type[Struct]:
    """The settings of a method: the arguments of its constructor, less the solver, which `[prox]` tells."""
    fields: list[Any] = []
    method = METHODS[name]
    for argument in inspect.signature(method.build).parameters.values():
        if argument.name == "solver":
            continue
        key = argument.name
        kind = Annotated[_kind(argument), Meta(description=ABOUT.get(key, f"see fedspam.methods.{name}"))]
        default = _default(name, argument)
        fields.append((key, kind) if default is inspect.Parameter.empty else (key, kind, default))
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, tag_field="name", tag=name)


def takes_prox(name: str) -> bool:
    return "solver" in inspect.signature(METHODS[name].build).parameters


def _default(name: str, argument: inspect.Parameter) -> Any:
    """That of the constructor; rows of the registry that differ from it in an option, as mime_adam, have their own."""
    if argument.default is inspect.Parameter.empty and types.NoneType in typing.get_args(argument.annotation):
        return None  # TOML cannot write None: leave the setting out instead
    method = METHODS[name]
    own = method.example.get(argument.name)
    if own is None or name == method.build.__name__:
        return argument.default
    return base_section(own) if argument.name == "base" else own if argument.annotation is str else argument.default


def base_section(base: Any) -> Struct:
    """Mime's server optimiser as a section has it."""
    settings = {field: getattr(base, field) for field in base.__dataclass_fields__}
    return msgspec.convert({"name": type(base).__name__.lower(), **settings}, TYPES["base"])


def _kind(argument: inspect.Parameter) -> Any:
    if argument.name in TYPES:
        return TYPES[argument.name]
    kind = argument.annotation
    if kind in (schedules.ScheduleLike, schedules.ScheduleLike | None):
        return Value if kind == schedules.ScheduleLike else Value | None
    bare = [part for part in typing.get_args(kind) if part is not types.NoneType] or [kind]
    whole: Any = Whole if bare[0] is int else bare[0]
    return whole | None if types.NoneType in typing.get_args(kind) else whole


# --- [prox] ----------------------------------------------------------------------------------------------------------

Tolerance = Annotated[float, Meta(gt=0, le=1, description="relative: gradient of phi over distance / step size")]
Epsilon = Annotated[float, Meta(gt=0)] | None
STEPS = Annotated[Whole, Meta(description="at most")]


def _solver(name: str, *fields: tuple[str, Any, Any]) -> type[Struct]:
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, tag_field="name", tag=name)


def _stopping(steps: int) -> tuple[tuple[str, Any, Any], ...]:
    epsilon = Annotated[Epsilon, Meta(description="stop at a gradient of phi this small, instead of the tolerance")]
    return (("steps", STEPS, steps), ("tolerance", Tolerance, solvers.Relative().theta), ("epsilon", epsilon, None))


_SIZE = Annotated[Positive | None, Meta(description="of a local step; else chosen from the client's smoothness")]
_BATCH = Annotated[bool, Meta(description="whether a step sees one minibatch instead of all rows")]
_RATE = Annotated[Positive, Meta(description="Adam's learning rate")]
_CG = Annotated[Whole, Meta(description="products with the Hessian in a step, at most")]
_PAIRS = Annotated[Whole, Meta(description="pairs remembered")]

PROX: Mapping[str, type[Struct]] = {
    "lbfgs": _solver("lbfgs", *_stopping(200), ("memory", _PAIRS, 10)),
    "newton": _solver("newton", *_stopping(20), ("cg_steps", _CG, 50)),
    "gradient": _solver("gradient", ("steps", STEPS, 10), ("local_rate", _SIZE, None), ("minibatch", _BATCH, False)),
    "backtracking": _solver("backtracking", *_stopping(50)),
    "accelerated": _solver("accelerated", *_stopping(50)),
    "adaptive": _solver("adaptive", *_stopping(50)),
    "adam": _solver("adam", ("steps", STEPS, 10), ("learning_rate", _RATE, 1e-3), ("minibatch", _BATCH, True)),
    "exact": _solver("exact"),
}

_BUILD: Mapping[str, Callable[..., solvers.LocalSolver]] = {
    "lbfgs": solvers.LBFGS,
    "newton": solvers.NewtonCG,
    "gradient": solvers.GradientDescent,
    "backtracking": solvers.Backtracking,
    "accelerated": solvers.Accelerated,
    "adaptive": solvers.AdaptiveDescent,
    "adam": lambda steps, learning_rate, minibatch: solvers.Optax(optax.adam(learning_rate), steps, minibatch),
    "exact": solvers.Exact,
}


def solver(section: Struct) -> solvers.LocalSolver:
    """The local solver that `[prox]` asks for."""
    settings = msgspec.structs.asdict(section)
    if "tolerance" in settings:
        theta, epsilon = settings.pop("tolerance"), settings.pop("epsilon")
        settings["stop"] = solvers.Relative(theta) if epsilon is None else solvers.Absolute(epsilon)
    return _BUILD[name_of(section)](**settings)


def name_of(section: Struct) -> str:
    return str(type(section).__struct_config__.tag)


def method(section: Struct, prox_section: Struct | None, population: int | None = None) -> Any:
    """The method that `[algorithm]` and `[prox]` ask for, on a population of that size."""
    settings = msgspec.structs.asdict(section)
    name = name_of(section)
    cohort = settings.get("cohort_size") or population or 1
    step_size = _schedule(settings.get("step_size"))
    made = {key: _schedule(value, step_size, cohort, population) for key, value in settings.items()}
    if prox_section is not None:
        made["solver"] = solver(prox_section)
    return METHODS[name].build(**made)


def _schedule(value: Any, step_size: Any = None, cohort: int = 1, population: int | None = None) -> Any:
    if isinstance(value, PowerSetting):
        return schedules.Power(value.value, value.exponent, value.shift)
    if isinstance(value, Theorem):
        gamma = schedules.step_size_schedule(step_size)
        size = cohort if population is None else min(cohort, population - 1 if population > 1 else 1)
        return schedules.FreshWeightOf(gamma, value.delta, schedules.effective_cohort(size, population))
    if isinstance(value, list):
        return jnp.asarray(value)
    if isinstance(value, PlainBase):
        return Plain()
    if isinstance(value, MomentumBase):
        return Momentum(value.momentum)
    if isinstance(value, AdamBase):
        return Adam(value.momentum, value.square_momentum, value.epsilon)
    return value
