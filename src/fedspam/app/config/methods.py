"""The sections `[method]` and `[prox]`. Their settings follow from the constructors of methods and solvers."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec
import optax
from msgspec import Meta, Struct

from fedspam import solvers
from fedspam.app.config.schema import Natural, Positive, Whole
from fedspam.methods import METHODS, Adam, Epochs, Momentum, Plain


class PowerSetting(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="power"):
    """A value that decays like a power of the round: value * (k + 1 + shift)^-exponent."""

    value: Positive
    exponent: float
    shift: float = 0.0


class Theorem(Struct, frozen=True, kw_only=True, tag_field="schedule", tag="theorem"):
    """The smallest fresh weight that the theorems allow for the method's step size and this similarity."""

    delta: Positive


class EpochsSetting(Struct, frozen=True, kw_only=True):
    """Passes over a client's rows in place of a number of steps."""

    epochs: Whole | Positive
    stragglers: Annotated[float, Meta(ge=0, le=1)] = 0.0


class MomentumOptimizer(Struct, frozen=True, kw_only=True, tag_field="name", tag="momentum"):
    """SGD with momentum and weight decay on the clients, as PyTorch has it."""

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0


class AdamOptimizer(Struct, frozen=True, kw_only=True, tag_field="name", tag="adam"):
    """Adam on the clients, begun afresh in every round."""

    weight_decay: Annotated[float, Meta(ge=0)] = 0.0


def _tagged(name: str, fields: Iterable[Any]) -> type[Struct]:
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, tag_field="name", tag=name)


def _described(kind: Any, about: str) -> Any:
    return Annotated[kind, Meta(description=about)]


