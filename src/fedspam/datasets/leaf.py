"""LEAF's JSON: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``.

Shards are read piece by piece and user by user: memory holds the text of one user and the arrays, never a whole shard
as Python objects.
"""

import gc
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedspam._internal.reading import LONGEST_NAME, check_texts, guarded, opened, shown
from fedspam.datasets.federated import FederatedData

PIECE = 2**20  # characters read at once
MOST_OF_A_USER = 2**25  # characters; more is damage rather than data
MOST_USERS = 250_000  # of one shard
COLUMNS = {"x": "features", "y": "label"}  # their names in this library
KIND = "a shard of LEAF, which is JSON"
# the types of a column in JSON, and the kinds of the array that may come of it: NumPy would turn [1, "a"] into text
KINDS = {
    frozenset(): "f", frozenset({bool}): "b", frozenset({int}): "iu", frozenset({float}): "f",
    frozenset({int, float}): "f", frozenset({str}): "U",
}  # fmt: skip
SPACE = re.compile(r"[ \t\n\r]*")
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair: not a character by itself
ENDINGS = ("*.json", "*.json.gz", "*.json.bz2", "*.json.xz")


def read_leaf(path: str | Path) -> FederatedData:
    """All users of one shard, or of all shards in a folder, such as LEAF's ``data/train``.

    The examples of a user in several shards are joined. ``x`` and ``y`` become the arrays ``features`` and
    ``label``: numbers stay numbers, text stays text (see `fedspam.datasets.encode`).

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "shard.json"
    >>> _ = path.write_text('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [2]], "y": [0, 1]}}}')
    >>> read_leaf(path)["a"]["label"].tolist()
    [0, 1]

    Caldas et al.: LEAF: a benchmark for federated settings, 2018, arXiv:1812.01097.
    """
    path = Path(path)
    with guarded(path, KIND):
        return FederatedData.of(_stream(path, None))


