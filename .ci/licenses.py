"""The licenses of all pinned dependencies: `python .ci/licenses.py > THIRD-PARTY.md` writes the list again.

Whoever adds a dependency adds it to constraints.txt (`make constraints`) and writes the list again. A test refuses
licenses that are not in `ALLOWED`, and a list that is not up to date.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
# permissive licenses, and the Mozilla license, whose terms end with its own files
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSD", "CC0-1.0", "ISC",
    "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Public Domain", "Zlib", "AFL-2.1", "Unlicense", "BSL-1.0",
}  # fmt: skip
SAME = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
# what builds the package is not installed where it is tested
BUILD = {"hatchling": "MIT", "trove-classifiers": "Apache-2.0"}


def pinned() -> list[str]:
    """The names in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line.partition("==")[0] for line in lines if "==" in line]


def license_of(name: str) -> str:
    """As the package says: its expression, else its classifiers, else the first line of its license field."""
    if name in BUILD:
        return BUILD[name]
    facts = metadata.metadata(name)
    if facts.get("License-Expression"):
        return str(facts["License-Expression"])
    classifiers = [line.split(" :: ")[-1] for line in facts.get_all("Classifier", []) if line.startswith("License ::")]
    said = classifiers or [(facts.get("License") or "UNKNOWN").strip().splitlines()[0]]
    return " AND ".join(SAME.get(each, each) for each in said)


def terms(license: str) -> list[str]:
    """The licenses of an expression, of which all must be allowed."""
    return [part.strip("() ") for part in re.split(r" AND | OR ", license)]


def table() -> str:
    rows = [f"| {name} | {license_of(name)} |" for name in pinned()]
    head = "# Licenses of the dependencies\n"
    how = "Written by `python .ci/licenses.py`; a test compares it with constraints.txt.\n"
    return "\n".join([head, how, "| package | license |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(table())
