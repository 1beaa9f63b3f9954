"""The rooms of `src/fedspam`, in the order of their imports: a room imports only from those above it.

`repository/test_architecture.py` holds the order, and the map in README.md is printed from it:

    python tests/rooms.py
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "_internal": "trees, random keys, checks, strict decoding, whole-or-absent files, descriptions",
    "clients": "who there is to ask: generated, ragged and hosted populations; faults",
    "federation": "how they are asked: cohorts, handles, a witness of NaN, wire, codecs, aggregation, ledger",
    "solvers": "what a client does with its subproblem, and the certificate of the answer",
    "methods": "the methods, one file per family; estimators, schedules, the table of methods",
    "simulation": "simulate: engine, sweeps, host data, stopping rules, checkpoints (records), evaluation",
    "theory": "bounds, Lyapunov function and certificates; delta, sigma and L measured",
    "problems": "clients whose constants are known: quadratics, the paper's ridge, regressions",
    "datasets": "readers of data files and tables, preprocessing, and the ways to split rows among clients",
    "models": "networks as plain functions; adapters for Flax, Equinox and PyTorch; trained models as files",
    "flower": "the same methods over a Flower federation: server, client, privacy, wire, testing",
    "app": "the command line and what only it needs: commands (their flags), config, compare, report, lab",
}
BESIDE = {
    "tests/": "what must hold",
    "benchmarks/": "how fast it is, and what it survives",
    "research/": "the archive behind `auto`: problems and networks kept apart, settings chosen in hindsight",
    "reproductions/": "tables that others published, one script each, with their numbers beside ours",
    "examples/": "a short script for each data set",
    "fuzz/": "bytes that no decoder may fail on",
    "client/": "fedspam-client: clients without JAX, in Python or C++, and a conformance kit for others",
    "docs/": "the site",
}
BEGIN, END = "<!-- rooms: printed by tests/rooms.py -->\n", "<!-- /rooms -->\n"


def printed() -> str:
    """The map, as README.md shows it."""
    lines = ["src/fedspam/", *(f"  {name + '/':<15}{purpose}" for name, purpose in ROOMS.items())]
    lines += [f"{name:<17}{purpose}" for name, purpose in BESIDE.items()]
    return BEGIN + "```text\n" + "\n".join(lines) + "\n```\n" + END


def main() -> None:
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    readme.write_text(before + printed() + rest.split(END)[1])


if __name__ == "__main__":
    main()
