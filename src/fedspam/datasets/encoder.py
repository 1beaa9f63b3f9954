"""From the columns of a table to a matrix of features: learned on the training rows, saved with the model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Float

from fedspam._internal.nearest import nearest
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.standardizer import Standardizer
from fedspam.datasets.table import Table

Matrix = Float[np.ndarray, "rows features"]
MOST_CATEGORIES = 1000  # of one column
FEW_CATEGORIES = 20  # that a column may have whatever its number of rows
SHOWN = 3  # examples in a note
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class NumberColumn(msgspec.Struct, frozen=True, tag_field="kind", tag="number"):
    """A column of numbers. A missing one becomes `fill`; with `indicator`, a second feature says so."""

    name: str
    fill: float  # the mean of the training rows
    indicator: bool  # whether a value was missing in training

    @property
    def features(self) -> list[str]:
        return [self.name, *([f"{self.name} is missing"] if self.indicator else [])]

    def encode(self, values: np.ndarray) -> Matrix:
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        return np.stack([filled, missing] if self.indicator else [filled], axis=1)

    def notes(self, values: np.ndarray) -> list[str]:
        missing = int(np.isnan(values).sum())
        if not missing or self.indicator:
            return []
        return [
            f"{self.name} is missing in {_rows(missing)}, and never was in training: the mean {self.fill:.4g} is used"
        ]


class CategoryColumn(msgspec.Struct, frozen=True, tag_field="kind", tag="category"):
    """A column of text: one feature per category, 1 where a row has it. Unknown texts have 0 in all of them."""

    name: str
    categories: tuple[str, ...]
    indicator: bool  # whether a value was missing in training

    @property
    def features(self) -> list[str]:
        return [
            *(f"{self.name}={category}" for category in self.categories),
            *([f"{self.name} is missing"] if self.indicator else []),
        ]

    def encode(self, values: np.ndarray) -> Matrix:
        known = (*self.categories, "") if self.indicator else self.categories
        return np.stack([values == category for category in known], axis=1).astype(np.float64)

    def notes(self, values: np.ndarray) -> list[str]:
        unseen = Counter(value for value in values.tolist() if value and value not in self.categories)
        found = []
        if unseen:
            some = ", ".join(f"{value!r} ({count})" for value, count in unseen.most_common(SHOWN))
            more = f" and {len(unseen) - SHOWN} more" if len(unseen) > SHOWN else ""
            found.append(
                f"{self.name} has a category that training has not seen in {_rows(unseen.total())}: {some}{more}; its "
                "features are 0 there"
            )
        missing = int(np.sum(values == ""))
        if missing and not self.indicator:
            found.append(f"{self.name} is missing in {_rows(missing)}, and never was in training: its features are 0")
        return found


@dataclass(frozen=True)
class Encoder:
    """How rows become the features that a model takes, and numbers become names of classes.

    Build it with `Encoder.of_table` or `Encoder.of_arrays`, from the training rows only. It is saved with the model, so
    that new rows are treated as those in training.

    Arguments:
        columns: of the table; None where features come as arrays.
        scale: the mean and deviation of each feature.
        intercept: whether a last feature is always 1.
        label: the name of the column to predict.
        classes: the names of the classes in the order of their numbers; () where labels are numbers.

    >>> from fedspam.datasets import read_table
    >>> table = {"site": "aabb", "age": [30, 50, None, 40], "city": ["Rome", "Bonn", "Rome", ""], "ill": "nyyn"}
    >>> data = read_table(table, client="site", label="ill")
    >>> encoder = Encoder.of_table(data, label="ill")
    >>> encoder.names
    ['age', 'age is missing', 'city=Bonn', 'city=Rome', 'city is missing']
    >>> rows = encoder.examples(data)
    >>> rows["b"]["features"].round(2).tolist(), rows["b"]["label"].tolist()
    ([[0.0, 1.73, -0.58, 1.0, -0.58], [0.0, -0.58, -0.58, -1.0, 1.73]], [1, 0])
    """

    columns: tuple[NumberColumn | CategoryColumn, ...] | None
    scale: Standardizer
    intercept: bool = False
    label: str = "label"
    classes: tuple[str, ...] = ()

    @classmethod
    def of_table(
        cls,
        train: FederatedData,
        *,
        label: str = "label",
        classes: Sequence[str] | None = None,
        standardize: bool = True,
        intercept: bool = False,
    ) -> "Encoder":
        """From the training rows of `read_table`, which have one array per column besides ``label``.

        Arguments:
            train: the training rows.
            label: the name of the column to predict, for the names of predictions.
            classes: their names; None for the texts of ``label``, in order; () where labels are numbers.
            standardize: whether features are scaled to mean 0 and deviation 1.
            intercept: whether to add a feature that is always 1.
        """
        columns = tuple(_learned(name, values) for name, values in train.examples.items() if name != "label")
        if not columns:
            raise ValueError("the table has no features besides client and label; add at least one column")
        classes = class_names(train.examples["label"].tolist()) if classes is None else tuple(classes)
        blank = cls(columns, UNSCALED, False, label, classes)
        scale = Standardizer.of(blank(train.examples)) if standardize else UNSCALED
        return cls(columns, scale, intercept, label, classes)

    @classmethod
    def of_arrays(
        cls,
        features: np.ndarray,
        *,
        label: str = "label",
        classes: Sequence[str] = (),
        standardize: bool = True,
        intercept: bool = False,
    ) -> "Encoder":
        """From the training rows as an array, each row of which becomes one vector."""
        scale = Standardizer.of(_flat(features)) if standardize else UNSCALED
        return cls(None, scale, intercept, label, tuple(classes))

    @property
    def names(self) -> list[str]:
        """The names of the encoded features; empty where features come as arrays."""
        found = [name for column in self.columns or () for name in column.features]
        return [*found, *(["intercept"] if self.intercept and found else [])]

    @property
    def width(self) -> int:
        """The number of encoded features of a table."""
        return len(self.names)

    def __call__(self, rows: Any) -> Matrix:
        """The features of rows: of columns by name, or of an array."""
        if self.columns is None:
            return self.scale(_flat(rows), intercept=self.intercept)
        parts = [column.encode(rows[column.name]) for column in self.columns]
        return self.scale(np.concatenate(parts, axis=1), intercept=self.intercept)

    def examples(self, data: FederatedData) -> FederatedData:
        """Clients with ``features`` as one matrix and ``label`` as numbers, from the rows of `read_table`."""
        return data.map(lambda columns: {"features": self(columns), "label": self.labels(columns["label"])})

    def labels(self, texts: np.ndarray) -> np.ndarray:
        """The numbers of classes, or the labels as numbers where they are not classes."""
        if not self.classes:
            return np.asarray(texts, np.float64)
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = next((text for text in texts.tolist() if text not in numbers), None)
        if unknown is not None:
            raise ValueError(
                f"{self.label} is {unknown!r}, which is not a class of the training rows "
                f"({', '.join(self.classes[:10])}); give the names of all: classes="
            )
        return np.asarray([numbers[text] for text in texts.tolist()], np.int32)

    def read(self, table: Table) -> dict[str, np.ndarray]:
        """The columns that are needed from a table of new rows; it may have others, too."""
        assert self.columns is not None
        lacking = [column.name for column in self.columns if column.name not in table.cells]
        if lacking:
            near = nearest(lacking[0], table.names)
            hint = f"; is {near!r} {lacking[0]!r}? Rename it" if near else "; add them"
            columns = "the column" if len(lacking) == 1 else "the columns"
            raise ValueError(
                f"{table.source} lacks {columns} {', '.join(lacking)}, which the model was trained with; it has "
                f"{', '.join(table.names)}{hint}"
            )
        return {
            column.name: (table.numbers if isinstance(column, NumberColumn) else table.texts)(column.name)
            for column in self.columns
        }

    def notes(self, columns: Mapping[str, np.ndarray]) -> list[str]:
        """How new rows differ from those in training, in words: unseen categories, values never missing before."""
        return [note for column in self.columns or () for note in column.notes(columns[column.name])]

    def described(self) -> dict[str, Any]:
        """The encoder as plain JSON."""
        return {
            "columns": None if self.columns is None else [msgspec.to_builtins(column) for column in self.columns],
            "mean": self.scale.mean.tolist(),
            "deviation": self.scale.deviation.tolist(),
            "intercept": self.intercept,
            "label": self.label,
            "classes": list(self.classes),
        }

    @classmethod
    def of_description(cls, facts: Mapping[str, Any]) -> "Encoder":
        """The encoder that `described` describes."""
        found = msgspec.convert(facts, _EncoderFacts)
        mean, deviation = np.asarray(found.mean, np.float64), np.asarray(found.deviation, np.float64)
        encoder = cls(found.columns, Standardizer(mean, deviation), found.intercept, found.label, found.classes)
        width = encoder.width - encoder.intercept if encoder.columns is not None else mean.size
        if mean.shape != deviation.shape or (mean.shape and mean.size != width):
            raise ValueError(f"{mean.size} means and {deviation.size} deviations of {width} features")
        return encoder


class _EncoderFacts(msgspec.Struct):
    """What `Encoder.described` writes, with its types."""

    columns: tuple[NumberColumn | CategoryColumn, ...] | None
    mean: float | list[float]
    deviation: _Positive | list[_Positive]
    intercept: bool
    label: str
    classes: tuple[str, ...]


UNSCALED = Standardizer(np.zeros(()), np.ones(()))


def class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels in order: by value where all are whole numbers, else alphabetically.

    >>> class_names(["10", "9", "9"])
    ('9', '10')
    """
    names = sorted(set(labels))
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(names)


def _learned(name: str, values: np.ndarray) -> NumberColumn | CategoryColumn:
    """How a column becomes features, from its values in the training rows."""
    leave_out = "leave the column out (drop, or features without it)"
    if values.dtype != object:
        known = values[~np.isnan(values)]
        if not known.size:
            raise ValueError(f"the column {name!r} has no value in the training rows; {leave_out}")
        return NumberColumn(name, float(known.mean()), known.size < values.size)
    known = [value for value in values.tolist() if value]
    categories = sorted(set(known))
    if not categories:
        raise ValueError(f"the column {name!r} has no value in the training rows; {leave_out}")
    if len(categories) > MOST_CATEGORIES or len(categories) > max(FEW_CATEGORIES, len(known) / 2):
        raise ValueError(
            f"the column {name!r} has {len(categories)} different texts in {len(known)} rows, such as "
            f"{categories[0]!r}: it looks like a name or a date, not like a category; {leave_out}, or group its values"
        )
    return CategoryColumn(name, tuple(categories), len(known) < values.size)


def _flat(features: Any) -> np.ndarray:
    features = np.asarray(features, np.float64)
    return features.reshape(len(features), -1)


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"
