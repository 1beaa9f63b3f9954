"""What every client of a Flower federation does, in whatever framework: its id, its introduction, its refusals."""

from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from ..._internal.version import __version__
from . import envelope


class RefusedError(ValueError):
    """Why a client refuses a message; the server receives the reason."""


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


def facts(context: Context) -> dict[str, Any]:
    """How a node introduces itself."""
    count = int(context.node_config.get("num-partitions", 0))
    return {
        "partition-id": partition_of(context), "num-partitions": count, "fedspam": __version__, "wire": envelope.WIRE,
    }  # fmt: skip
