"""Clients that run a Flower app as its authors wrote it: the server alone is of this package.

Such an app has a function ``train`` that receives the weights and returns the trained ones with the number of examples.
The server computes from them what a client of this package would have replied: it does the method's own work, on an
oracle that knows only the trained weights.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from jaxtyping import PyTree

from fedspam._internal import checks
from fedspam._internal.trees import Params, Scalar, struct
from fedspam.federation import perform, wire, works_of
from fedspam.federation.codecs import NO_CODECS
from fedspam.flower.server import evaluation
from fedspam.flower.server.exchange import SPARE, RejectedError
from fedspam.flower.server.request import MessageForm, Request
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Schema
from fedspam.methods import AutoSteps, auto, auto_steps
from fedspam.methods._local import OwnTraining

MU = "proximal-mu"  # how Flower's FedProx tells its clients 1 / gamma
HEADROOM = 256  # bytes for the header of one array of a reply
REMEDY = "run a method made with local_steps or a solver, over an app made with fedspam.flower.client_app"
TOLD = {"x", "step_size", "local_rate", "rate", "damping"}  # all that a method may tell its clients


def own_training(
    build: Callable[..., Any],
    cohort_size: int,
    *,
    examples_key: str = "num-examples",
    steps_key: str | None = None,
    **settings: Any,
) -> Any:
    """A method for Flower apps as they are: each client trains by the ``train`` function of its own app.

    The server sends the weights, and takes what Flower's own strategies take: the trained weights, and the number of
    examples in the metrics. For `FedspamStrategy` alone, since no simulation knows the training.

    Arguments:
        build: `fedavg`, `fedprox`, `fedavgm`, `fedadam`, `fedyogi`, `fedadagrad`, `fednova`, `fedexp`, `fedacg`, `auto`
            or another method whose clients send the move of their model alone.
        cohort_size: clients per round, unless the strategy has a `fraction_train`.
        examples_key: the metric that holds the number of examples, for methods with ``weighted=True``.
        steps_key: the metric that holds the number of local steps. `fednova` divides moves by it; without it, by the
            number of examples, which is the same if all clients make as many passes in minibatches of the same size.
        settings: the other arguments of `build`, without `local_steps` and `local_rate`.

    >>> from fedspam.methods import fedadam
    >>> own_training(fedadam, 10, server_step_size=0.01).name
    'fedadam'
    """
    own, name = OwnTraining(examples_key, steps_key), getattr(build, "__name__", repr(build))
    if build in (auto, auto_steps):
        checks.whole("cohort_size", cohort_size, 1)
        return AutoSteps(cohort_size=cohort_size, own=own, **settings)
    given = sorted({"local_steps", "local_rate", "optimizer", "solver"} & settings.keys())
    if given:
        raise ValueError(f"{given[0]} = {settings[given[0]]!r}: the clients train by code of their own; leave it out")
    known = inspect.signature(build).parameters
    if "local_steps" not in known:
        raise ValueError(
            f"{name} asks its clients for more than local training, which the train function of an app does not "
            f"give; {REMEDY}"
        )
    rate = {"local_rate": 1.0} if "local_rate" in known else {}  # which nobody uses
    return build(cohort_size, local_steps=own, **rate, **settings)


def method_name(method: Any) -> str:
    """The name that a method has in the table of methods; that of its class if it has none."""
    return getattr(method, "name", type(method).__name__)


def with_cohort(method: Any, count: int) -> Any:
    """The same method with another cohort size, also in its start."""
    size = getattr(method, "cohort_size", None)  # None: everyone
    if size is None:
        raise ValueError(
            f"fraction_train needs a method with a cohort size; {method_name(method)} uses one client or all: "
            "leave fraction_train out"
        )

    def resized(part: Any) -> Any:
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {field.name: resized(getattr(part, field.name)) for field in fields(part)}
        if changed.get("cohort_size") == size:
            changed["cohort_size"] = count
        return replace(part, **changed)

    return resized(method)


def training_of(part: Any) -> OwnTraining | None:
    """The training of a method that `own_training` has made; None for all others."""
    if isinstance(part, OwnTraining):
        return part
    if not is_dataclass(part) or isinstance(part, type):
        return None
    found = (training_of(getattr(part, each.name)) for each in fields(part))
    return next((training for training in found if training is not None), None)


@struct
class TrainedClient:
    """The oracle of a client that has trained."""

    model: Params
    weight: Scalar  # its number of examples
    steps: Scalar

    def trained(self, x: Params) -> Params:
        return self.model

    def __call__(self, params: Params, key: Any = None) -> Scalar:
        raise ValueError(f"the method asks for losses or gradients, which an app does not give; {REMEDY}")


@dataclass
class PlainApps:
    """What is sent to Flower apps as they are, and how their replies are read.

    Arguments:
        method: the method.
        training: its training.
        initial: the arrays to start from: the names, their order and the dtypes that the app knows. Arrays that are not
            floats, such as the counters of batch norm, stay as they are there.
        like: the parameters of the method, None for a dictionary by name.
    """

    method: Any
    training: OwnTraining
    initial: ArrayRecord
    like: Params | None
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict, init=False)  # of the replies of this round

    def __post_init__(self) -> None:
        self._floats = ArrayRecord({name: array for name, array in self.initial.items() if _is_float(array)})
        sizes = (8 * math.prod(array.shape) + HEADROOM for array in self.initial.values())
        self.most = SPARE + sum(sizes)  # bytes of a reply

    def start(self) -> Params:
        """The parameters of the method."""
        return arrays.to_params(self._floats, self.like)

    def pack(self, params: Params) -> ArrayRecord:
        """The parameters as the app has them."""
        found = arrays.to_arrays(params)
        return ArrayRecord({
            name: _in_dtype_of(array, found[name]) if name in found else array for name, array in self.initial.items()
        })  # fmt: skip

    def check(self, schema: Schema) -> None:
        """Raise an error if the method asks its clients for more than their trained weights."""
        plan = schema.plan
        told = set(plan.round[0].message) if len(plan.round) == 1 else set()
        if plan.start or schema.stateful or "x" not in told or told - TOLD:
            more = " and ".join(sorted(told - TOLD)) or "what they did in earlier rounds or exchanges"
            raise ValueError(
                f"{method_name(self.method)} needs clients that know {more}, which the train function of an app does "
                f"not; {REMEDY}"
            )

    def record(self, request: Request, form: MessageForm) -> RecordDict:
        """The content of the messages of an exchange, the same for all clients."""
        config = {**form.config, "server-round": request.round}
        if "step_size" in request.arrived:  # of a prox, which Flower's apps know by this name
            config[MU] = 1 / float(request.arrived["step_size"])
        return RecordDict({form.arrays_key: self.pack(request.arrived["x"]), form.config_key: ConfigRecord(config)})

    def reply(self, id: int, request: Request, reply: Message) -> PyTree:
        """What the method's own work replies for a client with these trained weights."""
        model, metrics = self._weights(reply), _only(reply, "MetricRecord", reply.content.metric_records)
        examples = self._number(metrics, self.training.examples_key)
        steps = examples if self.training.steps_key is None else self._number(metrics, self.training.steps_key)
        if steps == 0:
            raise RejectedError("the client has trained on nothing: it reports 0 examples or steps")
        dtype = jax.tree.leaves(model)[0].dtype
        oracle = TrainedClient(model, jnp.asarray(examples, dtype), jnp.asarray(steps, dtype))
        message = {name: jax.tree.map(jnp.asarray, value) for name, value in request.arrived.items()}
        found = _performed(self.method, oracle, request.key, message, name=request.exchange.work)
        if len(metrics) > evaluation.MOST:
            raise RejectedError(f"it sends {len(metrics)} metrics, at most {evaluation.MOST} are taken")
        self.metrics[id] = {name: value for name, value in metrics.items() if np.isfinite(value).all()}
        return wire.cast(found, request.exchange.reply)

    def means(self) -> dict[str, Any]:
        """The means of the metrics that the clients of this round have reported."""
        found = [metrics for _, metrics in sorted(self.metrics.items())]
        means = evaluation.weighted_means(found, self.training.examples_key) if found else None
        return {} if means is None else dict(means)

    def _weights(self, reply: Message) -> Params:
        found = _only(reply, "ArrayRecord", reply.content.array_records)
        shapes = {name: tuple(array.shape) for name, array in found.items()}
        due = {name: tuple(array.shape) for name, array in self.initial.items()}
        if shapes != due:
            name = next(name for name in sorted(shapes.keys() | due.keys()) if shapes.get(name) != due.get(name))
            raise RejectedError(
                f"the reply has the array {name!r} in the shape {shapes.get(name)}, the message in {due.get(name)}"
            )
        if any(not _is_float(found[name]) for name in self._floats):
            raise RejectedError("the reply holds whole numbers where the message has floats")
        if not all(np.isfinite(found[name].numpy()).all() for name in self._floats):
            raise RejectedError("the reply holds NaN or infinity")
        trained = {name: _in_dtype_of(first, found[name]) for name, first in self._floats.items()}
        return arrays.to_params(ArrayRecord(trained), self.like)

    @staticmethod
    def _number(metrics: Mapping[str, Any], name: str) -> float:
        value = metrics.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise RejectedError(f"the metric {name!r} is {value!r}; it must be a number of at least 0")
        return float(value)


@functools.partial(jax.jit, static_argnames="name")
def _performed(method: Any, oracle: TrainedClient, key: Any, message: Mapping[str, Any], *, name: str) -> PyTree:
    return perform(works_of(method)[name], oracle, key, (), message, NO_CODECS)[0]


def _only(reply: Message, kind: str, records: Mapping[str, Any]) -> Mapping[str, Any]:
    found = list(records.values())
    if len(found) != 1:
        raise RejectedError(f"the reply has {len(found)} records of kind {kind}; it must have one")
    return found[0]


def _is_float(array: Array) -> bool:
    return jnp.issubdtype(jnp.dtype(array.dtype), jnp.floating)


def _in_dtype_of(first: Array, array: Array) -> Array:
    if array.dtype == first.dtype:
        return array
    return Array(np.asarray(array.numpy(), jnp.dtype(first.dtype)))
