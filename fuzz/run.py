"""Fuzz the decoders with atheris, one after another, from the seeds in fuzz/corpus.

    python fuzz/run.py [--seconds 60] [--targets wire json ...]

Every target runs in a process of its own with limits on memory and on the time of one input. A finding is written to
fuzz/findings and ends with exit status 1. ``--seeds`` writes the seeds anew.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MEGABYTES, SECONDS_AN_INPUT, LONGEST = 2048, 30, 16384


def fuzz(name, arguments):
    """Inside the process of one target."""
    import atheris

    with atheris.instrument_imports(include=["fedspam"]):
        sys.path.insert(0, str(HERE))
        from targets import TARGETS
    if not TARGETS[name].is_possible:
        return print(f"{TARGETS[name].needs} is not installed")
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    return atheris.Fuzz()


def write_seeds():
    sys.path.insert(0, str(HERE))
    from targets import TARGETS

    for name, target in TARGETS.items():
        if not target.is_possible:
            continue
        folder = HERE / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.seeds()):
            (folder / f"seed-{number:02d}").write_bytes(seed)


def time_spent():
    """Seconds of a processor that ended children have used: on a busy machine less than the time that went by."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--targets", nargs="*", default=sorted(path.name for path in (HERE / "corpus").glob("*")))
    parser.add_argument("--seeds", action="store_true", help="write the seeds of the corpus and end")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.inside:
        return fuzz(arguments.inside, rest)
    if arguments.seeds:
        return write_seeds()
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    (HERE / "findings").mkdir(exist_ok=True)
    failed, total = [], 0.0
    for name in arguments.targets:
        began = time_spent()
        with tempfile.TemporaryDirectory() as found:  # new inputs are kept for this run alone
            command = [
                sys.executable, __file__, "--inside", name, found, str(HERE / "corpus" / name),
                f"-max_total_time={arguments.seconds}", f"-rss_limit_mb={MEGABYTES}", f"-timeout={SECONDS_AN_INPUT}",
                f"-max_len={LONGEST}", f"-artifact_prefix={HERE / 'findings'}/{name}-", "-print_final_stats=1",
            ]  # fmt: skip
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", check=False
            )
        spent = time_spent() - began
        total += spent
        stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
        covered = re.findall(r"cov: (\d+)", done.stderr)
        print(
            f"{name:12s} {stats.get('number_of_executed_units', '?'):>9s} executions in {spent:3.0f} s of a processor, "
            f"{covered[-1] if covered else '?':>5s} places covered, {stats.get('peak_rss_mb', '?'):>5s} MB at most, "
            f"{'no finding' if done.returncode == 0 else 'FINDING'}",
            flush=True,
        )
        if done.returncode != 0:
            failed.append(name)
            print((done.stdout + done.stderr)[-3000:])
    print(f"{len(arguments.targets)} targets, {total / 60:.1f} minutes of a processor, {len(failed)} findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
