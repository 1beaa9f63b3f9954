"""Compare the pinned versions with the database of known vulnerabilities that comes with the package safety-db.

The copy on PyPI ends in July 2021 and is for non-commercial use: it knows old versions, and nothing newer than itself.
Where there is a network, ``pip-audit -r constraints.txt`` asks the current databases.
"""

import importlib.util
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def pins(text: str) -> dict[str, Version]:
    """The versions of a constraints file, by normalised name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): Version(version) for name, version in found}


def known(pinned: dict[str, Version], database: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What the database holds against these versions."""
    advisories = {re.sub(r"[-_.]+", "-", name).lower(): entries for name, entries in database.items()}
    return [
        f"{name} {version}: {entry.get('cve') or entry.get('id')}: {str(entry.get('advisory'))[:200]}"
        for name, version in pinned.items()
        for entry in advisories.get(name, [])
        if any(SpecifierSet(spec).contains(version, prereleases=True) for spec in entry["specs"])
    ]


def main() -> int:
    package = importlib.util.find_spec("safety_db")  # not imported: its own code looks in the wrong place
    if package is None or package.origin is None:
        print("not audited: the package safety-db, which brings the database, could not be installed")
        return 0
    database = json.loads((Path(package.origin).parent / "insecure_full.json").read_text())
    stamp = database.pop("$meta", {}).get("timestamp")
    when = datetime.fromtimestamp(stamp, UTC).date() if stamp else "of unknown date"
    pinned = pins((ROOT / "constraints.txt").read_text())
    found = known(pinned, database)
    covered = sum(name in {entry.lower() for entry in database} for name in pinned)
    print(f"{len(pinned)} pinned packages, {covered} of them in the database ({when}): {len(found)} known problems")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
