"""Which fields of messages and replies travel as codes, and what both sides do with them.

Coded are arrays of floats with at least 64 numbers whose payload is shorter than the array. Scalars, small arrays,
whole numbers, keys, and the reports of a reply travel as they are.

Small differences cost fewer bits than large numbers, so two kinds of fields travel as differences from what the other
side already holds: a part of a reply that has the name of a field of its message (the x of a prox, from the x it
began at), and a field ``x_prev`` of a message (from the field x beside it). The differences of x_prev are those before
coding, so that both fields arrive with the same error, and gradients at both hardly differ by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedspam._internal import packing, prng, trees
from fedspam._internal.nearest import did_you_mean
from fedspam._internal.strict import MalformedError
from fedspam._internal.trees import Key, struct
from fedspam.federation.codecs import payload
from fedspam.federation.codecs.feedback import Feedback, WithLeftovers
from fedspam.federation.codecs.payload import Codec

LEAST = 64  # numbers in the smallest array that is coded
CHECKSUM = packing.CHECKSUM
BEFORE = "_prev"  # the end of the name of a field that is close to another

Send = Callable[[str, Any], Any]  # the name of a field, and those that arrived before it -> how it arrives
CodecsLike = Mapping[str, "Codec | str | None"]


class SentField(NamedTuple):
    """A field as it travels, and as it arrives."""

    payload: PyTree
    value: PyTree


@struct
class Codecs:
    """The codec of every field, by name; empty for none.

    Arguments:
        named: "up" for all replies, "down" for all messages; or the name of a field of a message, of a part of a
            reply, or of a client work (for its replies), which goes before the general names. None, or the text
            "none", sends as it is.

    >>> codecs = Codecs.of({"up": "quantize-4", "x": None})
    >>> codecs.of_reply("difference", {}).codec("").bits
    4
    """

    named: Mapping[str, Codec | None]

    @classmethod
    def of(cls, given: "Codecs | CodecsLike | None") -> "Codecs":
        """The codecs that a user gave, as codecs or as text."""
        if isinstance(given, Codecs):
            return given
        named = {}
        for name, codec in (given or {}).items():
            codec = None if codec == "none" else payload.parse(codec) if isinstance(codec, str) else codec
            named[str(name)] = codec
            if not isinstance(codec, Codec | None):
                raise ValueError(
                    f"codecs[{name!r}] = {codec!r} is not a codec; give Quantize(4), 'quantize-4' or another of "
                    f"{', '.join(sorted(payload.CODECS))}"
                )
        return cls(named)

    def __bool__(self) -> bool:
        return bool(self.named)

    def check_names(self, plan: Any) -> None:
        """Refuse names that no exchange of a method's plan has."""
        known = {"up", "down"}
        for exchange in (*plan.start, *plan.round):
            known |= {exchange.work, *exchange.message}
            known |= {name.split(".")[0] for name in trees.names(exchange.reply)} - {""}
        for name in self.named:
            if name not in known:
                hint = did_you_mean(name, known, f"the names are {', '.join(sorted(known))}")
                raise ValueError(f"codecs[{name!r}] is not a field, reply or work of this method; {hint}")

    def codes_reply(self, work: str, reply: PyTree) -> bool:
        """Whether any part of a reply to this work is coded."""
        return any(codec is not None for _, _, codec, _ in self.of_reply(work, {}).leaves(reply)[0])

    def of_field(self, name: str, message: Mapping[str, PyTree], arrived: Mapping[str, PyTree]) -> "Coding":
        """How a field of a message travels, beside the other fields as they are and as they arrived."""
        near = name.removesuffix(BEFORE) if name.endswith(BEFORE) else "@none"
        beside = (_by_name({name: fields[near]}) if near in fields else {} for fields in (message, arrived))
        codec = self.named.get(name, self.named.get("down"))
        return Coding(lambda _: codec, *beside)

    def of_reply(self, work: str, message: Mapping[str, PyTree]) -> "Coding":
        """How the reply to a message travels, which arrived as `message`."""
        general = self.named.get(work, self.named.get("up"))
        beside = _by_name(dict(message))
        return Coding(lambda leaf: self.named.get(leaf.split(".")[0], general), beside, beside)

    # --- error feedback ---

    def memory(self, own: PyTree, plan: Any) -> PyTree:
        """The first memory of a client: that of the method and, if a reply has feedback, errors of zero."""
        errors = self.first_errors(plan)
        return WithLeftovers(own, errors) if errors else own

    def first_errors(self, plan: Any) -> dict[str, dict[str, Any]]:
        """Zeros for the arrays with feedback, by the works whose replies have such."""
        return self._zeros(plan, lambda exchange: [(self.of_reply(exchange.work, {}), exchange.reply)])

    def first_broadcast_errors(self, plan: Any) -> dict[str, dict[str, Any]]:
        """Zeros for the arrays of messages with feedback, by the works that they are sent for."""
        fields = lambda exchange: [(self.of_field(name, {}, {}), {name: like}) for name, like in exchange.sent.items()]
        return self._zeros(plan, fields)

    def _zeros(self, plan: Any, coded: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
        """Zeros for the arrays with feedback, by work; `coded` gives the trees of an exchange and how they travel."""
        errors: dict[str, dict[str, Any]] = {}
        for exchange in (*plan.start, *plan.round) if self.has_feedback else ():
            for coding, tree in coded(exchange):
                for name, leaf, codec, _ in coding.leaves(tree)[0]:
                    if isinstance(codec, Feedback):
                        errors.setdefault(exchange.work, {})[name] = jnp.zeros(leaf.shape, leaf.dtype)
        return errors

    @property
    def has_feedback(self) -> bool:
        return any(isinstance(codec, Feedback) for codec in self.named.values())

    def corrected(
        self, key: Key, work: str, reply: PyTree, errors: Mapping[str, Any], message: Mapping[str, PyTree]
    ) -> tuple[PyTree, dict[str, Any]]:
        """The reply with the errors of earlier ones added, and the errors after it; the key is the client's own."""
        mine = errors.get(work, {})
        coding = self.of_reply(work, message)
        wish = coding.each(reply, lambda name, leaf, codec, near: leaf + mine[name] if name in mine else leaf)
        arrived = _by_name(self.replied(key, work, wish, message))
        after = {name: leaf - arrived[name] for name, leaf in _by_name(wish).items() if name in mine}
        return wish, {**errors, work: after} if mine else dict(errors)

    # --- in a simulation ---

    def arriving(self, key: Key, message: Mapping[str, PyTree]) -> "Send":
        """Fields of a message as the clients of an exchange decode them; the key is that of the exchange."""

        def send(name: str, arrived: Mapping[str, PyTree]) -> PyTree:
            if not self:
                return message[name]
            coding, own_key = self.of_field(name, message, arrived), prng.fold_name(key, f"down {name}")
            return coding.rounded(own_key, {name: message[name]})[name]

        return send

    def replied(self, key: Key, work: str, reply: PyTree, message: Mapping[str, PyTree]) -> PyTree:
        """A reply as the server decodes it; the key is the client's own."""
        return self.of_reply(work, message).rounded(prng.fold_name(key, "up"), reply) if self else reply

    # --- on the wire ---

    def sent(self, key: Key, message: Mapping[str, PyTree]) -> "Send":
        """Fields of a message as they travel, and as their clients decode them."""

        def send(name: str, arrived: Mapping[str, SentField]) -> SentField:
            if not self:
                return SentField(message[name], message[name])
            coding = self.of_field(name, message, {other: field.value for other, field in arrived.items()})
            encoded = coding.encoded(prng.fold_name(key, f"down {name}"), {name: message[name]})
            return SentField(encoded[name], coding.decoded(encoded, {name: message[name]})[name])

        return send

    def received(self, fields: Mapping[str, PyTree], like: Mapping[str, PyTree], held: Mapping[str, PyTree]) -> dict:
        """The fields of a message, decoded; `held` are those that the client already has."""
        arrived = dict(held)
        for name in in_order(fields):
            coding = self.of_field(name, like, arrived)
            arrived[name] = coding.decoded({name: fields[name]}, {name: like[name]})[name] if self else fields[name]
        return {name: arrived[name] for name in fields}

    def answered(self, key: Key, work: str, reply: PyTree, message: Mapping[str, PyTree]) -> PyTree:
        """A reply as it travels; the key is the client's own."""
        return self.of_reply(work, message).encoded(prng.fold_name(key, "up"), reply) if self else reply

    def accepted(self, work: str, found: PyTree, like: PyTree, message: Mapping[str, PyTree]) -> PyTree:
        """A reply, decoded."""
        return self.of_reply(work, message).decoded(found, like) if self else found

    def shapes_of_fields(self, fields: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """The shapes of fields of a message on the wire, with a checksum if any of them is coded."""
        shapes = {name: self.of_field(name, {}, {}).shapes({name: like})[name] for name, like in fields.items()}
        return _checked(fields, shapes)

    def shapes_of_reply(self, work: str, reply: PyTree) -> dict[str, PyTree]:
        """The shapes of a reply on the wire, likewise."""
        return _checked({"reply": reply}, {"reply": self.of_reply(work, {}).shapes(reply)})


NO_CODECS = Codecs({})


@dataclass(frozen=True)
class Coding:
    """The codecs of the arrays of one tree, and the arrays from which they travel as differences, by name.

    A neighbor is a pair: the array the sender subtracts, and the receiver's copy of it, which is added back.
    """

    codec: Callable[[str], Codec | None]
    taken: Mapping[str, Any]
    added: Mapping[str, Any]

    def leaves(self, tree: PyTree) -> tuple[list[tuple[str, Any, Codec | None, tuple[Any, Any] | None]], Any]:
        """Name, array, codec and neighbor of each leaf, and the structure. A report is one leaf, without a codec."""
        paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=trees.is_report)
        found = []
        for path, leaf in paths:
            name = trees.path_name(path)
            codec = None if trees.is_report(leaf) else self.codec(name)
            if codec is None or not _is_coded(codec, leaf):
                found.append((name, leaf, None, None))
                continue
            near = (self.taken[name], self.added[name]) if name in self.taken and name in self.added else None
            found.append((name, leaf, codec, near if near and _like(near[1]) == _like(leaf) else None))
        return found, structure

    def rounded(self, key: Key, tree: PyTree) -> PyTree:
        def arrive(name: str, leaf: Any, codec: Codec | None, near: Any) -> Any:
            if codec is None:
                return leaf
            own = prng.fold_name(key, name)
            if near is None:
                return payload.rounded(codec, own, leaf)
            return near[1] + payload.rounded(codec, own, leaf - near[0])

        return self.each(tree, arrive)

    def encoded(self, key: Key, tree: PyTree) -> PyTree:
        def encode(name: str, leaf: Any, codec: Codec | None, near: Any) -> Any:
            if codec is None:
                return leaf
            leaf = jnp.asarray(leaf)
            return payload.encode(codec, prng.fold_name(key, name), leaf if near is None else leaf - near[0])

        return self.each(tree, encode)

    def decoded(self, found: PyTree, like: PyTree) -> PyTree:
        leaves, structure = self.leaves(like)
        parts = structure.flatten_up_to(found)
        values = []
        for part, (name, leaf, codec, near) in zip(parts, leaves, strict=True):
            if codec is None:
                values.append(part)
                continue
            try:
                value = payload.decode(codec, part, leaf)
            except MalformedError as error:
                raise MalformedError(f"{name or 'the array'}: {error}") from None
            values.append(value if near is None else np.asarray(near[1]) + value)
        return jax.tree.unflatten(structure, values)

    def shapes(self, tree: PyTree) -> PyTree:
        def shape(name: str, leaf: Any, codec: Codec | None, near: Any) -> Any:
            return leaf if codec is None else jax.ShapeDtypeStruct((payload.size(codec, leaf),), jnp.uint8)

        return self.each(tree, shape)

    def each(self, tree: PyTree, function: Callable[..., Any]) -> PyTree:
        leaves, structure = self.leaves(tree)
        return jax.tree.unflatten(structure, [function(*leaf) for leaf in leaves])


def in_order(names: Any) -> list[str]:
    """The names of fields in the order in which they are coded: those that travel as differences last."""
    return sorted(names, key=lambda name: name.endswith(BEFORE))


def signed(fields: Mapping[str, PyTree], due: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The fields with their checksum, if their schema has one."""
    return {**fields, CHECKSUM: packing.checksum(_by_name(fields))} if CHECKSUM in due else dict(fields)


def verified(fields: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The fields without their checksum, which must be right if there is one."""
    rest = {name: value for name, value in fields.items() if name != CHECKSUM}
    if CHECKSUM in fields:
        packing.verify(int(fields[CHECKSUM]), _by_name({n: v for n, v in rest.items() if n[0] != "@"}))
    return rest


def _is_coded(codec: Codec, leaf: Any) -> bool:
    like = _like(leaf)
    if not jnp.issubdtype(like.dtype, jnp.floating) or like.size < LEAST:
        return False
    return payload.size(codec, like) < like.size * like.dtype.itemsize


def _like(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array, of a number, or of what only has these."""
    if hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct((), jnp.result_type(leaf))


def _checked(raw: Mapping[str, PyTree], shapes: dict[str, PyTree]) -> dict[str, PyTree]:
    coded = jax.tree.leaves(shapes) != jax.tree.leaves(dict(raw))
    return {**shapes, CHECKSUM: jax.ShapeDtypeStruct((), jnp.uint32)} if coded else shapes


def _by_name(tree: PyTree) -> dict[str, Any]:
    return dict(zip(trees.names(tree), jax.tree.leaves(tree), strict=True))
