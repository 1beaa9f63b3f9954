"""The client: a ``ClientApp`` made from an oracle. It calls the works of the method itself, as the simulator does."""

import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from jaxtyping import PyTree

from fedspam._internal.trees import Params
from fedspam.clients import BatchOracle, Loss, Oracle, Population, Ragged, RaggedOracle
from fedspam.federation import WORK_NAMES, perform as perform_work, wire, works_of
from fedspam.federation.codecs import NO_CODECS, Codecs, CodecsLike
from fedspam.federation.codecs.fields import signed, verified
from fedspam.federation.ledger import Exchange
from fedspam.flower.client.policy import guard
from fedspam.flower.client.state import HeldFields, Memory
from fedspam.flower.wire import arrays, envelope
from fedspam.flower.wire.node import RefusedError as RefusedError, facts, partition_of as partition_of, quiet, refusal
from fedspam.flower.wire.schema import Schema

if TYPE_CHECKING:
    from fedspam.flower.privacy.differential import Privacy
    from fedspam.flower.privacy.secure_client import SecureSum


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

    A node has the loss, gradients and weight of the same client in ``Ragged.of([data(0), data(1), ...], loss)``. So the
    federation trains the model that `fedspam.simulate` trains.

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
    method: Any,
    params: Any,
    *,
    metrics: Callable[[Oracle, Params], Mapping[str, float]] | None = None,
    mods: list[Mod] | None = None,
    secure: "SecureSum | None" = None,
    privacy: "Privacy | None" = None,
    codecs: "CodecsLike | Callable[[Context], CodecsLike] | None" = None,
) -> ClientApp:
    """A ClientApp that answers the server of `FedspamStrategy`.

    Arguments:
        oracle: context -> the loss of this node's client, such as `clients_with` makes it: a pytree that is called
            with parameters. Cache data that takes long to load, for example with ``functools.cache``.
        method: the method, the same as on the server; or context -> method, to read it from ``run_config``.
        params: parameters with the right names, shapes and dtypes; or context -> parameters.
        metrics: (oracle, params) -> numbers, reported for Flower's ``evaluate`` messages in addition to the loss.
        mods: Flower's mods around every message; the text of an exception in them or in your code stays here.
        secure: the secure sum, the same as on the server; see `fedspam.flower.privacy.secure_client.SecureSum`.
        privacy: differential privacy, with its own secure sum; see `fedspam.flower.privacy.differential.Privacy`.
        codecs: how messages and replies are compressed, the same as on the server; or context -> codecs.

    >>> import jax.numpy as jnp
    >>> from fedspam import spam_pp
    >>> def loss(x, rows): return 0.5 * jnp.sum((rows - x) ** 2, axis=1)
    >>> def data(client): return jnp.full((4, 3), float(client))
    >>> app = client_app(clients_with(loss, data), spam_pp(2, step_size=0.5, fresh_weight=0.2), jnp.zeros(3))
    """

    def setting(context: Context) -> Setting:
        given: tuple[Any, ...] = (method, params, codecs)
        built, like, coded = (value(context) if _is_function(value) else value for value in given)
        like, coded = jax.tree.map(jnp.asarray, like), Codecs.of(coded)
        return Setting(oracle, built, like, coded, Schema.of(built, like, coded))

    if privacy is not None:
        secure, mods = privacy.applied(secure, mods)

    def described(message: Message, context: Context) -> tuple[str, str]:
        schema = setting(context).schema
        return schema.method, schema.digest

    masking = [] if secure is None else [secure.mod(lambda context: setting(context).codecs)]
    app = ClientApp(mods=[quiet, guard(described, secure, privacy), *masking, *(mods or [])])
    if secure is not None:
        secure.register(app)

    def answering(content: Callable[..., RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                return Message(content(message, context, setting(context)), reply_to=message)
            except RefusedError as error:
                return refusal(error, message)

        return answer

    app.query("whoami")(answering(_introduce))
    if _is_function(method):  # its works are not known yet: register every known name
        import fedspam.methods  # noqa: F401 importing methods registers the names of their works
    for name in sorted(WORK_NAMES if _is_function(method) else works_of(method)):
        app.train(name)(answering(_answer))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        like, found = setting(context).params, oracle(context)
        point = arrays.to_params(next(iter(message.content.array_records.values())), like)
        point, loss = _judged(found, point)
        numbers = {"loss": float(loss), **(metrics(found, point) if metrics is not None else {})}
        numbers["num-examples"] = float(found.weight)
        return Message(RecordDict({"metrics": MetricRecord(dict(numbers))}), reply_to=message)

    return app


@functools.partial(jax.jit, static_argnames="name")
def perform(
    method: Any,
    oracle: Oracle,
    client: Any,
    key: Any,
    memory: PyTree,
    message: dict[str, Any],
    codecs: Codecs = NO_CODECS,
    *,
    name: str,
) -> tuple[Any, PyTree]:
    """A client's work. It is not a closure, so that it is compiled once per process even where apps are unpickled for
    every message, as under Ray."""
    own_key = jax.random.fold_in(key, client)
    return perform_work(works_of(method)[name], oracle, own_key, memory, message, codecs)


@jax.jit
def _judged(oracle: Oracle, params: Params) -> tuple[Params, Any]:
    """What predicts a client's rows, with its own statistics if it keeps them, and the loss of the prediction."""
    if not isinstance(oracle, BatchOracle):
        return params, oracle(params)
    own = oracle.own(params)
    return own, oracle.predicted(own)


def _is_function(value: Any) -> bool:
    """Whether a value is made from the context. Being callable is not enough: models are callable too."""
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial)


class Setting(NamedTuple):
    """What a client has, for one message."""

    oracle: Callable[[Context], Oracle]
    method: Any
    params: Params
    codecs: Codecs
    schema: Schema


def _introduce(message: Message, context: Context, own: Setting) -> RecordDict:
    _agree(message.content.config_records[envelope.HEADER], own.schema, partition_of(context))
    return RecordDict({envelope.HEADER: ConfigRecord({**facts(context), "schema": own.schema.digest})})


def _agree(head: ConfigRecord | None, schema: Schema, client: int) -> ConfigRecord:
    """The header of a message, if it is of this client's schema. Only a first message holds a description of it."""
    if head is not None and head.get("schema") == schema.digest:
        return head
    if head is None or "description" not in head:
        raise RefusedError(
            f"client {client} has the schema {schema.digest}, the message is of another method, solver or model"
        )
    differences = schema.differences(json.loads(str(head["description"])))
    raise RefusedError(
        f"client {client} differs from the server: {'; '.join(differences[:4])}. "
        "Give both the same method, solver, parameters and codecs"
    )


def _answer(message: Message, context: Context, setting: Setting) -> RecordDict:
    oracle, method, params, codecs, schema = setting
    partition = partition_of(context)
    head = _agree(message.content.config_records.get(envelope.HEADER), schema, partition)
    assigned = bool(head.get("assigned"))  # whether the server gives this client its id
    phase, label = str(head.get("phase")), str(head.get("exchange"))
    exchange = schema.exchange(phase, label)
    if exchange is None or message.metadata.message_type != f"train.{exchange.work}":
        raise RefusedError(f"the method has no exchange {label!r} of type {message.metadata.message_type!r}")
    own = None if assigned else partition
    fields, client, round, key = _read(message, head, exchange, own, HeldFields(context), schema.kept(phase))

    first = jax.tree.map(jnp.asarray, codecs.memory(method.client_state(params), schema.plan))
    kept = wire.encode({"memory": first}) if jax.tree.leaves(first) else None
    memory = Memory(context, kept, f"{schema.digest} {head['run']}", partition)
    version, settled, becomes = (int(str(head[name])) for name in ("memory", "settled", "becomes"))
    before = first if kept is None else wire.decode(memory.at(version), {"memory": first})["memory"]
    name, me = exchange.work, np.uint32(client)
    reply, after = perform(method, oracle(context), me, key, before, fields, codecs, name=name)
    if exchange.work in schema.stateful:
        memory.keep(wire.encode({"memory": wire.cast(after, first)}), becomes, {version, settled})
    coded, due = codecs.answered(jax.random.fold_in(key, client), exchange.work, reply, fields), exchange.answer
    answer = {"@client": np.uint32(client), "@round": np.uint32(round)}
    answer |= signed({"reply": wire.cast(coded, due["reply"])}, due)
    return RecordDict({
        "arrays": envelope.enclose(wire.encode(answer)),
        envelope.HEADER: ConfigRecord(
            {"schema": schema.digest, "exchange": label, **(facts(context) if assigned else {})}
        ),
    })  # fmt: skip


def _read(
    message: Message, head: ConfigRecord, exchange: Exchange, own: int | None, held: HeldFields, kept: frozenset[str]
) -> tuple[dict[str, Any], int, int, Any]:
    """All fields of the work, the client's id, the round, and the key; the id must be its own, unless that is None."""
    try:
        sent = verified(wire.decode(envelope.enclosed(message.content), exchange.ask(bool(head.get("whole")))))
    except ValueError as error:
        raise RefusedError(f"client {own} cannot read the message: {error}") from None
    client = int(sent.pop("@client"))
    if own is not None and client != own:
        raise RefusedError(f"client {own} received a message for another client")
    round, key = int(sent.pop("@round")), jax.random.wrap_key_data(jnp.asarray(sent.pop("@key")))
    this_round = f"{head['run']} {round}"
    due = {name: exchange.message[name] for name in exchange.message if name not in sent}
    missing = {
        name: wire.decode(data, {name: due[name]})[name] for name, data in held.of(this_round, due, client).items()
    }
    try:
        sent = exchange.codecs.received(sent, exchange.message, missing)
    except ValueError as error:
        raise RefusedError(f"client {client} cannot decode the message: {error}") from None
    held.keep(this_round, {name: wire.encode({name: value}) for name, value in sent.items() if name in kept})
    return {**sent, **missing}, client, round, key
