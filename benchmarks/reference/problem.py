"""The problem on which other libraries are run for reference: least squares of four clients of different size.

    python problem.py        # NumPy alone; writes tests/reference/problem.json

Each of the other scripts of this folder runs one library on it, in an environment of its own, and stores the library's
iterates beside it with their origin. `tests/methods/test_reference.py` compares ours with them.
"""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "tests" / "reference"
SIZES, DIMENSION, ROUNDS = (2, 3, 5, 6), 3, 6


def load() -> dict:
    return json.loads((FOLDER / "problem.json").read_text())


def store(name: str, origin: dict, runs: dict) -> None:
    """Keep a library's iterates: `runs` is name -> {settings, iterates}."""
    (FOLDER / f"{name}.json").write_text(json.dumps({"origin": origin, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    random = np.random.default_rng(2024)
    clients = []
    for size in SIZES:
        features = random.normal(size=(size, DIMENSION))
        clients.append(
            {
                "features": features.round(6).tolist(),
                "targets": (features @ random.normal(size=DIMENSION) + 0.3 * random.normal(size=size))
                .round(6)
                .tolist(),
            }
        )
    problem = {
        "loss": "client i: mean over its rows of (features @ x - target)^2 / 2",
        "clients": clients,
        "start": [1.0, -0.5, 0.25],
        "cohorts": [random.permutation(len(SIZES))[:2].tolist() for _ in range(ROUNDS)],  # two of four, by round
    }
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "problem.json").write_text(json.dumps(problem, indent=1) + "\n")
