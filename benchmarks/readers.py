"""The worst time and memory of the readers of data files, for hostile inputs under 10 MB.

  python benchmarks/readers.py                 all cases, as a Markdown table
  python benchmarks/readers.py csv leaf        those whose name begins so

Each case is read in a process of its own, whose memory is limited. It counts as passed if the file was read or refused
with its name within 5 s of processor time and 1 GB of resident memory; importing the library takes 0.2 GB of that.
"""

import argparse
import bz2
import gzip
import io
import json
import lzma
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOST_INPUT, MOST_SECONDS, MOST_MEMORY = 10**7, 5.0, 10**9
ADDRESSES = 8 * 2**30  # JAX maps much more than it uses
PACK = {
    ".gz": lambda data: gzip.compress(data, 6),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=1),
}


def filled(line: str, header: str = "", size: int = MOST_INPUT) -> bytes:
    """A text of so many bytes, of one line again and again."""
    body = line.encode()
    return header.encode() + body * ((size - len(header)) // len(body))


def numbered(line: str, header: str = "", size: int = MOST_INPUT) -> bytes:
    """A text of so many bytes, whose lines have numbers."""
    count = (size - len(header)) // len(line % 10**6)
    return (header + "".join(line % i for i in range(count))).encode()


def noisy(line: str, header: str, size: int) -> bytes:
    """Lines of random digits, which compress to a fourth or less."""
    width = line.count("%d")
    random = np.random.default_rng(0)
    rows = size // len(line % ((1,) * width))
    return (header + "".join(line % tuple(row) for row in random.integers(0, 3, (rows, width)).tolist())).encode()


def npz(save: Callable[..., None] = np.savez_compressed, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def claim() -> bytes:
    """An archive whose header says 4 GiB, in the header of the array and in that of the archive."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**32 - 200,)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "y.npy"):
            with archive.open(name, "w") as member:
                member.write(header.getvalue())
                for _ in range(20):
                    member.write(bytes(2**20))
    return file.getvalue()


def members(count: int = 100_000) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(count):
            archive.writestr(str(number), b"")
    return file.getvalue()


def hdf5(clients: int, rows: int) -> bytes:
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.h5"
        with h5py.File(path, "w", libver="latest") as file:
            for number in range(clients):
                file.create_dataset(f"examples/{number}/x", (rows,), "f8", chunks=True if rows > 9 else None)
        return path.read_bytes()


def arrow(ending: str, rows: int, columns: int) -> bytes:
    import pyarrow as pa
    from pyarrow import feather, parquet

    file = io.BytesIO()
    write = parquet.write_table if ending == "parquet" else feather.write_feather
    write(pa.table({f"n{i}": np.zeros(rows) for i in range(columns)}), file, compression="zstd")
    return file.getvalue()


def users(one: str, size: int = MOST_INPUT) -> bytes:
    count = (size - 20) // len(one % 10**6 + ",")
    return ('{"user_data": {' + ",".join(one % number for number in range(count)) + "}}").encode()


IDX = bytes([0, 0, 8, 1])
HUGE = IDX + (2**30).to_bytes(4, "big")
CELLS = "c," + ",".join("1" * 40) + "\n"
HEADER = ",".join(f"n{i}" for i in range(41)) + "\n"
WIDE = ",".join(map(str, range(12_000))) + "\n"
SVM = "1 " + " ".join(f"{i}:1" for i in range(1, 10)) + "\n"
USER = '"u%d":{"x":[1],"y":[1]}'
ROLES, ILL = "shakespeare/shakespeare_by_role.json", "heart_disease/processed.cleveland.data"


def user(x: bytes, y: bytes = b"1") -> bytes:
    return b'{"user_data":{"a":{"x":[' + x + b'],"y":[' + y + b"]}}}"


def two_users() -> bytes:
    """A long text in the first, short ones in the second: an array of both would be mostly padding."""
    short = b'"],"y":[1]},"b":{"x":["a"' + b',"a"' * 200_000
    return user(b'"' + b"x" * 8_500_000 + short, b"1" + b",1" * 200_000)


def packed(text: bytes) -> bytes:
    return gzip.compress(text, 6)


def by_client(datasets: Any, table: Any) -> Any:
    return datasets.read_table(table, client=table.names[0], label=table.names[1])


def parts(pack: Callable[[bytes], bytes]) -> bytes:
    """As many empty streams as fit, one behind the other."""
    return pack(b"") * (9_000_000 // len(pack(b""))) + pack(b"1 1:1\n")


def roles() -> bytes:
    return b'{"clients": {' + b",".join(b'"%d":["to be or not"]' % i for i in range(380_000)) + b"}}"


def mapped() -> bytes:
    names = list(map(str, range(600_000)))
    return json.dumps({"clients": names, "sizes": [1] * len(names), "columns": ["x"]}).encode()


# the first word of a case says how its file is read
READ: dict[str, Callable[[Any, Path], Any]] = {
    "table": lambda datasets, path: by_client(datasets, datasets.open_table(path)),
    "libsvm": lambda datasets, path: datasets.read_libsvm(path),
    "leaf": lambda datasets, path: datasets.read_leaf(path),
    "npz": lambda datasets, path: datasets.read_arrays(path, ["x", "y"]),
    "idx": lambda datasets, path: datasets.read_idx(path),
    "tff": lambda datasets, path: datasets.read_tff(path),
    "roles": lambda datasets, path: datasets.read_shakespeare(path.parent.parent, least=10),
    "heart": lambda datasets, path: datasets.read_heart(path.parent.parent),
    "mapped": lambda datasets, path: datasets.open_mapped(path.parent),
}
# the file of a case and its content
CASES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "table, a client per row": ("d.csv", lambda: numbered("c%d,1,1\n", "a,b,c\n")),
    "table, a class per row": ("d.csv", lambda: numbered("a,c%d,1\n", "a,b,c\n")),
    "table, 12,000 columns": ("d.csv", lambda: filled(WIDE, WIDE)),
    "table, 10^6 columns": ("d.csv", lambda: ",".join(map(str, range(10**6))).encode()),
    "table, a name of 130 kB": (
        "d.csv", lambda: b"a,b,c\n" + b"x" * 130_000 + b",1,1\n" + filled("a,1,1\n", "", 10**6),
    ),
    "table, 10^7 digits": ("d.csv", lambda: b"a,b,c\na,1," + b"9" * 9_900_000),
    "table, underscores": ("d.csv", lambda: filled("a_a,1,1\n", "a,b,c\n")),
    "table, packed short rows": ("d.csv.gz", lambda: packed(filled("a,1,1\n", "a,b,c\n", 64_000_000))),
    "table, packed clients": ("d.csv.gz", lambda: packed(numbered("c%d,1,1\n", "a,b,c\n", 52_000_000))),
    "table, short cells": ("d.csv", lambda: filled(CELLS, HEADER)),
    "table, short rows": ("d.csv", lambda: filled("a,1,1\n", "n0,n1,n2\n")),
    "table, a text per row": ("d.csv", lambda: numbered("c%d,1,d\n", "n0,n1,n2\n")),
    "table, packed cells": ("d.csv.gz", lambda: packed(filled(CELLS, HEADER, 40_000_000))),
    "table, zeros in Parquet": ("d.parquet", lambda: arrow("parquet", 20_000_000, 1)),
    "table, Parquet at the limit": ("d.parquet", lambda: arrow("parquet", 49_000, 100)),
    "table, zeros in Feather": ("d.feather", lambda: arrow("feather", 100_000_000, 1)),
    "table, Feather at the limit": ("d.feather", lambda: arrow("feather", 49_000, 100)),
    "libsvm, short values": ("d", lambda: filled(SVM)),
    "libsvm, short rows": ("d", lambda: filled("1 1:1\n")),
    "libsvm, wide": ("d", lambda: filled("1 1:1\n") + b"1 1000000:1\n"),
    "libsvm, dense at the limit": ("d", lambda: b"1 1000000:1\n" * 67),
    "libsvm, digits": ("d", lambda: b"1 " + b"9" * 9_900_000 + b":1\n"),
    "libsvm, packed": ("d.gz", lambda: packed(noisy("1 1:%d 2:%d 3:%d 4:%d 5:%d\n", "", 39_000_000))),
    "libsvm, packed at the limit": ("d.gz", lambda: packed(filled("1 1:1\n", "", 2**26))),
    "leaf, a row per user": ("d.json", lambda: users(USER)),
    "leaf, no rows": ("d.json", lambda: users('"u%d":{"x":[],"y":[]}')),
    "leaf, numbers": ("d.json", lambda: user(b"1," * 4_900_000 + b"1")),
    "leaf, empty lists": ("d.json", lambda: user(b"[]," * 3_300_000 + b"[]")),
    "leaf, empty objects": ("d.json", lambda: user(b"{}," * 3_300_000 + b"{}")),
    "leaf, brackets": ("d.json", lambda: b"[" * MOST_INPUT),
    "leaf, nested": ("d.json", lambda: b'{"a":' + b"[" * 9_900_000),
    "leaf, spaces": ("d.json", lambda: b" " * MOST_INPUT),
    "leaf, one text": ("d.json", lambda: user(b'"' + b"x" * 9_000_000 + b'"' + b',"a"' * 200_000)),
    "leaf, text of two users": ("d.json", two_users),
    "leaf, digits": ("d.json", lambda: b'{"a":' + b"9" * 9_900_000 + b"}"),
    "leaf, packed users": ("d.json.gz", lambda: packed(users(USER, 39_000_000))),
    "npz, zeros": ("d.npz", lambda: npz(x=np.zeros(2**26), y=np.zeros(1))),
    "npz, 4 GiB claimed": ("d.npz", claim),
    "npz, many members": ("d.npz", members),
    "npz, at the limit": ("d.npz", lambda: npz(x=np.zeros(2**24 - 2), y=np.zeros(1))),
    "idx, 1 GiB claimed": ("d", lambda: HUGE + bytes(10**6)),
    "idx, at the limit": ("d.gz", lambda: packed(IDX + (2**27 - 8).to_bytes(4, "big") + bytes(2**27 - 8))),
    "tff, 12 GB claimed": ("d.h5", lambda: hdf5(2, 3 * 2**28)),
    "tff, at the limit": ("d.h5", lambda: hdf5(8, 2**21)),
    "tff, many clients": ("d.h5", lambda: hdf5(15_000, 2)),
    "roles, short": (ROLES, roles),
    "roles, one text": (ROLES, lambda: b'{"clients": {"a":["' + b"x" * 9_900_000 + b'"]}}'),
    "heart, many rows": (ILL, lambda: filled("28,1,2,130,132,0,2,185,0,0,?,?,?,1\n")),
    "mapped, many clients": ("clients.json", mapped),
}  # fmt: skip
for ending, pack in PACK.items():
    CASES[f"libsvm, 1 GB in {ending}"] = f"d{ending}", lambda pack=pack: pack(b"1 1:1\n" * 170_000_000)
    CASES[f"idx, 1 GB in {ending}"] = f"d{ending}", lambda pack=pack: pack(HUGE + bytes(2**30))
    CASES[f"libsvm, empty parts in {ending}"] = f"d{ending}", lambda pack=pack: parts(pack)


def read_one(path: Path, kind: str) -> None:
    """In the process of one case: read, and print what came out, the seconds and the bytes of memory."""
    from fedspam import datasets

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    begin = time.process_time()
    try:
        READ[kind](datasets, path)
        answer = "read"
    except (ValueError, FileNotFoundError) as error:
        answer = "refused" if str(path.parent) in str(error) else f"refused without its name: {error}"
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    child = resource.getrusage(resource.RUSAGE_CHILDREN)  # HDF5 is read in one
    seconds = time.process_time() - begin + child.ru_utime + child.ru_stime
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps([answer, seconds, (int(peak.split()[1]) + child.ru_maxrss) * 1024]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="beginnings of names")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        read_one(Path(options.one[0]), options.one[1])
        return 0
    print("| input | MB | answer | seconds | peak MB |\n|---|---|---|---|---|")
    worst_seconds, worst_memory, failed = 0.0, 0, 0
    for name, (file, content) in CASES.items():
        if options.cases and not name.startswith(tuple(options.cases)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content())
            size = path.stat().st_size
            assert size <= 1.01 * MOST_INPUT, (name, size)
            command = [sys.executable, __file__, "--one", str(path), name.partition(",")[0]]
            done = subprocess.run(command, capture_output=True, check=False, timeout=600)
        answer, seconds, memory = json.loads(done.stdout or f'["ended with {done.returncode}", 0, 0]')
        is_good = answer in ("read", "refused") and seconds < MOST_SECONDS and memory < MOST_MEMORY
        failed += not is_good
        worst_seconds, worst_memory = max(worst_seconds, seconds), max(worst_memory, memory)
        row = f"| {name} | {size / 1e6:.1f} | {answer} | {seconds:.2f} | {memory / 1e6:.0f} |"
        print(row if is_good else f"{row} FAILED", flush=True)
    print(f"\nworst: {worst_seconds:.2f} s, {worst_memory / 1e6:.0f} MB; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
