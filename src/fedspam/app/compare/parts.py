"""A comparison in parts, for array jobs: `--part 3/16` does its share of the runs, `--merge` joins the parts.

A unit of work is a method on a problem. What it finds depends on nothing else, so that the parts together have found
what one comparison finds. A part keeps all of it, to the bit.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedspam import __version__
from fedspam._internal import describe, files, strict
from fedspam._internal.strict import GIB, MIB
from fedspam.app import UsageError
from fedspam.app.compare.measures import Curves, MethodResult
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.simulation import records

INDEX, NUMBERS = "part.json", "part.safetensors"
MOST_INDEX, DEPTH, MOST_NUMBERS = 256 * MIB, 12, 16 * GIB
CLOSE = 1e-6  # constants that are measured on different machines differ in their last digits
T = TypeVar("T")
Results = Mapping[tuple[int, str], MethodResult]  # by the number of the problem, and the method


@dataclass(frozen=True)
class ComparisonPart:
    """One of several shares of the work, counted from 1."""

    number: int
    of: int

    def share(self, units: Sequence[T]) -> list[T]:
        """The units of this part: every `of`-th of them.

        >>> ComparisonPart(2, 3).share("abcdefg")
        ['b', 'e']
        """
        if self.of > len(units):
            raise UsageError(
                f"--part {self.number}/{self.of}: there are {len(units)} units of work, each a method on a problem; "
                f"ask for at most {len(units)} parts"
            )
        return list(units[self.number - 1 :: self.of])


@dataclass(frozen=True)
class ProblemFacts:
    """What a comparison says about its problem."""

    name: str
    what: str
    clients: int
    delta: float
    smoothness: float
    client_smoothness: float
    optimum: float | None


@dataclass(frozen=True)
class SavedPart:
    """What a part has found."""

    folder: Path
    part: ComparisonPart
    whole: Mapping[str, Any]  # what all parts have in common: kind, methods, plan, command
    found: Mapping[str, Any]


def write_part(
    folder: Path, part: ComparisonPart, whole: Mapping[str, Any], problems: Mapping[int, Any], results: Results,
    command: str,
) -> None:  # fmt: skip
    """Write what a part has found of some problems. A part is there when its index is."""
    arrays = {
        f"{number} {key} {trial} {name}": values
        for (number, key), result in results.items()
        for trial, curves in result.finals.items()
        for name, values in curves._asdict().items()
    }
    numbers = files.pack(arrays)
    records.write(folder / NUMBERS, numbers)
    text = lambda cost: [str(each) if isinstance(each, float) else each for each in cost]  # JSON has no infinity
    plain = lambda result: {**vars(result), "costs": list(map(text, result.costs)), "finals": {}}
    found = {
        "problems": [[number, describe.describe(facts)] for number, facts in problems.items()],
        "results": [[*unit, plain(result)] for unit, result in results.items()],
        "numbers": hashlib.sha256(numbers).hexdigest(),
    }
    index = {"fedspam": __version__, "part": part.number, "of": part.of, "command": command, "whole": whole}
    sealed = {**index, "found": found}
    records.write(folder / INDEX, json.dumps({"sha256": describe.digest(sealed), **sealed}, allow_nan=False).encode())
    records.write(folder / "command", f"{command}\n".encode())


def read_parts(folders: Sequence[Path]) -> list[SavedPart]:
    """The parts of one comparison in their order; UsageError where one is missing, doubled or of another."""
    read = [_read(folder) for folder in folders]
    first = read[0]
    by_number: dict[int, SavedPart] = {}
    for each in read:
        if each.part.of != first.part.of:
            raise UsageError(
                f"{each.folder} is part {each.part.number} of {each.part.of}, and {first.folder} is one of "
                f"{first.part.of}; merge the parts of one comparison"
            )
        other = describe.changes(first.whole, each.whole)
        if other:
            raise UsageError(f"{each.folder} is of another comparison than {first.folder}: {'; '.join(other[:3])}")
        if each.part.number in by_number:
            twice = by_number[each.part.number].folder
            raise UsageError(f"part {each.part.number} is in {twice} and in {each.folder}; leave one of them out")
        by_number[each.part.number] = each
    missing = [str(number) for number in range(1, first.part.of + 1) if number not in by_number]
    if missing:
        shown = ", ".join(missing[:20]) + (", ..." if len(missing) > 20 else "")
        raise UsageError(
            f"of {first.part.of} parts {len(missing)} {'is' if len(missing) == 1 else 'are'} missing: {shown}; run "
            f"{'it' if len(missing) == 1 else 'them'} with --part {missing[0]}/{first.part.of}, and name the folder too"
        )
    return [by_number[number] for number in sorted(by_number)]


def _read(folder: Path) -> SavedPart:
    path = folder / INDEX
    if not path.is_file():
        raise UsageError(f"{folder} holds no part of a comparison, or one that has not ended; {path} is missing")
    try:
        index = strict.json_object(strict.read(path, MOST_INDEX), size=MOST_INDEX, depth=DEPTH)
        if index.pop("sha256") != describe.digest(index):
            raise ValueError("its hash does not fit its content")
        part = ComparisonPart(int(index["part"]), int(index["of"]))
        saved = SavedPart(folder, part, index["whole"], index["found"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UsageError(f"{path} is damaged ({error}); run this part again") from None
    if index.get("fedspam") != __version__:
        raise UsageError(f"{path} was written by fedspam {index.get('fedspam')}, this is {__version__}; run it again")
    return saved


def problems_of(saved: Sequence[SavedPart]) -> dict[int, Mapping[str, Any]]:
    """The facts of all problems; refuse parts whose problems differ: data that changed between two of them, say."""
    close = lambda a, b: math.isclose(a, b, rel_tol=CLOSE) if isinstance(a, float) and isinstance(b, float) else a == b
    known: dict[int, tuple[SavedPart, Mapping[str, Any]]] = {}
    for part in saved:
        for number, facts in part.found["problems"]:
            first, before = known.setdefault(number, (part, facts))
            for name, value in before.items():
                if not close(value, facts.get(name)):
                    raise UsageError(
                        f"{name} of the problem is {value} in {first.folder} and {facts.get(name)} in {part.folder}; "
                        "run all parts on the same data"
                    )
    return {number: facts for number, (_, facts) in sorted(known.items())}


def results_of(saved: Sequence[SavedPart]) -> dict[tuple[int, str], MethodResult]:
    """What all parts have found."""
    results = {}
    for each in saved:
        path = each.folder / NUMBERS
        data = files.read(path, size=MOST_NUMBERS)
        arrays, _ = files.unpack(data, path, size=MOST_NUMBERS)
        if hashlib.sha256(data).hexdigest() != each.found.get("numbers"):
            raise UsageError(f"{path} does not fit {INDEX}: it was written by another comparison; run this part again")
        finals: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
        try:
            for name, values in arrays.items():
                number, key, trial, field = name.split(" ")
                finals.setdefault((int(number), key), {}).setdefault(int(trial), {})[field] = values
            for number, key, found in each.found["results"]:
                curves = {trial: Curves(**fields) for trial, fields in sorted(finals.get((number, key), {}).items())}
                results[number, key] = replace(msgspec.convert(found, MethodResult, strict=False), finals=curves)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path} does not fit {INDEX} ({error}); run this part again") from None
    return results


def plan_of(described: Mapping[str, Any]) -> ComparisonPlan:
    """The plan that `describe` described."""
    return msgspec.convert({name: value for name, value in described.items() if name != "type"}, ComparisonPlan)
