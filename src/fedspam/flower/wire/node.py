"""What every client of a Flower federation does, in whatever framework: its id, its introduction, its refusals."""

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..._internal.version import __version__
from . import envelope

LOG = logging.getLogger("flwr")


class RefusedError(ValueError):
    """Why a client refuses a message; the server receives the reason."""


class HiddenError(RuntimeError):
    """An error of a client without its text, which may hold data."""


def quiet(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The outermost mod of every client. Flower would send the text of an exception to the server: here the text is
    only logged, and the server learns the kind of the error."""
    try:
        return call_next(message, context)
    except RefusedError:
        raise
    except Exception as error:
        LOG.exception("an error in %s, whose text is not sent", message.metadata.message_type)
        raise HiddenError(f"the client raised {type(error).__name__}; its own log says more") from None


def refusal(error: RefusedError, message: Message) -> Message:
    """The reply of a client that refuses a message."""
    if not message.metadata.message_type.startswith(("train.", "query.")):
        raise error  # Flower turns it into an error reply; the record below would not be read
    return Message(RecordDict({envelope.HEADER: ConfigRecord({"refused": str(error)})}), reply_to=message)


def partition_of(context: Context) -> int:
    """The id of the client that this node is."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or isinstance(found, bool):
        raise RefusedError(
            f"partition-id = {found!r} of the node-config must be a whole number from 0 on; start the SuperNode with "
            "--node-config 'partition-id=0 num-partitions=3'"
        )
    return found


def method_of(description: Mapping[str, Any]) -> str:
    """The name of the method that a schema describes; that of its class if it has none."""
    method = description.get("method")
    method = method if isinstance(method, Mapping) else {}
    return str(method.get("name", method.get("type")))


def facts(context: Context) -> dict[str, Any]:
    """How a node introduces itself."""
    count = int(context.node_config.get("num-partitions", 0))
    return {
        "partition-id": partition_of(context), "num-partitions": count, "fedspam": __version__, "wire": envelope.WIRE,
    }  # fmt: skip
