"""Everything that a report draws as one tidy table, CSV or Parquet: one row per point of each curve."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspam.app.folders import csv_text
from fedspam.app.report.series import MEASURES, Curve, Series, Source
from fedspam.simulation import records

COLUMNS = ("folder", "series", "kind", "name", "trial", *MEASURES, "value", "low", "high")


def rows(sources: Sequence[Source]) -> Iterable[list[Any]]:
    """Folder, series, kind and name of the curve, setting, costs so far, value and band; None where unknown."""
    for source in sources:
        for series in source.series:
            for kind, name, curve in _curves(series):
                paid = [series.paid[key].after(curve.at) if key in series.paid else None for key in MEASURES]
                band = [curve.value, curve.low, curve.high]
                for i in range(len(curve.at)):
                    numbers = (None if part is None else float(part[i]) for part in (*paid, *band))
                    yield [*map(printable, (source.folder.name, series.name, kind, name)), series.trial, *numbers]


def _curves(series: Series) -> Iterable[tuple[str, str, Curve]]:
    for kind, curves in (("metric", series.metrics), ("bound", series.bounds), ("detail", series.details)):
        for name, curve in curves.items():
            yield kind, name, curve
    for name, levels in series.clients.items():
        for percent, curve in levels.items():
            yield "clients", f"{name}.q{percent:02d}", curve
    for part, name in (("along", "share"), ("relative", "relative")):
        if series.certificates and part in series.certificates:
            yield "certificate", name, series.certificates[part]


def write_csv(sources: Sequence[Source], path: Path) -> None:
    text = lambda value: "" if value is None else f"{value:.10g}"
    found = ([*row[:4], *map(text, row[4:])] for row in rows(sources))  # the trial, a whole number, as well
    records.write(path, csv_text(COLUMNS, found).encode())


def write_parquet(sources: Sequence[Source], path: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise RuntimeError("Parquet needs pyarrow: pip install pyarrow, or write CSV instead") from None
    columns = list(zip(*rows(sources), strict=True)) or [()] * len(COLUMNS)
    kinds = [pa.string()] * 4 + [pa.int64()] + [pa.float64()] * (len(COLUMNS) - 5)
    arrays = [pa.array(column, kind, from_pandas=False) for column, kind in zip(columns, kinds, strict=True)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(COLUMNS, arrays, strict=True))), out, compression="zstd")
    records.write(path, out.getvalue().to_pybytes())


def printable(text: str) -> str:
    """The text with "?" for lone surrogates, which no file can hold; names of folders may have them."""
    return text.encode("utf-8", "replace").decode()


def finite(values: Any) -> list[float | None]:
    """Numbers with six digits for JSON; None for NaN and infinity, which JSON does not have."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, np.float64)]
