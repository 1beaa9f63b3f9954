"""The rows and probes of runs as one long table, for Arrow, pandas and polars."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedspam._internal.reading import missing

Columns = Mapping[str, np.ndarray]


def arrow_table(rows: Columns, probes: Columns, every: int, rounds_done: Any) -> Any:
    """One line per run and round, the start first. What is not known there is null.

    A table of several runs has columns `setting` and `seed`: their places in the lists of methods and of keys. A probe
    that has the name of a row is called ``probe.<name>``.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise missing("pyarrow") from None
    several = rounds_done is not None
    done = np.asarray(rounds_done) if several else np.array([[next(iter(rows.values())).shape[-1]]])
    runs = list(np.ndindex(done.shape))
    rounds = [np.arange(int(done[run]) + 1) for run in runs]
    columns = {"round": pa.array(np.concatenate(rounds))}
    if several:
        for axis, name in enumerate(("setting", "seed")):
            columns[name] = pa.array(np.repeat([run[axis] for run in runs], [len(each) for each in rounds]))

    def add(name: str, table: np.ndarray, at: Any) -> None:
        table = table if several else table[None, None]
        places = [at(run_rounds) for run_rounds in rounds]  # of the values, -1 where there is none
        known = [table[run][np.maximum(place, 0)] for run, place in zip(runs, places, strict=True)]
        values, nothing = np.concatenate(known), np.concatenate(places) < 0
        columns[name] = pa.array(values if values.ndim == 1 else list(values.tolist()), mask=nothing)

    for name, column in rows.items():
        add(name, column, lambda rounds: rounds - 1)
    for name, column in probes.items():
        evaluated = lambda rounds: np.where(rounds % every == 0, rounds // every, -1)
        add(f"probe.{name}" if name in columns else name, column, evaluated)
    return pa.table(columns)


def frame(table: Any, package: str) -> Any:
    """The table as a DataFrame of pandas or polars."""
    try:
        if package == "pandas":
            import pandas as pd  # noqa: F401  # pyright: ignore[reportMissingImports]

            return table.to_pandas()
        import polars as pl  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise missing(package) from None
    return pl.from_arrow(table)
