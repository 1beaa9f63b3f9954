"""TensorFlow Federated's HDF5 files: ``examples/<client>/<feature>``, one array per feature.

The format of EMNIST (``pixels``, ``label``), Shakespeare (``snippets``), CIFAR-100 (``image``, ``label``,
``coarse_label``) and StackOverflow (``tokens``, ``title``, ``tags``, ``type``, ``score``, ``creation_date``). Reading
them needs h5py, and happens in a process of its own: see `_hdf5`.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedspam._internal import checks
from fedspam._internal.reading import check_texts, guarded, missing, regular, shown, unpacked
from fedspam.datasets.federated import FederatedData

NAMES = {"pixels": "features", "image": "features"}  # their names in this library
KIND = "a file of TensorFlow Federated"
SCRIPT = Path(__file__).with_name("_hdf5.py")


def read_tff(
    path: str | Path, *, features: Sequence[str] | None = None, clients: Sequence[str] | int | None = None
) -> FederatedData:
    """The clients of a file, such as ``fed_emnist_train.h5``; ``pixels`` and ``image`` become ``features``.

    Arguments:
        path: the file.
        features: the columns to read, by their names in the file; None for all that the first client has.
        clients: their names, or how many from the first on; None for all. StackOverflow's 342,477 do not fit
            into most memories: read some, or all one by one with `stream_tff`.

    Reddi et al.: Adaptive federated optimization, 2020, arXiv:2003.00295, describes the four data sets.
    """
    path = Path(path)
    with guarded(path, KIND):
        return FederatedData.of(stream_tff(path, features=features, clients=clients))


def stream_tff(
    path: str | Path, *, features: Sequence[str] | None = None, clients: Sequence[str] | int | None = None
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """One client after another; the arguments are those of `read_tff`."""
    if importlib.util.find_spec("h5py") is None:
        raise missing("h5py")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not a file; give one of TensorFlow Federated, such as fed_emnist_train.h5")
    if isinstance(clients, int):
        checks.whole("clients", clients, 1)
    with regular(path, KIND) as opened:
        most = unpacked(os.fstat(opened.fileno()).st_size, "rb")
    named = clients if clients is None or isinstance(clients, int) else list(clients)
    asked = {"path": str(path), "features": features if features is None else list(features), "clients": named}
    command = [sys.executable, "-P", str(SCRIPT), json.dumps({**asked, "most": most})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            yield from _parts(child.stdout, path, most)
        finally:
            child.kill()


def _parts(answers: IO[bytes] | None, path: Path, left: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """What the script sends. It may have been led astray by the file, so its answers are checked like a file."""
    while True:
        try:
            length = int.from_bytes(_bytes(answers, 8), "little")
            message = json.loads(_bytes(answers, min(length, 8 * (left + 2**20))))
        except EOFError:
            raise ValueError(
                f"{path} makes the HDF5 library crash, hang, or take more time or memory than is usual for a file of "
                "this size; fetch it again, or read some of its clients: clients="
            ) from None
        if "client" not in message:
            if "error" in message:
                raise ValueError(str(message["error"]))
            return
        where = f"{path}: examples/{message['client']}"
        columns = {}
        for feature, dtype, shape, texts in message["columns"]:
            if texts is None:
                size = math.prod(shape) * np.dtype(dtype).itemsize
                column = np.frombuffer(_bytes(answers, min(size, left + 1)), dtype).reshape(shape)
            else:
                check_texts(texts, f"{where}/{feature}")
                column = np.asarray(texts, dtype=str).reshape(shape)
            left -= column.nbytes
            if NAMES.get(feature, feature) in columns:
                names = ", ".join(each[0] for each in message["columns"])
                raise ValueError(f"{where}: {shown(names)} have one name here; choose: features=")
            columns[NAMES.get(feature, feature)] = column
        yield message["client"], columns


def _bytes(answers: IO[bytes] | None, size: int) -> bytes:
    data = answers.read(size) if answers else b""
    if len(data) < size:
        raise EOFError
    return data
