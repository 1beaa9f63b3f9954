"""The ClientApp of a client without JAX. It answers as ``fedspam.flower.client_app`` does, from a file of works."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedspam_client._shared._internal import strict
from fedspam_client._shared.flower.client.policy import guard
from fedspam_client._shared.flower.client.state import HeldFields, Memory
from fedspam_client._shared.flower.wire import envelope
from fedspam_client._shared.flower.wire.node import RefusedError, facts, method_of, partition_of, quiet, refusal
from fedspam_client.clients import RowsClient
from fedspam_client.works import LightExchange, Named, Works

if TYPE_CHECKING:
    from fedspam_client._shared.flower.privacy.differential import Privacy
    from fedspam_client._shared.flower.privacy.secure_client import SecureSum


def client_app(
    client: Callable[[Context], RowsClient],
    works: str | Path | Sequence[str | Path],
    *,
    metrics: Callable[[RowsClient, Any], dict[str, float]] | None = None,
    mods: list[Mod] | None = None,
    secure: "SecureSum | None" = None,
    privacy: "Privacy | None" = None,
) -> ClientApp:
    """A ClientApp without JAX, for the server of ``fedspam.flower.FedspamStrategy``.

    Arguments:
        client: context -> the client of this node, made by `numpy_client` or `torch_client`.
        works: the file that ``fedspam.flower.export_works`` wrote; or several: a message chooses by its schema.
        metrics: (client, params) -> numbers, reported for Flower's ``evaluate`` messages in addition to the loss.
        mods: Flower's mods around every message; the text of an exception in them or in your code stays here.
        secure, privacy: the same as on the server; see `fedspam_client.privacy`.
    """
    paths = [works] if isinstance(works, str | Path) else list(works)
    methods = [_read(Path(path)) for path in paths]
    if privacy is not None:
        secure, mods = privacy.applied(secure, mods)

    def described(message: Message, context: Context) -> tuple[str | None, str | None]:
        head = message.content.config_records.get(envelope.HEADER)
        if head is None:  # an evaluation, which names no method
            return None, None
        method = _agreed(head, methods, partition_of(context))
        return method_of(method.description), method.schema

    masking = [] if secure is None else [secure.mod()]
    app = ClientApp(mods=[quiet, guard(described, secure, privacy), *masking, *(mods or [])])
    if secure is not None:
        secure.register(app)

    def answering(content: Callable[..., RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                head = message.content.config_records.get(envelope.HEADER)
                method = _agreed(head, methods, partition_of(context))
                return Message(content(message, context, head, method, client), reply_to=message)
            except RefusedError as error:
                return refusal(error, message)

        return answer

    app.query("whoami")(answering(_introduce))
    for name in sorted({exchange.work for method in methods for exchange in method.exchanges.values()}):
        app.train(name)(answering(_answer))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        record = next(iter(message.content.array_records.values()))
        method = next((method for method in methods if method.params.keys() == set(record)), None)
        if method is None:
            raise RefusedError(f"no method of this client has the parameters {sorted(record)}")
        leaves = [np.asarray(record[name].numpy(), entry.dtype) for name, entry in method.params.items()]
        found = _named(client(context), method)
        more = {} if metrics is None else metrics(found, dict(zip(method.params, leaves, strict=True)))
        numbers = {"loss": float(found.loss(leaves)), **more, "num-examples": float(found.fact("weight"))}
        return Message(RecordDict({"metrics": MetricRecord(dict(numbers))}), reply_to=message)

    return app


@functools.cache
def _read(path: Path) -> Works:
    """The works in a file, read once per process."""
    return Works.read(path)


def _named(client: RowsClient, method: Works) -> RowsClient:
    client.names = list(method.params)
    return client


def _agreed(head: ConfigRecord | None, methods: Sequence[Works], client: int) -> Works:
    """The method of a message, if this client knows it. Only a first message holds a description of it."""
    for method in methods:
        if head is not None and head.get("schema") == method.schema:
            return method
    mine = " and ".join(f"{method_of(method.description)} (schema {method.schema})" for method in methods)
    if head is None or "description" not in head:
        raise RefusedError(f"client {client} has the works of {mine}, the message is of another method or model")
    theirs = json.loads(str(head["description"]))
    raise RefusedError(
        f"client {client} has the works of {mine}, the server has {method_of(theirs)} with other settings; write the "
        "works of the server's method, parameters and codecs with fedspam.flower.export_works"
    )


def _introduce(message: Message, context: Context, head: ConfigRecord, method: Works, _: Any) -> RecordDict:
    return RecordDict({envelope.HEADER: ConfigRecord({**facts(context), "schema": method.schema})})


def _answer(
    message: Message, context: Context, head: ConfigRecord, method: Works, make: Callable[[Context], RowsClient]
) -> RecordDict:
    partition, assigned = partition_of(context), bool(head.get("assigned"))
    label = str(head.get("exchange"))
    exchange = method.exchanges.get(f"{head.get('phase')} {label}")
    if exchange is None or message.metadata.message_type != f"train.{exchange.work}":
        raise RefusedError(f"the method has no exchange {label!r} of type {message.metadata.message_type!r}")
    client = _named(make(context), method)
    sent, fields = _fields(message, context, head, exchange, None if assigned else partition, method, client)

    first = safetensors.numpy.save(method.first_memory) if method.memory else None
    memory = Memory(context, first, f"{method.schema} {head['run']}", partition)
    version, settled, becomes = (int(str(head[name])) for name in ("memory", "settled", "becomes"))
    before = strict.fields(memory.at(version), method.memory) if method.memory else {}
    inputs = [sent["@client"], sent["@key"], *before.values(), *(fields[name] for name in exchange.message)]
    with np.errstate(all="ignore"):  # what is not finite is found by the server, as it is with JAX
        reply, after = exchange.replied(exchange.answer(method.constants, client, inputs))
    if exchange.stateful and method.memory:
        kept = {entry.name: np.asarray(value, entry.dtype, order="C")
                for entry, value in zip(method.memory.values(), after, strict=True)}  # fmt: skip
        memory.keep(safetensors.numpy.save(kept), becomes, {version, settled})
    answer = {"@client": np.asarray(sent["@client"]), "@round": np.asarray(sent["@round"]), **reply}
    return RecordDict({
        "arrays": envelope.enclose(safetensors.numpy.save(answer)),
        envelope.HEADER: ConfigRecord(
            {"schema": method.schema, "exchange": label, **(facts(context) if assigned else {})}
        ),
    })  # fmt: skip


def _fields(
    message: Message, context: Context, head: ConfigRecord, exchange: LightExchange, own: int | None, method: Works,
    client: RowsClient,
) -> tuple[Named, Named]:  # fmt: skip
    """The arrays with facts of the message, and all fields of the work; the id must be its own, unless that is None."""
    coding = exchange.whole if head.get("whole") else exchange.part
    try:
        found = coding.read(envelope.enclosed(message.content))
    except ValueError as error:
        raise RefusedError(f"client {own} cannot read the message: {error}") from None
    sent = {name: found.pop(name) for name in ("@client", "@round", "@key")}
    id = int(sent["@client"])
    if own is not None and id != own:
        raise RefusedError(f"client {own} received a message for another client")
    round, held = f"{head['run']} {int(sent['@round'])}", HeldFields(context)
    arriving = set(coding.decoded or found)
    due = {name: entry for name, entry in exchange.message.items() if name not in arriving}
    missing = {}
    for field, data in held.of(round, {_field(name) for name in due}, id).items():
        missing |= strict.fields(data, {name: entry for name, entry in due.items() if _field(name) == field})
    missing = {name: missing[name] for name in due}
    try:
        with np.errstate(all="ignore"):
            fields = coding.fields(found, missing, method.constants, client)
    except ValueError as error:
        raise RefusedError(f"client {id} cannot decode the message: {error}") from None
    kept: dict[str, Named] = {}
    for name, value in fields.items():
        if _field(name) in exchange.kept:
            kept.setdefault(_field(name), {})[name] = np.asarray(value, order="C")
    held.keep(round, {field: safetensors.numpy.save(arrays) for field, arrays in kept.items()})
    return sent, {**fields, **missing}


def _field(name: str) -> str:
    """The field that an array belongs to: its name up to the first dot."""
    return name.split(".")[0]
