"""How long a user waits before anything happens: ``python benchmarks/startup.py``.

Prints the median over fresh processes of `fedspam --help` (at most 0.5 s) and of ``import fedspam; fedspam.simulate``
(at most 1.5 s), and what the bare interpreter and JAX alone take of it. Exits with 1 where one takes longer.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": (["-c", "pass"], None),
    "import jax": (["-c", "import jax"], None),
    "import fedspam": (["-c", "import fedspam"], 1.5),
    "import fedspam; fedspam.simulate": (["-c", "import fedspam; fedspam.simulate"], 1.5),
    "fedspam --help": (["-m", "fedspam.app", "--help"], 0.5),
    "fedspam run --help": (["-m", "fedspam.app", "run", "--help"], 0.5),
    "fedspam --version": (["-m", "fedspam.app", "--version"], 0.5),
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Of a fresh process: by the clock, and of the processor alone, which a busy machine does not change much."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=7, metavar="N", help="processes of each (7)")
    times = parser.parse_args().times
    late = []
    print(f"{'':34}   median  fastest  processor   limit")
    for name, (arguments, limit) in COMMANDS.items():
        seconds(arguments)  # so that files are in memory and byte code is compiled
        found, busy = zip(*(seconds(arguments) for _ in range(times)), strict=True)
        median = statistics.median(found)
        shown = "" if limit is None else f"{limit:5.1f} s"
        print(f"{name:34}  {median:5.2f} s  {min(found):5.2f} s    {statistics.median(busy):5.2f} s  {shown}")
        if limit is not None and median > limit:
            late.append(name)
    for name in late:
        print(f"too slow: {name}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
