"""Plants faults that were mended, one after another, and runs the test that has to find each.

python benchmarks/faults.py                     # all of benchmarks/faults.toml
python benchmarks/faults.py readers pages       # some parts of it
python benchmarks/faults.py --only links        # the claims with this word in them

A fault is planted in a copy of the repository: a piece of text is replaced by what stood there before the mend, or by
what amounts to it. Before that, all these tests have to pass in the copy. A test that passes with its fault has a hole.
The exit code is 1 if there is one, or if a fault cannot be planted.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("faults.toml")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "site", "runs", "dist")
SECONDS = 240  # that one test may take
MEMORY = 6 * 2**30  # bytes that it may fill: some of the faults ask for a terabyte
FOUND = "failed as it must"
OUTCOMES = {0: "PASSED ALL THE SAME", 1: FOUND}  # by pytest's exit code; all others mean that no test ran


class Fault(NamedTuple):
    """One row of the table."""

    part: str  # of the table
    claim: str  # what is mended
    file: str  # where
    old: str  # the text of the mend; it comes once in the file
    new: str  # what is planted in its place
    test: str  # that has to fail, as pytest names it, below tests/
    only: str = ""  # which of its cases: -k of pytest


def faults(path: Path = TABLE) -> list[Fault]:
    """The faults of the table, in its order."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Fault(part, **row) for part, rows in table.items() for row in rows]


def planted(text: str, fault: Fault) -> str:
    """The text of a file with the fault in it."""
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.file} has the text of {fault.claim!r} {text.count(fault.old)} times; it must be once")
    return text.replace(fault.old, fault.new)


def copied(place: Path) -> Path:
    """A copy of the repository with a commit, which some tests ask for."""
    copy = place / "copy"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "copy"]):
        subprocess.run(["git", *words], cwd=copy, check=True)
    return copy


def run(copy: Path, *words: str, seconds: float = SECONDS) -> tuple[str, str]:
    """How pytest ends in the copy, and the last lines that it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "JAX_COMPILATION_CACHE_DIR": str(copy.parent / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", *words]
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        went = subprocess.run(
            command, cwd=copy / "tests", env=environment, preexec_fn=limit, timeout=seconds, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"TOOK OVER {seconds:g} S", ""
    said = [line for line in (went.stdout + went.stderr).splitlines() if line.strip()]
    return OUTCOMES.get(went.returncode, f"NO TEST RAN ({went.returncode})"), "\n".join(said[-6:])


def plant_all(copy: Path, some: list[Fault], talkative: bool) -> int:
    """Plant each fault in the copy, run its test, and print a line; the number of faults that were not found."""
    missed = 0
    for number, fault in enumerate(some):
        path, began = copy / fault.file, time.perf_counter()
        sound = path.read_text(encoding="utf-8")
        try:
            put(path, planted(sound, fault), 2 * number)
            outcome, said = run(copy, fault.test, *(["-k", fault.only] if fault.only else []))
        except ValueError as error:
            outcome, said = "NOT PLANTED", str(error)
        put(path, sound, 2 * number + 1)
        missed += outcome != FOUND
        row = (fault.part, fault.claim, fault.test, outcome, f"{time.perf_counter() - began:.0f} s")
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        if talkative or outcome != FOUND:
            sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
    return missed


def put(path: Path, text: str, age: int) -> None:
    """Write a file with a time of its own, by which Python tells that it has to be compiled again."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (age, age))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", help="parts of the table (all)")
    options.add_argument("--only", default="", metavar="WORD", help="claims with this word")
    options.add_argument("--unchecked", action="store_true", help="do not run the tests without faults first")
    options.add_argument("--talkative", action="store_true", help="print how each test fails")
    given = options.parse_args()
    there = faults()
    unknown = set(given.parts) - {fault.part for fault in there}
    if unknown:
        options.error(
            f"there is no part {', '.join(unknown)}; there are {', '.join(dict.fromkeys(f.part for f in there))}"
        )
    some = [fault for fault in there if fault.part in (given.parts or [fault.part]) and given.only in fault.claim]
    with tempfile.TemporaryDirectory(prefix="fedspam-faults-") as place:
        copy = copied(Path(place))
        if not given.unchecked:
            tests = dict.fromkeys(fault.test for fault in some)
            outcome, said = run(copy, *tests, seconds=SECONDS * 10)
            if outcome != OUTCOMES[0]:
                sys.stdout.write(f"without faults: {outcome}\n{said}\n")
                return 1
            sys.stdout.write(f"without faults, all {len(tests)} tests pass\n")
        missed = plant_all(copy, some, given.talkative)
    sys.stdout.write(f"{len(some) - missed} of {len(some)} faults found\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
