"""Objects in one line for a console: arrays by type and shape, long lists by their first entries."""

import dataclasses
import reprlib
from typing import Any


class _Brief(reprlib.Repr):
    """What `reprlib` leaves whole: arrays, and the fields of dataclasses and named tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = 8
        self.maxlevel, self.maxstring, self.maxother = 8, 60, 120

    def repr_instance(self, x: Any, level: int) -> str:
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            numbers = f"{x.dtype}[{','.join(map(str, x.shape))}]"
            return str(x) if x.shape == () and hasattr(x, "item") else numbers
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            return self.fields(x, [field.name for field in dataclasses.fields(x) if field.repr], level)
        if isinstance(x, tuple) and (names := getattr(x, "_fields", None)) is not None:
            return self.fields(x, names, level)
        return " ".join(super().repr_instance(x, level).split())

    def fields(self, x: Any, names: Any, level: int) -> str:
        shown = ", ".join(f"{name}={self.repr1(getattr(x, name), level - 1)}" for name in names)
        return f"{type(x).__qualname__}({shown})"


_brief = _Brief()


def brief(value: Any) -> str:
    """A value in one line.

    >>> import numpy as np
    >>> brief({"x": np.zeros((100, 3)), "rate": 0.5, "ids": list(range(1000))})
    "{'ids': [0, 1, 2, 3, 4, 5, 6, 7, ...], 'rate': 0.5, 'x': float64[100,3]}"
    """
    return _brief.repr(value)


class Brief:
    """A base of dataclasses with ``repr=False``, which are shown in one line."""

    def __repr__(self) -> str:
        return brief(self)