def stream_leaf(path: str | Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """One user after another, for data that should not be in memory all at once."""
    return _stream(Path(path), math.inf)  # the caller's own time does not count


def _stream(path: Path, seconds: float | None) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    shards = sorted(found for ending in ENDINGS for found in path.glob(ending)) if path.is_dir() else [path]
    if not shards:
        raise FileNotFoundError(f"{path} holds no shard of LEAF; give a folder of {' or '.join(ENDINGS)}, or one file")
    for shard in shards:
        with opened(shard, "rt", KIND, seconds=seconds, encoding="utf-8") as file:
            yield from _users(_Text(file, shard))


def _users(text: "_Text") -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    header: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for name in text.members():
        if name in header:
            raise text.wrong(f"{shown(name)!r} comes twice", "keep one of them")
        header[name] = None if name == "user_data" else text.value()
        for user in text.members() if name == "user_data" else ():
            if user in sizes:
                raise text.wrong(f"the user {shown(user)!r} comes twice in one shard", "join the two")
            if len(sizes) == MOST_USERS:
                raise text.wrong(f"there are more than {MOST_USERS} users", "split them among several shards")
            if len(user) > LONGEST_NAME:
                raise text.wrong(
                    f"the user {shown(user)!r} is longer than {LONGEST_NAME} characters", "shorten the name"
                )
            columns = _columns(text, user, text.value())
            sizes[user] = len(columns["label"])
            yield user, columns
    text.expect_end()
    if "user_data" not in header:
        raise text.wrong("there is no 'user_data'", "give a shard of LEAF: users, num_samples, user_data")
    users, counts = header.get("users"), header.get("num_samples")
    if users is None:
        return
    # a text would be taken for a list of its letters
    if not isinstance(users, list) or sorted(map(repr, users)) != sorted(map(repr, sizes)):
        raise text.wrong("'users' and 'user_data' name different users", "fetch the shard again")
    if counts is None:
        return
    if not isinstance(counts, list) or len(counts) != len(users):
        raise text.wrong(f"there are {len(users)} users, and num_samples is not a list of as many", "fetch it again")
    for user, count in zip(users, counts, strict=True):
        if type(count) is not int or sizes[user] != count:
            raise text.wrong(
                f"{shown(user)!r} has {sizes[user]} examples and num_samples says {shown(count)}", "fetch it again"
            )


def _columns(text: "_Text", user: str, data: Any) -> dict[str, np.ndarray]:
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise text.wrong(f"the user {shown(user)!r} has no 'x' and 'y'", "give a shard of LEAF")
    columns = {}
    for name, column_name in COLUMNS.items():
        kind, items = _flat(data[name])
        if kind == {str}:
            check_texts(items, f"{name} of the user {shown(user)!r}")
            if any(map(SURROGATE.search, items)):
                raise text.wrong(f"{name} of the user {shown(user)!r} holds half of a character", "write it in UTF-8")
        try:
            column = np.asarray(data[name])
        except (ValueError, OverflowError):  # rows of different lengths
            column = np.empty(0, object)
        if column.ndim < 1 or column.dtype.kind not in KINDS.get(frozenset(kind), ""):
            raise text.wrong(
                f"{name} of the user {shown(user)!r} must be a list of numbers, or of texts, that all have one shape",
                "make its rows equally long, of one kind",
            )
        if len(column) and not column.size:
            raise text.wrong(f"{name} of the user {shown(user)!r} has {len(column)} empty rows", "fill or drop them")
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise text.wrong(f"{name} of the user {shown(user)!r} holds a number that is not finite", "correct it")
        columns[column_name] = column
    x, y = (len(column) for column in columns.values())
    if x != y:
        raise text.wrong(f"the user {shown(user)!r} has {x} x and {y} y", "give one y for each x")
    return columns


def _flat(value: Any) -> tuple[set[type], Any]:
    """The types of the items of nested lists, and these items in one sequence."""
    kind, items = {type(value)}, [value]
    while kind == {list}:
        items = list(itertools.chain.from_iterable(items)) if len(items) != 1 else items[0]
        kind = set(map(type, items))
    return kind, items


class _Text:
    """JSON read piece by piece: the members of an object one by one, each value as a whole."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path
        self._buffer, self._at, self._gone = "", 0, 0
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)

    def members(self) -> Iterator[str]:
        """The names of an object's members; read the value of each before the next name."""
        self._expect("{", "an object")
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise self.wrong(f"{shown(name)!r} stands where a name is expected", "fetch the file again")
            self._expect(":", "a value")
            yield name
            if self._peek() != ",":
                break
            self._at += 1
        self._expect("}", "the end of an object")

    def value(self) -> Any:
        self._peek()
        was = gc.isenabled()
        while True:
            gc.disable()  # JSON has no cycles; to look for them among millions of lists takes most of the time
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
                # a number at the end of the buffer may continue in the file
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value
            except RecursionError:
                raise self.wrong("it is nested too deep", "give a shard of LEAF") from None
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > MOST_OF_A_USER or not self._more():
                    place = self._gone + error.pos
                    raise ValueError(
                        f"{self._path}, character {place}: no JSON ({error.msg}), or the file is cut short; "
                        "fetch it again"
                    ) from None
            except ValueError as error:
                if str(error).startswith(str(self._path)):
                    raise
                raise self.wrong(f"a number cannot be read ({error})", "correct it") from None
            finally:
                if was:
                    gc.enable()

    def expect_end(self) -> None:
        if self._peek():
            raise self.wrong("more follows the end of the object", "give one object per file")

    def wrong(self, what: str, remedy: str) -> ValueError:
        return ValueError(f"{self._path}, before character {self._gone + self._at}: {what}; {remedy}")

    def _expect(self, sign: str, what: str) -> None:
        found = self._peek()
        if found != sign:
            shown = repr(found) if found else "the end of the file"
            raise ValueError(
                f"{self._path}, character {self._gone + self._at}: {shown} where {what} should be ({sign!r}): it is "
                "not JSON of LEAF, or cut short; fetch it again"
            )
        self._at += 1

    def _peek(self) -> str:
        while True:
            space = SPACE.match(self._buffer, self._at)
            assert space is not None  # it may be empty
            self._at = space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        # the buffer doubles, so that decoding it again costs a constant factor
        piece = self._file.read(max(PIECE, len(self._buffer) - self._at))
        self._gone += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise self.wrong("a name comes twice in one object", "keep one of them")
        return table

    def _constant(self, constant: str) -> Any:
        raise self.wrong(f"{constant} is not a number of JSON", "replace it")
