"""LIBSVM's text format: ``label index:value index:value ...``, one example per line, indices from 1."""

import math
from array import array
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks
from fedspam._internal.reading import guarded, lines, number, opened, shown

# what exceeds these limits is more likely damage than data
MOST_FEATURES = 10**6
MOST_BYTES = 2**30
MOST_NUMBERS = 2**26  # in the dense array, or 4 per value in the file, if that is more
KIND = "a file in LIBSVM's format"
LONGEST_INDEX = 20  # digits
RULE = "it must be a finite number: correct the line"


class Rows(NamedTuple):
    """Examples and their labels, as they stand in the file."""

    features: Float[np.ndarray, "rows features"]
    labels: Float[np.ndarray, " rows"]


def read_libsvm(path: str | Path, *, features: int | None = None) -> Rows:
    """Read a file in LIBSVM's format, plain or compressed (``.gz``, ``.bz2``, ``.xz``), into dense arrays.

    Blank lines and what follows a ``#`` are skipped. Anything else that is not of the format is refused with the line's
    number: an index below 1 or not above the one before, a value or label that is not a finite number.

    Arguments:
        path: the file.
        features: how many there are; None for the largest index that occurs. A test set may lack the last ones.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny"
    >>> _ = path.write_text("+1 1:0.5 3:2\\n-1 2:1\\n")
    >>> read_libsvm(path).features.tolist(), read_libsvm(path).labels.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])

    Chang, Lin: LIBSVM: a library for support vector machines, 2011.
    """
    path = Path(path)
    if features is not None:
        checks.whole("features", features, 1)
    with opened(path, "rt", KIND, most=MOST_BYTES, encoding="ascii", newline=None) as file:
        labels, rows, columns, values = _read_lines(file, path)
    if not labels:
        raise ValueError(f"{path} holds no examples; give a file with at least one line 'label index:value ...'")
    largest = max(columns, default=0)
    if features is not None and largest > features:
        line = rows[columns.index(largest)] + 1
        raise ValueError(
            f"{path}, example {line}: index {largest} is above features = {features}; give features={largest} or more"
        )
    count = features or largest
    if count == 0:
        raise ValueError(f"{path} has no feature in any line; say how many there are with features=...")
    most = max(MOST_NUMBERS, 4 * len(values))
    if count > MOST_FEATURES or len(labels) * count > most:
        raise ValueError(
            f"{path} has {len(labels)} rows of {count} features; rows are kept dense, at most {MOST_FEATURES} features "
            f"and {most} numbers: leave out rows or features"
        )
    with guarded(path, KIND):
        dense = np.zeros((len(labels), count))
        dense[rows, np.asarray(columns) - 1] = values
        return Rows(dense, np.asarray(labels))


def _read_lines(file: IO[str], path: Path) -> tuple["array[float]", "array[int]", "array[int]", "array[float]"]:
    """All labels, and of each value its row, its index and itself."""
    labels, rows, columns, values = array("d"), array("q"), array("q"), array("d")
    for at, line in enumerate(lines(file, path), start=1):
        parts = line.split("#", 1)[0].split()
        if not parts:
            continue
        labels.append(number(parts[0], path, at, "the label", RULE))
        is_plain = "_" not in line  # which `float` would take
        previous = 0
        for part in parts[1:]:
            index, colon, value = part.partition(":")
            if not colon or not (index.isascii() and index.isdigit()):
                raise ValueError(
                    f"{path}, line {at}: {shown(part)!r} is not index:value; write one such as 3:0.5, with indices "
                    "from 1"
                )
            position = int(index) if len(index) <= LONGEST_INDEX else MOST_FEATURES + 1
            if position > MOST_FEATURES:
                raise ValueError(
                    f"{path}, line {at}: index {shown(index)}; rows are kept dense, at most {MOST_FEATURES} "
                    "features wide"
                )
            if position <= previous:
                rule = "indices begin at 1" if position < 1 else f"it must be above the one before it, {previous}"
                remedy = "add 1 to every index" if position < 1 else "sort the line and drop repeated indices"
                raise ValueError(f"{path}, line {at}: index {position} in {shown(part)!r}: {rule}; {remedy}")
            rows.append(len(labels) - 1)
            columns.append(position)
            try:
                found = float(value) if is_plain else math.nan
            except ValueError:
                found = math.nan
            if not math.isfinite(found):
                found = number(value, path, at, f"the value of index {position}", RULE)
            values.append(found)
            previous = position
    return labels, rows, columns, values
