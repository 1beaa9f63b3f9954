"""Shakespeare's plays by speaking role, for predicting the next character."""

from pathlib import Path
from typing import NamedTuple

from fedspam._internal import checks, strict
from fedspam._internal.reading import guarded, opened
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.text import encode, sequences

FILE = "shakespeare/shakespeare_by_role.json"
MOST_BYTES = 2**26  # the file of the plays has 5 million
DEPTH = 10
MOST_ROLES = 10_000  # there are 1,128
KIND = "the JSON of speeches by role"


class Shakespeare(NamedTuple):
    """Rows of text by role: the first part of what each role says, and the rest."""

    train: FederatedData
    test: FederatedData


def read_roles(folder: str | Path | None = None) -> dict[str, str]:
    """What each of the 1,128 roles of ``shakespeare/shakespeare_by_role.json.gz`` says, speeches joined by newlines."""
    path = data_path(FILE, folder, endings=(".gz", ""))
    with opened(path, "rb", KIND, most=MOST_BYTES) as file:
        read = strict.json_object(file.read(), size=MOST_BYTES, depth=DEPTH)
        roles = read.get("clients")
        is_texts = lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not isinstance(roles, dict) or not all(map(is_texts, roles.values())):
            raise ValueError(f"{path} has no object 'clients' of roles and lists of speeches; give {KIND}")
        if len(roles) > MOST_ROLES:
            raise ValueError(f"{path} has {len(roles)} roles, at most {MOST_ROLES} are read; give {KIND}")
    return {role: "\n".join(speeches) for role, speeches in roles.items()}


def read_shakespeare(
    folder: str | Path | None = None, *, length: int = 80, share: float = 0.8, least: int = 100
) -> Shakespeare:
    """The roles' text as rows of `length` characters and the ones that follow each: ``features`` and ``label``.

    Arguments:
        folder: as in `data_folder`.
        length: characters in a row.
        share: of each role's characters, from the first on, for training; the others are the test.
        least: roles with fewer characters are left out.

    McMahan et al.: Communication-efficient learning of deep networks from decentralized data, 2017, arXiv:1602.05629.
    """
    checks.between("share", share, 0.01, 0.99)
    checks.whole("least", least, 10)
    train, test = [], []
    with guarded(data_path(FILE, folder, endings=(".gz", "")), KIND):
        for role, text in read_roles(folder).items():
            if len(text) >= least:
                codes = encode(text)
                cut = int(share * len(codes))
                train.append((role, sequences(codes[:cut], length)))
                test.append((role, sequences(codes[cut:], length)))
        return Shakespeare(FederatedData.of(train), FederatedData.of(test))