# Mime's server optimizers, each with its settings
BASES: Mapping[type, type[Struct]] = {
    base: _tagged(base.__name__.lower(), [(each.name, float, each.default) for each in dataclasses.fields(base)])
    for base in (Plain, Momentum, Adam)
}
# Optax's optimizers for the server of `fedopt`, and the defaults of their options
SERVER_OPTIMIZERS: Mapping[str, tuple[Callable[..., optax.GradientTransformation], Mapping[str, Any]]] = {
    "adagrad": (optax.adagrad, {"initial_accumulator_value": 0.1, "eps": 1e-7}),
    "adam": (optax.adam, {"b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "lion": (optax.lion, {"b1": 0.9, "b2": 0.99, "weight_decay": 0.0}),
    "sgd": (optax.sgd, {"momentum": 0.0, "nesterov": False}),
    "yogi": (optax.yogi, {"b1": 0.9, "b2": 0.999, "eps": 1e-3}),
}
OPTIMIZERS: Mapping[str, type[Struct]] = {
    name: _tagged(name, [("learning_rate", Positive), *((key, type(value), value) for key, value in defaults.items())])
    for name, (_, defaults) in SERVER_OPTIMIZERS.items()
}
Value = float | list[float] | PowerSetting
# the settings' types for arguments that the constructors annotate more loosely, by the argument's name
TYPES: Mapping[str, Any] = {
    "fresh_weight": Value | Theorem,
    "start": Whole | Literal["cohort", "client", "zero"],
    "base": Union[*BASES.values(), None],
    "optimizer": MomentumOptimizer | AdamOptimizer | None,
    "server_optimizer": Union[Literal[*SERVER_OPTIMIZERS], *OPTIMIZERS.values()],
    "proxy": Natural,
}
PLAIN_TYPES: Mapping[Any, Any] = {int: Whole, float: float, bool: bool, str: str}
ABOUT: Mapping[str, str] = {
    "cohort_size": "clients per round",
    "step_size": "of a step or prox: a number, a list with one value per round, or a table",
    "fresh_weight": "weight of the fresh gradient in the estimate: a number, a list or a table, as step_size",
    "local_rate": "of a client's gradient steps: a number, a list or a table, as step_size",
    "momentum": "weight of the past in the server's step",
    "local_steps": "steps per client; {epochs = 2} passes over its rows, where the method can",
    "optimizer": "of the clients' steps; none is plain SGD",
    "server_optimizer": "of the server: a name, or a table with its rate and options",
    "server_step_size": "how far the server goes along the mean of the clients' moves",
    "proxy": "id of the client that is trusted with the prox",
    "probability": "of a full round, or of communication",
    "start": "how the first estimate is made",
}


@functools.cache
def method_section(name: str) -> type[Struct]:
    """The settings of a method: the arguments of its constructor, but for the solver (see `[prox]`)."""
    fields: list[Any] = []
    for argument in inspect.signature(METHODS[name].build).parameters.values():
        if argument.name == "solver":
            continue
        about = ABOUT.get(argument.name, f"see fedspam.methods.{name}")
        field = argument.name, _described(_type(argument), about)
        default = _default(name, argument)
        fields.append(field if default is inspect.Parameter.empty else (*field, default))
    return _tagged(name, fields)


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
    return BASES[type(base)](**{field: getattr(base, field) for field in base.__dataclass_fields__})


def _type(argument: inspect.Parameter) -> Any:
    """Plain types as the constructor annotates them; whatever else it takes is a number or a schedule."""
    if argument.name in TYPES:
        return TYPES[argument.name]
    if typing.get_origin(argument.annotation) is Literal:
        return argument.annotation
    parts = typing.get_args(argument.annotation) or (argument.annotation,)
    kinds = [part for part in parts if part not in (types.NoneType, Epochs)]
    kind = PLAIN_TYPES.get(kinds[0], Value) if len(kinds) == 1 else Value
    kind = kind | EpochsSetting if Epochs in parts else kind
    return kind | None if types.NoneType in parts or argument.default is None else kind


# --- [prox] ----------------------------------------------------------------------------------------------------------


# the settings `theta` and `epsilon` together are the solvers' argument `stop`
SETTINGS: Mapping[str, Any] = {
    "steps": _described(Whole, "at most"),
    "theta": _described(Annotated[float, Meta(gt=0, le=1)], "stop at this gradient of phi over distance / step size"),
    "epsilon": _described(Positive | None, "stop at a gradient of phi this small, instead of theta"),
    "memory": _described(Whole, "pairs remembered"),
    "cg_steps": _described(Whole, "most products with the Hessian per step"),
    "minibatch": _described(bool, "whether a step uses one minibatch instead of all rows"),
    "local_rate": _described(Positive | None, "of a local step; default chosen by the client's smoothness"),
    "learning_rate": _described(Positive, "Adam's learning rate"),
}
STOP: Mapping[str, Any] = {"theta": solvers.Relative().theta, "epsilon": None}


# the local solvers: their constructors, and the defaults of their settings
SOLVERS: Mapping[str, tuple[Callable[..., solvers.LocalSolver], Mapping[str, Any]]] = {
    "lbfgs": (solvers.LBFGS, {"steps": 200, **STOP, "memory": 10}),
    "newton": (solvers.NewtonCG, {"steps": 20, **STOP, "cg_steps": 50}),
    "gradient": (solvers.GradientDescent, {"steps": 10, "minibatch": False, "local_rate": None}),
    "backtracking": (solvers.Backtracking, {"steps": 50, **STOP}),
    "accelerated": (solvers.Accelerated, {"steps": 50, **STOP}),
    "adaptive": (solvers.AdaptiveDescent, {"steps": 50, **STOP}),
    "adam": (
        lambda steps, learning_rate, minibatch: solvers.Optax(optax.adam(learning_rate), steps, minibatch),
        {"steps": 10, "minibatch": True, "learning_rate": 1e-3},
    ),
    "exact": (solvers.Exact, {}),
}
PROX: Mapping[str, type[Struct]] = {
    name: _tagged(name, [(key, SETTINGS[key], default) for key, default in defaults.items()])
    for name, (_, defaults) in SOLVERS.items()
}
