"""The request of one exchange: its messages, and how the replies to them are combined."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from jaxtyping import Array, Key, PyTree

from fedspam._internal import trees
from fedspam.clients import Ids
from fedspam.federation import Cohort
from fedspam.federation.codecs.fields import SentField
from fedspam.federation.ledger import Exchange
from fedspam.flower.wire import envelope


class VoidError(RuntimeError):
    """An exchange has too few accepted replies after all retries: the round has no effect."""


@dataclass(frozen=True)
class Request:
    """The message of one exchange to all of its clients, and the key of its work."""

    exchange: Exchange
    cohort: Cohort
    message: dict[str, Any]
    fields: dict[str, SentField]  # the message as it travels and arrives
    key: Key[Array, ""]
    round: int  # as messages carry it

    @functools.cached_property
    def arrived(self) -> dict[str, Any]:
        return {name: field.value for name, field in self.fields.items()}

    @functools.cached_property
    def leaves(self) -> dict[str, list[Any]]:
        return {name: jax.tree.leaves(value) for name, value in self.message.items()}


@dataclass(frozen=True)
class MessageForm:
    """What all messages of a run have in common."""

    run: str  # identifies the run to the clients
    timeout: float  # the deadline of the replies, in seconds
    config: Mapping[str, Any]  # the entries of the ConfigRecord
    arrays_key: str  # the names of Flower's records
    config_key: str

    def message(self, node: int, work: str, round: int, head: Mapping[str, Any], data: bytes) -> Message:
        """A message to a node, with this header and these encoded fields."""
        records = {
            self.arrays_key: envelope.enclose(data),
            self.config_key: ConfigRecord({**self.config, "server-round": round}),
            envelope.HEADER: ConfigRecord(dict(head)),
        }
        return Message(RecordDict(records), node, f"train.{work}", ttl=self.timeout, group_id=str(round))

    def plain(self, node: int, content: RecordDict, round: int) -> Message:
        """A message to a node whose app does not know this package."""
        return Message(content, node, "train", ttl=self.timeout, group_id=str(round))


def listed(ids: Ids) -> list[int]:
    """The ids as Python's numbers. To iterate over an array of JAX would compile a program for each length."""
    return np.asarray(ids).tolist()


def addressed(data: bytes, id: int) -> bytes:
    """The encoded message with another client id: for many parameters this is much cheaper than to encode it again."""
    start = 8 + int.from_bytes(data[:8], "little")
    place = start + json.loads(data[8:start])["@client"]["data_offsets"][0]
    return b"".join((data[:place], id.to_bytes(4, "little"), data[place + 4 :]))


def mean_of(replies: list[PyTree | None], like: PyTree) -> PyTree:
    """The mean of the accepted replies, summed in the order of the cohort, so that it does not depend on arrival."""
    accepted = [reply for reply in replies if reply is not None]
    total = accepted[0]
    for reply in accepted[1:]:
        total = trees.add(total, reply)
    return trees.divide(total, len(accepted)) if len(replies) > 1 else total


def stacked(replies: list[PyTree | None], like: PyTree) -> tuple[PyTree, Array]:
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    rows = [blank if reply is None else reply for reply in replies]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows), jnp.array([reply is not None for reply in replies])
