"""What in a table makes a model look better than it is: ids, columns that tell the label, rows that come twice."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import jax
import numpy as np

from fedspam.datasets.encoder import FEW_CATEGORIES
from fedspam.datasets.federated import FederatedData
from fedspam.simulation.metrics import METRICS

FEWEST = 30  # rows below which nothing is suspicious
FEWEST_OF_CLASS = 10  # rows of a class, and of all others, below which chance may tell them apart
UNIQUE = 0.95  # the share of different values above which whole numbers look like ids
REPEATED = 5  # rows that a text should have on average
TELLING, CORRELATED = 0.95, 0.99  # the AUC of a class, or the correlation with a number, that one column rarely has
MOST_CLASSES = 10  # that are looked at, the most frequent ones
COPIES, BY_CHANCE = 0.01, 10  # the share of copies, and how many times more than by chance
DROP = "leave it out (data.drop)"


def suspicions(
    train: FederatedData, test: FederatedData | None = None, *, label: str = "label", classes: Sequence[str] = ()
) -> list[str]:
    """What to look at before a model on these rows is believed, in sentences; empty where nothing is suspicious.

    Arguments:
        train: the training rows of `read_table`; ``label`` as numbers.
        test: the test rows.
        label: the name of the column to predict.
        classes: the names of the classes; () where labels are numbers.

    >>> table = {"site": "ab" * 40, "patient": range(80), "ill": "0" * 40 + "1" * 40}
    >>> from fedspam.datasets import read_table
    >>> rows = read_table(table, client="site", label="ill").map(lambda c: {**c, "label": c["label"].astype(int)})
    >>> for told in suspicions(rows, label="ill", classes=["0", "1"]):
    ...     print(told)
    patient has 80 different whole numbers in 80 training rows, as an id has; if it is one, leave it out (data.drop)
    patient alone tells whether ill is 1 (AUC 1.000): if it is not known before ill is, leave it out (data.drop)
    """
    columns = {name: values for name, values in train.examples.items() if name != "label"}
    if train.rows < FEWEST:
        return []
    labels = np.asarray(train.examples["label"])
    ids = (told for name, values in columns.items() for told in _id(name, values))
    telling = (told for name, values in columns.items() for told in _telling(name, values, labels, label, classes))
    return list(chain(ids, telling, _copies(train.examples, {} if test is None else test.examples)))


def _id(name: str, values: np.ndarray) -> Iterator[str]:
    is_text = values.dtype == object
    known = values[values != ""] if is_text else values[~np.isnan(values)]
    different = len(set(known.tolist()))
    if is_text and different > max(FEW_CATEGORIES, len(known) / REPEATED):
        yield (
            f"{name} has {different} different texts in {len(known)} training rows, so that a model may learn rows by "
            f"heart; group its values, or {DROP}"
        )
    if not is_text and len(known) >= FEWEST and different >= UNIQUE * len(known) and np.all(known == np.rint(known)):
        yield (
            f"{name} has {different} different whole numbers in {len(known)} training rows, as an id has; if it is "
            f"one, {DROP}"
        )


def _telling(name: str, values: np.ndarray, labels: np.ndarray, label: str, classes: Sequence[str]) -> Iterator[str]:
    """Whether a column alone, or that it has no value, tells the label."""
    missing = values == "" if values.dtype == object else np.isnan(values)
    remedy = f"if it is not known before {label} is, {DROP}"
    if not classes:
        known = ~missing
        if values.dtype != object and known.sum() >= FEWEST and np.ptp(values[known]) > 0 and np.ptp(labels[known]) > 0:
            found = abs(np.corrcoef(values[known], labels[known])[0, 1])
            if found >= CORRELATED:
                yield f"{name} alone nearly is {label} (correlation {found:.4f}): {remedy}"
        return
    counts = np.bincount(labels, minlength=len(classes))
    frequent = np.argsort(-counts, kind="stable")[:MOST_CLASSES]
    for number in frequent[1:] if len(classes) == 2 else frequent:  # of two classes, the rarer one is enough
        its = labels == number
        if min(its.sum(), (~its).sum()) < FEWEST_OF_CLASS:
            continue
        scores = [_rates(values, its)] if values.dtype == object else [np.where(missing, np.nanmean(values), values)]
        best = max(_apart(score, its) for score in [*scores, *([missing.astype(float)] if missing.any() else [])])
        if best >= TELLING:
            yield f"{name} alone tells whether {label} is {classes[number]} (AUC {best:.3f}): {remedy}"
            return


def _apart(scores: np.ndarray, its: np.ndarray) -> float:
    with jax.enable_x64(True):
        area = float(METRICS["auc"](its.astype(np.int32), scores))
    return max(area, 1 - area)


def _rates(texts: np.ndarray, its: np.ndarray) -> np.ndarray:
    """How often rows with a text are of the class, learned on every second row for the others."""
    _, codes = np.unique(texts.astype(str), return_inverse=True)
    rates = np.empty(len(texts))
    for half in (0, 1):
        seen, others = np.arange(len(texts)) % 2 == half, np.arange(len(texts)) % 2 != half
        rows = np.bincount(codes[seen], minlength=codes.max() + 1)
        hits = np.bincount(codes[seen], its[seen], minlength=codes.max() + 1)
        rates[others] = np.where(rows > 0, hits / np.maximum(rows, 1), its.mean())[codes[others]]
    return rates


def _copies(train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Rows that are equal in all columns, if there are many more than columns without relation would have."""
    first = len(train["label"])
    columns = {name: np.concatenate([values, test[name]]) if test else values for name, values in train.items()}
    rows = len(columns["label"])
    codes, chance = np.zeros(rows, np.uint64), 1.0
    for values in columns.values():
        _, code, counts = np.unique(
            values.astype(str) if values.dtype == object else values, return_inverse=True, return_counts=True
        )
        codes = codes * np.uint64(6364136223846793005) + code.astype(np.uint64) + np.uint64(1)  # a hash, modulo 2^64
        chance *= float(np.sum(counts * (counts - 1.0))) / (rows * (rows - 1))
    counts = np.unique(codes, return_counts=True)[1].astype(np.float64)
    copies, pairs = rows - len(counts), float(np.sum(counts * (counts - 1) / 2))
    if copies < COPIES * rows or pairs <= BY_CHANCE * chance * rows * (rows - 1) / 2:
        return
    shared = int(np.isin(codes[first:], codes[:first]).sum())
    known = f", and {shared} of {rows - first} test rows are also training rows" if shared else ""
    yield f"{copies} of {rows} rows are copies of others{known}; drop the copies before rows are held out"
