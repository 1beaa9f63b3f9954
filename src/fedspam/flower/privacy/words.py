r"""The words of a secure sum: plain numbers in fixed point, 64 bits each, and codes of a common grid in few bits.

Masks are whole numbers modulo :math:`2^{64}`. A sum of codes of b bits from n clients needs only :math:`w = b +
\lceil\log_2 n\rceil` bits. Since :math:`2^w` divides :math:`2^{64}`, a client can send its masked codes modulo
:math:`2^w`, and the sum of the codes is still exact. Only codes of `Grid` add: all of its clients have the same scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedspam._internal.packing import Codes
from fedspam._internal.strict import MalformedError
from fedspam._internal.trees import names
from fedspam.federation.codecs import Codecs, Feedback, Grid
from fedspam.federation.ledger import Exchange
from fedspam.flower.privacy import masks

MOST = 32  # bits of a word of codes


def grid_of(codec: Any) -> Grid | None:
    """The grid whose codes can be added, if the codec is one."""
    codec = codec.codec if isinstance(codec, Feedback) else codec
    return codec if isinstance(codec, Grid) else None


@dataclass(frozen=True)
class WordLayout:
    """How many words of a reply are plain numbers, how many are codes, and the bits of each code."""

    plain: int
    codes: int
    width: int

    @classmethod
    def of(cls, plain: int, codes: int, bits: int, clients: int) -> "WordLayout":
        width = bits + (clients - 1).bit_length() if codes else 0
        if width > MOST:
            raise ValueError(
                f"a sum of codes of {bits} bits over {clients} clients needs {width} bits, and at most {MOST} fit; use "
                "fewer bits or a smaller cohort"
            )
        return cls(plain, codes, width)

    @property
    def _section(self) -> Codes:
        return Codes(self.codes, self.width, 2**self.width - 1)

    @property
    def fields(self) -> dict[str, Any]:
        """The shapes of the fields of a masked reply."""
        found = {"masked": jax.ShapeDtypeStruct((self.plain,), np.dtype(np.uint64))}
        return found | ({"codes": jax.ShapeDtypeStruct((self._section.bytes,), jnp.uint8)} if self.codes else {})

    def packed(self, words: np.ndarray) -> dict[str, np.ndarray]:
        """The fields of masked words."""
        found = {"masked": words[: self.plain]}
        low = words[self.plain :] & np.uint64(2**self.width - 1)
        return found | ({"codes": self._section.pack(low)} if self.codes else {})

    def unpacked(self, fields: Mapping[str, Any]) -> np.ndarray:
        """The masked words; those of codes modulo 2^width."""
        codes = self._section.unpack(np.array(fields["codes"])) if self.codes else np.zeros(0)
        return np.concatenate([np.array(fields["masked"], np.uint64), codes.astype(np.uint64)])


def words_of(
    values: Mapping[str, np.ndarray], work: str, codecs: Codecs, fraction_bits: int, clients: int
) -> tuple[np.ndarray, WordLayout]:
    """The words of a client's reply, and their layout. Arrays of bytes are codes."""
    plain, codes, most = [np.zeros(0)], [np.zeros(0, np.uint64)], 0
    codec_of = codecs.of_reply(work, {}).codec
    for name in sorted(values):
        value = np.ravel(values[name])
        if value.dtype != np.uint8:
            plain.append(value.astype(np.float64))
            continue
        grid = grid_of(codec_of(name.removeprefix("reply").removeprefix(".")))
        if grid is None:
            raise MalformedError(f"{name} travels as codes that do not add; use the codec Grid, or none")
        codes.append(grid.section(_held(grid, len(value))).unpack(value).astype(np.uint64))
        most = max(most, grid.bits)
    words = masks.to_fixed(np.concatenate(plain), fraction_bits, clients)
    layout = WordLayout.of(len(words), sum(map(len, codes)), most, clients)
    return np.concatenate([words, *codes]), layout


def _held(grid: Grid, length: int) -> int:
    """The codes that so many bytes hold; the last few may be padding."""
    return 8 * length // grid.bits


@dataclass(frozen=True)
class SummedReply:
    """The server's view of a reply to an exchange that is summed, beside the message as it arrived."""

    exchange: Exchange
    message: Mapping[str, Any]
    fraction_bits: int

    def _leaves(self) -> list[tuple[Any, Grid | None, Any]]:
        """Each array of the reply with its grid, and the array from which it travels as a difference."""
        found, _ = self.exchange.codecs.of_reply(self.exchange.work, self.message).leaves(self.exchange.reply)
        return [(leaf, grid_of(codec), near) for _, part, codec, near in found for leaf in jax.tree.leaves(part)]

    def layout(self, clients: int) -> WordLayout:
        leaves = self._leaves()
        plain = sum(leaf.size for leaf, grid, _ in leaves if grid is None)
        coded = [(grid, _held(grid, grid.section(leaf.size).bytes)) for leaf, grid, _ in leaves if grid is not None]
        return WordLayout.of(
            plain, sum(held for _, held in coded), max((grid.bits for grid, _ in coded), default=0), clients
        )

    def mean(self, total: np.ndarray, layout: WordLayout, count: int) -> PyTree:
        """The mean reply of `count` clients from the sum of their words, in the order of their names on the wire."""
        floats = masks.to_floats(total[: layout.plain], self.fraction_bits)
        codes = total[layout.plain :] & np.uint64(2**layout.width - 1)
        leaves, parts, at = self._leaves(), {}, [0, 0]
        wire_names = names({"reply": self.exchange.reply})
        for wire_name, (leaf, grid, near) in sorted(zip(wire_names, leaves, strict=True), key=lambda item: item[0]):
            if grid is None:
                mean = floats[at[0] : at[0] + leaf.size] / count
                at[0] += leaf.size
            else:
                mean = grid.step * (codes[at[1] : at[1] + leaf.size].astype(np.float64) / count - grid.levels)
                at[1] += _held(grid, grid.section(leaf.size).bytes)
            mean = mean.reshape(leaf.shape) + (0 if near is None else np.asarray(near[1], np.float64))
            parts[wire_name] = jnp.asarray(mean, leaf.dtype)
        return jax.tree.unflatten(jax.tree.structure(self.exchange.reply), [parts[name] for name in wire_names])
