"""The sections `[algorithm]` and `[prox]`. Their settings follow from the constructors of methods and solvers."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import optax
from msgspec import Meta, Struct

from fedspam import solvers
from fedspam.app.config.schema import Positive, Whole
from fedspam.methods import METHODS


class PowerSetting(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="power"):
    """A value that decays like a power of the round: value * (k + 1 + shift)^-exponent."""

    value: Positive
    exponent: float
    shift: float = 0.0


class Theorem(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="theorem"):
    """The smallest fresh weight that the theorems allow for the method's step size and this similarity."""

    delta: Positive


class PlainBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="plain"):
    """Mime's server optimizer: plain steps."""


class MomentumBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="momentum"):
    """Mime's server optimizer: heavy-ball momentum."""

    momentum: float = 0.9


class AdamBase(Struct, frozen=True, kw_only=True, tag_field="name", tag="adam"):
    """Mime's server optimizer: Adam."""

    momentum: float = 0.9
    square_momentum: float = 0.99
    epsilon: float = 1e-3


Value = float | list[float] | PowerSetting
# the settings' types for arguments that the constructors annotate more loosely, by the argument's name
TYPES: Mapping[str, Any] = {
    "fresh_weight": Value | Theorem,
    "start": Whole | Literal["cohort", "client", "zero"],
    "base": PlainBase | MomentumBase | AdamBase | None,
}
PLAIN_TYPES: Mapping[Any, Any] = {int: Whole, float: float, bool: bool, str: str}
ABOUT: Mapping[str, str] = {
    "cohort_size": "clients per round",
    "step_size": "of a step or prox: a number, a list with one value per round, or a table",
    "fresh_weight": "weight of the fresh gradient in the estimate: a number, a list or a table, as step_size",
    "local_rate": "of a client's gradient steps: a number, a list or a table, as step_size",
    "momentum": "weight of the past in the server's step",
    "local_steps": "steps per client",
    "server_step_size": "how far the server goes along the mean of the clients' moves",
    "probability": "of a full round, or of communication",
    "start": "how the first estimate is made",
}


@functools.cache
def algorithm_section(name: str) -> type[Struct]:
    """The settings of a method: the arguments of its constructor, except the solver, which `[prox]` describes."""
    fields: list[Any] = []
    for argument in inspect.signature(METHODS[name].build).parameters.values():
        if argument.name == "solver":
            continue
        about = Meta(description=ABOUT.get(argument.name, f"see fedspam.methods.{name}"))
        field = argument.name, Annotated[_type(argument), about]
        default = _default(name, argument)
        fields.append(field if default is inspect.Parameter.empty else (*field, default))
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, tag_field="name", tag=name)


def takes_prox(name: str) -> bool:
    return "solver" in inspect.signature(METHODS[name].build).parameters


def _default(name: str, argument: inspect.Parameter) -> Any:
    """The constructor's default. A registry row that stands for an option of it, such as mime_adam, has its own."""
    if argument.default is inspect.Parameter.empty and types.NoneType in typing.get_args(argument.annotation):
        return None  # TOML cannot write None: leave the setting out instead
    method = METHODS[name]
    own = method.example.get(argument.name)
    if own is None or name == method.build.__name__:
        return argument.default
    if argument.name == "base":
        return base_section(own)
    return own if isinstance(own, str) and argument.name not in TYPES else argument.default


def base_section(base: Any) -> Struct:
    """Mime's server optimizer as a section."""
    settings = {field: getattr(base, field) for field in base.__dataclass_fields__}
    return msgspec.convert({"name": type(base).__name__.lower(), **settings}, TYPES["base"])


def _type(argument: inspect.Parameter) -> Any:
    """Plain types as the constructor annotates them; whatever else it takes is a number or a schedule."""
    if argument.name in TYPES:
        return TYPES[argument.name]
    if typing.get_origin(argument.annotation) is Literal:
        return argument.annotation
    parts = typing.get_args(argument.annotation) or (argument.annotation,)
    kinds = [part for part in parts if part is not types.NoneType]
    kind = PLAIN_TYPES.get(kinds[0], Value) if len(kinds) == 1 else Value
    return kind | None if len(kinds) < len(parts) or argument.default is None else kind


# --- [prox] ----------------------------------------------------------------------------------------------------------


class Solver(NamedTuple):
    """A local solver: its constructor, and the section with the constructor's arguments.

    The settings `tolerance` and `epsilon` together are the argument `stop`.
    """

    build: Callable[..., solvers.LocalSolver]
    section: type[Struct]


def _setting(kind: Any, default: Any, about: str) -> tuple[Any, Any]:
    return Annotated[kind, Meta(description=about)], default


def _solver(name: str, build: Callable[..., solvers.LocalSolver], **settings: tuple[Any, Any]) -> Solver:
    fields = [(key, kind, default) for key, (kind, default) in settings.items()]
    return Solver(build, msgspec.defstruct(name, fields, frozen=True, kw_only=True, tag_field="name", tag=name))


def _steps(most: int) -> tuple[Any, Any]:
    return _setting(Whole, most, "at most")


_TOLERANCE = Annotated[float, Meta(gt=0, le=1)]
_STOP = {
    "tolerance": _setting(_TOLERANCE, solvers.Relative().theta, "relative: gradient of phi over distance / step size"),
    "epsilon": _setting(Positive | None, None, "stop at a gradient of phi this small, instead of the tolerance"),
}


def _minibatch(default: bool) -> tuple[Any, Any]:
    return _setting(bool, default, "whether a step uses one minibatch instead of all rows")


def _adam(steps: int, learning_rate: float, minibatch: bool) -> solvers.LocalSolver:
    return solvers.Optax(optax.adam(learning_rate), steps, minibatch)


SOLVERS: Mapping[str, Solver] = {
    solver.section.__name__: solver
    for solver in (
        _solver("lbfgs", solvers.LBFGS, steps=_steps(200), **_STOP, memory=_setting(Whole, 10, "pairs remembered")),
        _solver(
            "newton", solvers.NewtonCG, steps=_steps(20), **_STOP,
            cg_steps=_setting(Whole, 50, "most products with the Hessian per step"),
        ),
        _solver(
            "gradient", solvers.GradientDescent, steps=_steps(10), minibatch=_minibatch(False),
            local_rate=_setting(Positive | None, None, "of a local step; default chosen by the client's smoothness"),
        ),
        _solver("backtracking", solvers.Backtracking, steps=_steps(50), **_STOP),
        _solver("accelerated", solvers.Accelerated, steps=_steps(50), **_STOP),
        _solver("adaptive", solvers.AdaptiveDescent, steps=_steps(50), **_STOP),
        _solver(
            "adam", _adam, steps=_steps(10), minibatch=_minibatch(True),
            learning_rate=_setting(Positive, 1e-3, "Adam's learning rate"),
        ),
        _solver("exact", solvers.Exact),
    )
}  # fmt: skip
PROX: Mapping[str, type[Struct]] = {name: solver.section for name, solver in SOLVERS.items()}
