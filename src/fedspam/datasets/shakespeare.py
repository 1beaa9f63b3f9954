"""Shakespeare's plays by speaking role, for predicting the next character."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedspam._internal import checks
from fedspam.datasets._reading import opened
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.text import encode, sequences

MOST_TEXT = 2**28


class Shakespeare(NamedTuple):
    """Rows of text by role: the first part of what each role says, and the rest."""

    train: FederatedData
    test: FederatedData


def read_roles(folder: str | Path | None = None) -> dict[str, str]:
    """What each of the 1,128 roles of ``shakespeare/shakespeare_by_role.json.gz`` says, speeches joined by newlines."""
    path = data_path("shakespeare/shakespeare_by_role.json", folder, endings=(".gz", ""))
    with opened(path, "rb", "the JSON of speeches by role") as file:
        text = file.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise ValueError(f"{path} holds more than {MOST_TEXT} bytes; fetch it again")
    try:
        read: Any = msgspec.json.decode(text, type=_Plays)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON of speeches by role ({error}); fetch it again") from None
    return {role: "\n".join(speeches) for role, speeches in read.clients.items()}


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
    for role, text in read_roles(folder).items():
        if len(text) >= least:
            codes = encode(text)
            cut = int(share * len(codes))
            train.append((role, sequences(codes[:cut], length)))
            test.append((role, sequences(codes[cut:], length)))
    return Shakespeare(FederatedData.of(train), FederatedData.of(test))


class _Plays(msgspec.Struct):
    """The layout of the file; other members are skipped."""

    clients: dict[str, list[str]]
