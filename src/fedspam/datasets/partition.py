"""Ways to split examples among clients.

Each returns for every row the number of its client, from 0 on, for `FederatedData.by`. Equal seeds give equal splits
on every machine.
"""

from typing import Any

import numpy as np
from jaxtyping import Integer
from numpy.typing import ArrayLike

from fedspam._internal import checks

Owners = Integer[np.ndarray, " rows"]
ATTEMPTS = 1000


def iid(rows: int, clients: int, *, seed: int = 0) -> Owners:
    """A random even split: sizes differ by at most one.

    >>> np.bincount(iid(10, 4)).tolist()
    [3, 3, 2, 2]
    """
    checks.whole("rows", rows, 1)
    _clients(clients, rows)
    return np.random.default_rng(seed).permutation(np.arange(rows) % clients)


def dirichlet(labels: ArrayLike, clients: int, alpha: float, *, least: int = 1, seed: int = 0) -> Owners:
    r"""Every class is split among the clients by shares drawn from Dirichlet(:math:`\alpha, \dots, \alpha`).

    The smaller alpha, the more the clients differ in labels and numbers of rows. Splits are drawn until every client
    has `least` rows.

    Arguments:
        labels: the class of each row.
        clients: how many.
        alpha: concentration; 100 is nearly even, 0.1 leaves most clients with one class.
        least: the fewest rows per client.
        seed: which split.

    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution, 2019, arXiv:1909.06335; class by class as
    in Yurochkin et al.: Bayesian nonparametric federated learning of neural networks, 2019, arXiv:1905.12022.

    >>> labels = np.repeat([0, 1], 50)
    >>> owners = dirichlet(labels, 5, alpha=0.5)
    >>> len(owners), len(set(owners.tolist()))
    (100, 5)
    """
    labels = _labels(labels)
    _clients(clients, len(labels))
    checks.positive("alpha", alpha, "1 is a common choice, smaller is less even")
    checks.whole("least", least, 1)
    if clients * least > len(labels):
        raise ValueError(
            f"{clients} clients with {least} rows each need {clients * least} rows, there are {len(labels)}"
        )
    random = np.random.default_rng(seed)
    for _ in range(ATTEMPTS):
        owners = np.empty(len(labels), int)
        for label in np.unique(labels):
            rows = random.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(random.dirichlet(np.full(clients, float(alpha)))) * len(rows)
            owners[rows] = np.searchsorted(np.floor(ends[:-1]), np.arange(len(rows)), side="right")
        if np.bincount(owners, minlength=clients).min() >= least:
            return owners
    raise ValueError(
        f"in {ATTEMPTS} draws with alpha = {alpha:g} some of the {clients} clients always had fewer than {least} rows; "
        "raise alpha, or lower least or clients"
    )


def by_key(keys: ArrayLike) -> tuple[Owners, list[Any]]:
    """One client per distinct key, such as a person, writer or hospital; and the keys in the order of the clients.

    >>> by_key(["b", "a", "b"])
    (array([1, 0, 1]), ['a', 'b'])
    """
    if isinstance(keys, list) and keys and any(isinstance(key, str) for key in keys):
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("the keys are partly text; give all as text, or all as numbers")
        names = sorted(set(keys))  # an array would pad every name to the longest
        place = {name: number for number, name in enumerate(names)}
        return np.fromiter(map(place.__getitem__, keys), int, len(keys)), names
    keys = _labels(keys)
    if keys.dtype.kind not in "biufUS" or (keys.dtype.kind == "f" and np.isnan(keys).any()):
        raise ValueError(f"the keys have dtype {keys.dtype}, or one is missing; give text or numbers, none of them NaN")
    values, owners = np.unique(keys, return_inverse=True)
    return owners, values.tolist()


def shards(labels: ArrayLike, clients: int, each: int = 2, *, seed: int = 0) -> Owners:
    """The pathological split: rows sorted by label, cut into equal shards, and `each` of them given to every
    client, which then sees about `each` classes.

    McMahan et al.: Communication-efficient learning of deep networks from decentralized data, 2017, arXiv:1602.05629.

    >>> labels = np.repeat(np.arange(10), 20)
    >>> owners = shards(labels, 10, each=2)
    >>> max(len(set(labels[owners == client])) for client in range(10)) <= 2
    True
    """
    labels = _labels(labels)
    checks.whole("each", each, 1)
    _clients(clients, len(labels))
    count = clients * each
    if count > len(labels):
        raise ValueError(f"{clients} clients with {each} shards each need {count} rows, there are {len(labels)}")
    random = np.random.default_rng(seed)
    # shuffled first, so that the rows of one class are in random order
    shuffled = random.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_shard = random.permutation(np.arange(count) % clients)
    owners = np.empty(len(labels), int)
    for shard, rows in enumerate(np.array_split(order, count)):
        owners[rows] = owner_of_shard[shard]
    return owners


def _labels(labels: ArrayLike) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"the labels have shape {labels.shape}; give one for each row")
    return labels


def _clients(clients: int, rows: int) -> None:
    checks.whole("clients", clients, 1)
    if clients > rows:
        raise ValueError(f"clients = {clients} exceeds the {rows} rows; every client needs at least one")
