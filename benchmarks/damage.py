"""Damage data files for ten minutes per reader: each is read as it stands, or refused with file, rule and remedy.

    python benchmarks/damage.py [--seconds 600] [--jobs 1] [--readers csv leaf ...] [--seed 0]

Every reader has a process of its own, 5 seconds of a processor for an input, and 1 GB. It gets good files, one of them
damaged: bytes changed, before or after packing; the beginning of another reader's file behind its own; what is no
number, label or name in place of one. What is read has finite numbers, distinct clients and columns of one length. The
first input that is answered otherwise is kept, and the exit status is 1.
"""

import argparse
import gzip
import io
import random
import resource
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]
MOST_SECONDS, MOST_BYTES = 5, 2**30


def damage(name, data, chance):
    """Other bytes in place of a good file."""
    from test_readers import WRONG, mutate

    from readers import READERS

    kind = chance.random()
    if kind < 0.2 and READERS[name].holes:
        hole = chance.choice(sorted(READERS[name].holes))
        wrong = chance.choice(WRONG[hole])
        text = READERS[name].holes[hole].replace("%s", wrong).encode("utf-8", "surrogatepass")
        return mutate(text, chance) if chance.random() < 0.5 else text
    if kind < 0.3:
        other = READERS[chance.choice(sorted(READERS))].files()
        tail = other[chance.choice(sorted(other))]
        return data[: chance.randrange(len(data) + 1)] + tail[chance.randrange(len(tail) + 1) :]
    if kind < 0.6 and data[:2] == b"\x1f\x8b":
        return gzip.compress(mutate(gzip.decompress(data), chance))
    if kind < 0.6 and data[:2] == b"PK":
        return repacked(data, chance)
    return mutate(data, chance)


def repacked(data, chance):
    """The archive with one of its files damaged, and a right checksum."""
    from test_readers import mutate

    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        hit = chance.choice(old.namelist())
        for each in old.namelist():
            content = old.read(each)
            new.writestr(each, mutate(content, chance) if each == hit else content)
    return made.getvalue()


def spent_time():
    """Seconds of a processor, with those of processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def try_reader(name, seconds, seed):
    """How many inputs were read and refused, the slowest one, and the most memory; raises at the first wrong answer."""
    from test_readers import is_answered

    from readers import READERS

    resource.setrlimit(resource.RLIMIT_AS, (8 * MOST_BYTES, resource.RLIM_INFINITY))  # addresses, not memory
    chance, good = random.Random(f"{seed} {name}"), READERS[name].files()
    counts, slowest, until = {True: 0, False: 0}, 0.0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        READERS[name].write(folder)
        if not is_answered(name, folder):
            raise AssertionError(f"{name}: the good files are refused")
        while time.monotonic() < until:
            hit = chance.choice(sorted(good))
            data = damage(name, good[hit], chance)
            (folder / hit).write_bytes(data)
            began = spent_time()
            try:
                counts[is_answered(name, folder)] += 1
                spent = spent_time() - began
                if spent > MOST_SECONDS:
                    raise AssertionError(f"{spent:.1f} s of a processor")
            except BaseException as error:
                kept = Path(tempfile.mkdtemp(prefix="fedspam-damage-")) / Path(hit).name
                kept.write_bytes(data)
                raise AssertionError(f"{name}: {type(error).__name__}: {error}; the input is {kept}") from error
            slowest = max(slowest, spent)
            (folder / hit).write_bytes(good[hit])
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    if peak > MOST_BYTES / 2**20:
        raise AssertionError(f"{name}: {peak:.0f} MB")
    return counts[True], counts[False], slowest, peak


def main():
    from readers import READERS

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="for each reader")
    parser.add_argument("--jobs", type=int, default=1, help="readers at once")
    parser.add_argument("--readers", nargs="*", default=[name for name in READERS if READERS[name].is_possible])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    print("| reader | inputs | read | refused | slowest, s | peak MB |\n|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        tried = {name: pool.submit(try_reader, name, options.seconds, options.seed) for name in options.readers}
        for name, result in tried.items():
            try:
                read, refused, slowest, peak = result.result()
                row = f"| `{name}` | {read + refused:,} | {read:,} | {refused:,} | {slowest:.2f} | {peak:.0f} |"
            except Exception as error:
                failed, row = failed + 1, f"| `{name}` | FINDING: {error} |"
            print(row, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
