"""Clients in other languages: a ClientApp that passes bytes to a program, and the program's bytes back.

For each message the program is started and answers with frames (`fedspam_client.frames`). Its state stays in
Flower's ``Context.state``. The header of a message has three entries more than on the wire: its ``type``, and the
``partition-id`` and ``num-partitions`` of the node.

Flower starts a process per message itself. Its own interface for such processes (the Runtime API of a SuperNode) has
changed its transport between releases and is not documented for other languages, so programs do not speak it.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedspam_client._shared._internal import strict
from fedspam_client._shared.flower.client.policy import guard
from fedspam_client._shared.flower.wire import envelope
from fedspam_client._shared.flower.wire.node import RefusedError, facts, method_of, quiet, refusal
from fedspam_client.frames import ProgramError, ask

if TYPE_CHECKING:
    from fedspam_client._shared.flower.privacy.differential import Privacy
    from fedspam_client._shared.flower.privacy.secure_client import SecureSum

SLOT, STATE, KNOWN = "fedspam-relay", "state", "fedspam-relay-method"
LARGEST, DEPTH = 2**24, 200  # bytes and levels of a description that is read


def relay_app(
    command: Sequence[str],
    works: Sequence[str],
    *,
    seconds: float = 600.0,
    mods: list[Mod] | None = None,
    secure: "SecureSum | None" = None,
    privacy: "Privacy | None" = None,
) -> ClientApp:
    """A ClientApp whose messages a program in any language answers.

    What the program writes to its standard error is logged at the site and is not sent, because it may hold data.

    Arguments:
        command: the program and its arguments.
        works: the names of the works that it can do, such as ``("starting_gradient", "difference", "prox")``.
        seconds: until a program that does not answer is ended.
        mods: Flower's mods around every message.
        secure, privacy: the same as on the server; see `fedspam_client.privacy`.

    >>> app = relay_app(["./client", "--rows", "rows.safetensors"], ("difference", "prox"))
    """
    if privacy is not None:
        secure, mods = privacy.applied(secure, mods)
    masking = [] if secure is None else [secure.mod()]
    app = ClientApp(mods=[quiet, guard(_described, secure, privacy), *masking, *(mods or [])])
    if secure is not None:
        secure.register(app)

    def relay(message: Message, context: Context) -> Message:
        try:
            return _relayed(command, message, context, seconds)
        except RefusedError as error:
            return refusal(error, message)

    app.query("whoami")(relay)
    for work in works:
        app.train(work)(relay)
    return app


def _described(message: Message, context: Context) -> tuple[str | None, str | None]:
    """The name of the method, which only a first message describes, and the digest of its schema."""
    head = message.content.config_records.get(envelope.HEADER, {})
    if "schema" not in head:
        if message.metadata.message_type.startswith("train."):
            raise RefusedError("the message asks for work and names no schema, which a policy may be about")
        return None, None  # a trip of a secure sum
    known, schema = context.state.config_records.get(KNOWN, {}), str(head["schema"])
    if "description" in head:
        try:
            description = strict.json_object(str(head["description"]).encode(), size=LARGEST, depth=DEPTH)
        except strict.MalformedError as error:
            raise RefusedError(f"the description in the message cannot be read: {error}") from None
        text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if hashlib.sha256(text.encode()).hexdigest()[:32] != schema:  # a policy would be obeyed for another method
            raise RefusedError(f"the description in the message is not that of its schema, {schema:.40}")
        method = method_of(description)
        context.state[KNOWN] = ConfigRecord({"schema": schema, "method": method})
        return method, schema
    return str(known["method"]) if known.get("schema") == schema else "unknown", schema


def _relayed(command: Sequence[str], message: Message, context: Context, seconds: float) -> Message:
    own = facts(context)
    head = {
        **message.content.config_records.get(envelope.HEADER, {}),
        "type": message.metadata.message_type,
        **{name: own[name] for name in ("partition-id", "num-partitions")},
    }
    fields = envelope.enclosed(message.content) if message.content.array_records else b""
    kept = context.state.array_records.get(SLOT)
    try:
        reply = ask(command, head, fields, b"" if kept is None else kept[STATE].data, seconds)
    except ProgramError as error:
        raise RefusedError(str(error)) from None
    context.state[SLOT] = ArrayRecord({STATE: envelope.array_of(reply.state)})
    content = RecordDict({envelope.HEADER: ConfigRecord(reply.head)})
    if reply.fields:
        content["arrays"] = envelope.enclose(reply.fields)
    return Message(content, reply_to=message)
