"""Text as numbers: LEAF's alphabet of 80 characters, and rows for models of the next character."""

import numpy as np
from jaxtyping import Int16, UInt8
from numpy.typing import ArrayLike

from fedspam._internal import checks

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = len(ALPHABET)  # the number of every other character
SYMBOLS = UNKNOWN + 1  # how many different numbers there are: the alphabet size of a model
_CODES = np.full(128, UNKNOWN, np.uint8)
_CODES[[ord(sign) for sign in ALPHABET]] = np.arange(len(ALPHABET))


def encode(texts: ArrayLike) -> UInt8[np.ndarray, "..."]:
    """One text, or an array of texts of equal length, as numbers: the place of each character in `ALPHABET`.

    >>> encode("To be").tolist()
    [44, 67, 1, 54, 57]
    >>> encode(np.array(["ab", "b$"])).tolist()  # $ is not in the alphabet
    [[53, 54], [54, 80]]
    """
    texts = np.asarray(texts, dtype=str)
    width = texts.dtype.itemsize // 4
    points = np.ascontiguousarray(texts).reshape(-1).view(np.uint32).reshape(*texts.shape, width)
    if (points == 0).any():  # NumPy pads shorter texts with zeros
        raise ValueError(f"the longest text has {width} characters, others have fewer; give texts of one length")
    return np.where(points < 128, _CODES[np.minimum(points, 127)], np.uint8(UNKNOWN))


def decode(codes: ArrayLike) -> str:
    """The text of `encode`d numbers; characters outside the alphabet become U+FFFD.

    >>> decode(encode("To be"))
    'To be'
    """
    return "".join((ALPHABET + "\N{REPLACEMENT CHARACTER}")[min(int(code), UNKNOWN)] for code in np.ravel(codes))


def sequences(codes: UInt8[np.ndarray, " characters"], length: int) -> dict[str, Int16[np.ndarray, "rows length"]]:
    """A text cut into rows: ``features`` are `length` characters, ``label`` the ones that follow each.

    Rows do not overlap, and together they predict every character but the first. The last row is padded with spaces
    whose labels are -1, which the loss ignores.

    >>> rows = sequences(np.arange(6, dtype=np.uint8), 3)
    >>> rows["features"].tolist(), rows["label"].tolist()
    ([[0, 1, 2], [3, 4, 1]], [[1, 2, 3], [4, 5, -1]])
    """
    checks.whole("length", length, 1)
    if len(codes) < 2:
        raise ValueError(f"a text of {len(codes)} characters has no next character to predict; leave it out")
    count = -(-(len(codes) - 1) // length)
    filled = lambda part, filling: np.concatenate(
        [part, np.full(count * length - len(part), filling)], dtype=np.int16, casting="unsafe"
    ).reshape(count, length)
    return {"features": filled(codes[:-1], ALPHABET.index(" ")), "label": filled(codes[1:], -1)}
