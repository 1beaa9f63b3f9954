"""The client's side: a ``ClientApp`` made from an oracle. It does the works of the method itself, in this very code."""

import functools
import json
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from jaxtyping import PyTree

from fedspam import __version__
from fedspam._internal.trees import Params
from fedspam.clients import Loss, Oracle, Population, Ragged, RaggedOracle
from fedspam.federation import WORK_NAMES, terms_of, wire, works_of
from fedspam.federation.ledger import ASK, Exchange
from fedspam.flower.client.state import FOLDER, Held, Memory
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Schema

if TYPE_CHECKING:
    from fedspam.flower.privacy.secure_client import SecureSum

__all__ = ["client_app", "clients_of", "clients_with"]


class RefusedError(ValueError):
    """What this client will not do; the server is told why."""


def clients_of(population: Population) -> Callable[[Context], Oracle]:
    """The oracles of a whole population, for nodes that hold all data: simulations and tests."""

    def oracle(context: Context) -> Oracle:
        client, size = partition_of(context), population.size
        if size is not None and client >= size:
            raise RefusedError(f"partition-id = {client} must be below the number of clients, {size}; count from 0")
        return population.client(jnp.uint32(client))

    return oracle


def clients_with(
    loss: Loss, data: Callable[[int], PyTree], *, batch: int | None = None
) -> Callable[[Context], RaggedOracle]:
    """The oracles of nodes that each hold the rows of one client.

    A node has the loss, the gradients and the weight of the same client in ``Ragged.of([data(0), data(1), ...], loss)``,
    so that the federation trains the model that `fedspam.simulate` trains.

    Arguments:
        loss: (params, rows) -> one loss per row, defined at the top level of a module; ``model.loss`` for a model of
            `fedspam.models`, which Flax NNX, Equinox and PyTorch modules become by its adapters.
        data: partition id -> the rows of that client, loaded once per process.
        batch: rows in a minibatch; None for all rows at every call.
    """
    return lambda context: Ragged.of([rows_of(data, partition_of(context))], loss, batch=batch).client(jnp.uint32(0))


@functools.cache
def rows_of(data: Callable[[int], Any], client: int) -> Any:
    """The rows of a client, loaded once per process."""
    return data(client)


