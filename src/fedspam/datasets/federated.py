"""Examples by client, concatenated into one array per column: what every reader of federated data returns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer
from numpy.typing import ArrayLike

from fedspam._internal import checks
from fedspam._internal.brief import Brief
from fedspam._internal.reading import shown
from fedspam.clients import Loss, Ragged

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, repr=False)
class FederatedData(Brief):
    """Clients and their examples. Build it with a reader, with `FederatedData.of` or with `FederatedData.by`.

    Arguments:
        clients: their names.
        examples: one array per column; the rows of the first client come first, then those of the second, ...
        sizes: how many rows each client has.

    >>> data = FederatedData.of([("ann", {"x": [[1.0], [2.0]], "y": [0, 1]}), ("bob", {"x": [[3.0]], "y": [1]})])
    >>> data.clients, data.sizes.tolist(), data["bob"]["x"].tolist()
    (('ann', 'bob'), [2, 1], [[3.0]])
    """

    clients: tuple[str, ...]
    examples: Columns
    sizes: Integer[np.ndarray, " clients"]

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("there are no clients; give at least one")
        if len(self.clients) != len(self.sizes):
            raise ValueError(
                f"there are {len(self.clients)} clients and {len(self.sizes)} sizes; give one size per client"
            )
        _check_names(self.clients)
        rows = int(np.sum(self.sizes))
        for name, column in self.examples.items():
            if len(column) != rows:
                raise ValueError(f"the column {name!r} has {len(column)} rows, the sizes add up to {rows}")

    @classmethod
    def of(cls, parts: Iterable[tuple[str, Mapping[str, ArrayLike]]]) -> "FederatedData":
        """From pairs of a client and its columns; several parts of one client are joined."""
        found: dict[str, list[dict[str, np.ndarray]]] = {}
        first: dict[str, np.ndarray] = {}
        for client, columns in parts:
            rows = {name: np.asarray(column) for name, column in columns.items()}
            first = first or rows
            check_part(client, rows, first)
            found.setdefault(client, []).append(rows)
        if not found:
            raise ValueError("there are no clients; give at least one")
        order = [(client, part) for client, parts in found.items() for part in parts]
        examples = {name: np.concatenate([part[name] for _, part in order]) for name in first}
        column = next(iter(first))
        sizes = [sum(len(part[column]) for part in parts) for parts in found.values()]
        return cls(tuple(found), examples, np.asarray(sizes, np.int64))

    @classmethod
    def by(
        cls, examples: Mapping[str, ArrayLike], owners: ArrayLike, names: Sequence[Any] | None = None
    ) -> "FederatedData":
        """From rows in any order and the client of each, as `iid`, `dirichlet`, `shards` and `by_key` return it.

        Arguments:
            examples: one array per column.
            owners: for every row the number of its client, from 0 on.
            names: of the clients; None for their numbers.

        >>> FederatedData.by({"x": [10, 20, 30]}, [1, 0, 1])["1"]["x"].tolist()
        [10, 30]
        """
        owners = np.asarray(owners)
        if owners.ndim != 1 or not np.issubdtype(owners.dtype, np.integer) or (owners.size and owners.min() < 0):
            raise ValueError("owners must be one whole number per row, from 0 on; see fedspam.datasets.by_key")
        sizes = np.bincount(owners, minlength=0 if names is None else len(names))
        named = range(len(sizes)) if names is None else names
        order = np.argsort(owners, kind="stable")
        columns = {name: np.asarray(column) for name, column in examples.items()}
        for name, column in columns.items():
            if len(column) != len(owners):
                raise ValueError(f"the column {name!r} has {len(column)} rows, there are {len(owners)} owners")
        return cls(tuple(map(str, named)), {name: column[order] for name, column in columns.items()}, sizes)

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for number, client in enumerate(self.clients):
            yield client, self._rows(number)

    def __getitem__(self, client: str) -> dict[str, np.ndarray]:
        if client not in self.clients:
            raise KeyError(f"there is no client {client!r}; the first are {', '.join(self.clients[:5])}")
        return self._rows(self.clients.index(client))

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return int(self.sizes.sum())

    def _rows(self, number: int) -> dict[str, np.ndarray]:
        begin = int(self.sizes[:number].sum())
        return {name: column[begin : begin + int(self.sizes[number])] for name, column in self.examples.items()}

    def map(self, function: Callable[[Columns], Mapping[str, Any]]) -> "FederatedData":
        """The same clients with other columns: `function` gets all columns at once and keeps the number of rows."""
        examples = {name: np.asarray(column) for name, column in function(self.examples).items()}
        return FederatedData(self.clients, examples, self.sizes)

    def take(self, clients: Iterable[int | str]) -> "FederatedData":
        """Some of the clients, by number or name, in the order given."""
        place = {client: number for number, client in enumerate(self.clients)}
        wanted = [int(who) if isinstance(who, int | np.integer) else place[who] for who in clients]
        begins = np.cumsum(self.sizes) - self.sizes
        rows = np.concatenate([np.arange(begins[i], begins[i] + self.sizes[i]) for i in wanted] or [np.zeros(0, int)])
        examples = {name: column[rows] for name, column in self.examples.items()}
        return FederatedData(tuple(self.clients[i] for i in wanted), examples, self.sizes[wanted])

    def hold_out_clients(self, share: float = 0.2, *, seed: int = 0) -> tuple["FederatedData", "FederatedData"]:
        """Clients to train with, and others that training never sees; at least one of each."""
        _share(share)
        if len(self) < 2:
            raise ValueError("there is one client only; hold out examples instead: hold_out_examples")
        count = min(max(1, round(share * len(self))), len(self) - 1)
        held = np.random.default_rng(seed).permutation(len(self))[:count]
        chosen = np.isin(np.arange(len(self)), held)
        return self.take(np.flatnonzero(~chosen).tolist()), self.take(np.flatnonzero(chosen).tolist())

    def hold_out_examples(self, share: float = 0.2, *, seed: int | None = 0) -> tuple["FederatedData", "FederatedData"]:
        """Examples to train with, and a share of every client's that training never sees.

        The share is rounded, and at least one example stays for training. A client with few examples may have none
        held out; it then has no part in the evaluation.

        Arguments:
            share: of each client's rows to hold out.
            seed: of the random choice; None holds out the last rows, for data with an order, such as text.
        """
        _share(share)
        held = np.zeros(self.rows, bool)
        random = None if seed is None else np.random.default_rng(seed)
        for begin, size in zip(np.cumsum(self.sizes) - self.sizes, self.sizes, strict=True):
            count = min(round(share * int(size)), int(size) - 1)
            order = np.arange(size)[::-1] if random is None else random.permutation(size)
            held[begin + order[: max(count, 0)]] = True
        owner = np.repeat(np.arange(len(self)), self.sizes)
        halves = []
        for chosen in (~held, held):
            examples = {name: column[chosen] for name, column in self.examples.items()}
            halves.append(FederatedData(self.clients, examples, np.bincount(owner[chosen], minlength=len(self))))
        return halves[0], halves[1]

    def population(
        self, loss: Loss, *, batch: int | None = None, replace: bool = False, weighted: bool = False
    ) -> Ragged:
        """The clients as a population on the device; the arguments are those of `Ragged.of`."""
        return Ragged.of_sizes(
            dict(self.examples), self.sizes.tolist(), loss, batch=batch, replace=replace, weighted=weighted
        )


def _check_names(clients: Sequence[str]) -> None:
    if len(set(clients)) != len(clients):
        twice = next(name for name, count in Counter(clients).items() if count > 1)
        raise ValueError(f"the client {shown(twice)!r} comes twice; join its rows, or rename one of the two")
    for number, name in enumerate(clients):
        # NumPy drops NUL at the end of a text, and files cannot hold lone surrogates
        if not name.strip() or "\0" in name or any("\ud800" <= sign <= "\udfff" for sign in name):
            raise ValueError(
                f"client {number} is called {shown(name)!r}; a name must have a visible character, and neither NUL nor "
                "half of a surrogate pair: name it"
            )


def _group(column: np.ndarray) -> str:
    return {"b": "booleans", "U": "text", "S": "text"}.get(column.dtype.kind, "numbers")


def check_part(client: str, rows: dict[str, np.ndarray], like: dict[str, np.ndarray]) -> None:
    """Check that a client has the columns and row shapes of the first client, and as many rows in every column."""
    if rows.keys() != like.keys():
        raise ValueError(
            f"client {shown(client)!r} has the columns {', '.join(rows)}, the first client has {', '.join(like)}; "
            "every client needs the same"
        )
    sizes = {len(column) if column.ndim else -1 for column in rows.values()}
    if len(sizes) != 1 or sizes == {-1}:
        raise ValueError(
            f"client {shown(client)!r} has columns of {sorted(sizes)} rows; all of them need the same number"
        )
    for name, column in rows.items():
        if column.dtype == object:
            raise ValueError(
                f"client {shown(client)!r}: {name!r} holds rows of different lengths; make them equal first"
            )
        if column.dtype.kind not in "biufUS":
            raise ValueError(f"client {shown(client)!r}: {name!r} holds {column.dtype}; give plain numbers or text")
        other = like[name]
        if column.dtype != other.dtype and column.size and other.size and _group(column) != _group(other):
            raise ValueError(
                f"client {shown(client)!r}: {name!r} holds {column.dtype}, that of the first client "
                f"{like[name].dtype}; give numbers, booleans or text for all"
            )
        if column.shape[1:] != like[name].shape[1:]:
            raise ValueError(
                f"client {shown(client)!r}: the rows of {name!r} have shape {column.shape[1:]}, those of the first "
                f"client {like[name].shape[1:]}; they must agree"
            )


def _share(share: float) -> None:
    checks.between("share", share, 0, 1, open_low=True)
    if share == 1:
        raise ValueError("share = 1 leaves nothing to train with; 0.2 is a common choice")