def client_app(
    oracle: Callable[[Context], Oracle],
    algorithm: Any,
    params: Any,
    *,
    metrics: Callable[[Oracle, Params], dict[str, float]] | None = None,
    mods: list[Mod] | None = None,
    secure: "SecureSum | None" = None,
) -> ClientApp:
    """A ClientApp that answers the server of `FedspamStrategy`.

    Arguments:
        oracle: context -> the loss of this node's client, such as ``DataOracle(data, loss=loss)``: a pytree that is
            called with parameters. Data that takes long to load is worth a ``functools.cache``.
        algorithm: the method, as the server has it; or context -> the method, to read it from ``run_config``.
        params: parameters of the right names, shapes and dtypes; or context -> such.
        metrics: (oracle, params) -> numbers, answered to Flower's ``evaluate`` messages besides the loss.
        mods: Flower's mods around every message.
        secure: sums under masks, as the server has it: see `fedspam.flower.privacy.secure_client.SecureSum`.

    >>> import jax.numpy as jnp
    >>> from fedspam import spam_pp
    >>> from fedspam.clients import DataOracle
    >>> def loss(x, centre): return 0.5 * jnp.sum((x - centre) ** 2)
    >>> def oracle(context): return DataOracle(jnp.full(3, context.node_config["partition-id"]), loss=loss)
    >>> app = client_app(oracle, spam_pp(2, step_size=0.5, fresh_weight=0.2), jnp.zeros(3))
    """
    app = ClientApp(mods=mods if secure is None else [secure.mod(), *(mods or [])])
    if secure is not None:
        secure.listen(app)
    setting = functools.partial(_setting, algorithm, params)

    @app.query("whoami")
    def whoami(message: Message, context: Context) -> Message:
        return Message(RecordDict({arrays.HEADER: _introduce(message, context, setting)}), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        try:
            content = _answer(message, context, oracle, *setting(context))
        except RefusedError as refusal:
            content = RecordDict({arrays.HEADER: ConfigRecord({"refused": str(refusal)})})
        return Message(content, reply_to=message)

    for name in _work_names(algorithm):
        app.train(name)(train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        like, found = setting(context)[1], oracle(context)
        point = arrays.to_params(next(iter(message.content.array_records.values())), like)
        numbers = {"loss": float(_loss(found, point)), **(metrics(found, point) if metrics is not None else {})}
        numbers["num-examples"] = float(found.weight)
        return Message(RecordDict({"metrics": MetricRecord(dict(numbers))}), reply_to=message)

    return app


@functools.partial(jax.jit, static_argnames="name")
def perform(
    algorithm: Any, oracle: Oracle, client: Any, key: Any, memory: PyTree, message: dict[str, Any], *, name: str
) -> tuple[Any, PyTree]:
    """A client's work. It stands here, not in a closure: where apps are unpickled for every message, as under Ray, it
    is still compiled once a process."""
    work, own_key = works_of(algorithm)[name], jax.random.fold_in(key, client)
    if terms_of(work).stateful:
        return work(oracle, own_key, memory, **message)
    return work(oracle, own_key, **message), memory


@jax.jit
def _loss(oracle: Oracle, params: Params) -> Any:
    return oracle(params)


def _setting(algorithm: Any, params: Any, context: Context) -> tuple[Any, Params]:
    method, like = (value(context) if _is_function(value) else value for value in (algorithm, params))
    return method, jax.tree.map(jnp.asarray, like)


def _is_function(value: Any) -> bool:
    """Whether a value is to be made from the context; that it can be called says nothing: models can be."""
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial)


def _work_names(algorithm: Any) -> list[str]:
    """The names of the messages to listen to; all that there are where it is not known which method it will be."""
    if not _is_function(algorithm):
        return sorted(works_of(algorithm))
    import fedspam.methods  # noqa: F401 its methods name their works; those of one's own are imported with them

    return sorted(WORK_NAMES)


def partition_of(context: Context) -> int:
    """The number of the client that this node is."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or isinstance(found, bool):
        raise RefusedError(
            f"its node-config has partition-id = {found!r}; start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3', counted from 0"
        )
    return found


def _introduce(message: Message, context: Context, setting: Callable[[Context], tuple[Any, Params]]) -> ConfigRecord:
    asked = message.content.config_records[arrays.HEADER]
    try:
        client, schema = partition_of(context), Schema.of(*setting(context))
        if asked["schema"] != schema.digest:
            differences = schema.differences(json.loads(str(asked["description"])))
            raise RefusedError(
                f"server and client {client} do not run the same: {'; '.join(differences[:4])} (the server's was, the "
                "client's is). Give both the same method, solver and parameters"
            )
    except RefusedError as refusal:
        return ConfigRecord({"refused": str(refusal)})
    count = context.node_config.get("num-partitions", 0)
    facts = {"partition-id": client, "num-partitions": int(count), "fedspam": __version__, "schema": schema.digest}
    return ConfigRecord(facts)


def _answer(
    message: Message, context: Context, oracle: Callable[[Context], Oracle], algorithm: Any, params: Params
) -> RecordDict:
    head, schema, client = (
        message.content.config_records.get(arrays.HEADER),
        Schema.of(algorithm, params),
        partition_of(context),
    )
    if head is None or head.get("schema") != schema.digest:
        raise RefusedError(f"client {client} knows {schema.digest}, the message is of another method, solver or model")
    phase, label = str(head.get("phase")), str(head.get("exchange"))
    exchange = schema.exchange(phase, label)
    if exchange is None or message.metadata.message_type != f"train.{exchange.work}":
        raise RefusedError(f"the method has no exchange {label!r} of type {message.metadata.message_type!r}")
    fields, round, key = _read(message, head, exchange, client, Held(context), schema.kept(phase))

    memory = Memory(context, algorithm.client_state(params), f"{schema.digest} {head['run']}", client)
    version, settled, becomes = (int(str(head[name])) for name in ("memory", "settled", "becomes"))
    before = memory.at(version)
    if before is None:
        raise RefusedError(
            f"client {client} has lost what it remembered after exchange {version}, and the method cannot do without; "
            f"to have memories outlast a run, give its SuperNode --node-config '{FOLDER}=\"/some/folder\"'"
        )
    reply, after = perform(algorithm, oracle(context), np.uint32(client), key, before, fields, name=exchange.work)
    if exchange.work in schema.stateful:
        memory.keep(after, becomes, {version, settled})
    answer = {"@client": np.uint32(client), "@round": np.uint32(round), "reply": cast(reply, exchange.reply)}
    return RecordDict({
        "arrays": arrays.enclose(wire.encode(answer)),
        arrays.HEADER: ConfigRecord({"schema": schema.digest, "exchange": label}),
    })  # fmt: skip


def _read(
    message: Message, head: ConfigRecord, exchange: Exchange, client: int, held: Held, kept: frozenset[str]
) -> tuple[dict[str, Any], int, Any]:
    """All fields that the work is called with, the round, and the key."""
    whole = bool(head.get("whole"))
    try:
        came = wire.decode(arrays.enclosed(message.content), {**ASK, **(exchange.message if whole else exchange.sent)})
    except ValueError as error:
        raise RefusedError(f"client {client} cannot read the message: {error}") from None
    if int(came.pop("@client")) != client:
        raise RefusedError(f"client {client} got a message for another client")
    round, key = int(came.pop("@round")), jax.random.wrap_key_data(jnp.asarray(came.pop("@key")))
    here = f"{head['run']} {round}"
    missing = held.of(here, {name: exchange.message[name] for name in exchange.message if name not in came})
    if missing is None:
        raise RefusedError(
            f"client {client} was not sent {sorted(exchange.message.keys() - came.keys())} in this round"
        )
    held.keep(here, {name: value for name, value in came.items() if name in kept})
    return {**came, **missing}, round, key


def cast(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, shape: np.asarray(leaf, shape.dtype), tree, like)
