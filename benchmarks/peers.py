"""FedAvg on the CPU, here and elsewhere: start-up, rounds and samples a second, peak memory, all in one run.

    python benchmarks/peers.py [--seconds 20] [--repeats 3] [--pfl PYTHON] [--fedjax PYTHON] [--blazefl PYTHON]

Two tasks of FedAvg: multinomial logistic regression with 784 x 62 weights, cohort 50; the FEMNIST CNN with 1.2
million, cohort 10; both over 3,400 clients of log-normal size, five local steps of 20 images each. Every side is a
process of its own. They take turns, so that what else the machine does falls on all alike, and the best turn of each
is shown. The CPU time of a round counts all threads of its process, waiting ones that spin included; a busy machine
disturbs it least.

Two tasks of SPAM on the paper's ridge, one client per round, beside a plain NumPy loop: one run, and a sweep of 20
seeds, whose rounds count for every seed.

Start-up is the time from the start of the process to the end of its first round, less one round. pfl and Flower are
skipped with the reason where they are not installed; --pfl, --fedjax and --blazefl name interpreters that have these.
FedJAX 0.0.17 needs an old JAX: pip install fedjax jax==0.4.25 jaxlib==0.4.25 'numpy<2' optax==0.2.1 dm-haiku==0.0.12.
BlazeFL 2.0.3 needs Python 3.12: pip install blazefl==2.0.3 tqdm numpy.
Two processes of pfl share a cohort without ever talking to each other, which is faster than pfl can be.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEGAN = time.time()
TASKS = {"softmax": 50, "cnn": 10, "ridge": 1, "seeds": 1}
MORE = {"softmax": "cohort 50", "cnn": "cohort 10", "ridge": "one client per round", "seeds": "20 runs of the ridge"}
SEEDS = {"ridge": 1, "seeds": 20}
RIDGE_ROUNDS = {"ridge": 20_000, "seeds": 5_000}  # a step of the iterator
NAMES = {
    "ours2": "fedspam, 2 devices",
    "ours1": "fedspam, 1 device",
    "torch2": "PyTorch loop, 2 threads",
    "torch1": "PyTorch loop, 1 thread",
    "pfl2": "pfl, 2 processes",
    "pfl1": "pfl, 1 process",
    "flower": "Flower, Ray",
    "fedjax": "FedJAX",
    "blazefl2": "BlazeFL, 2 threads",
    "blazefl1": "BlazeFL, one after another",
    "numpy": "NumPy loop",
}


def plays(name, model):
    """Whether a side has a task: the ridge is for one device and NumPy, the images for all others."""
    if model in SEEDS:
        return name in ("ours1", "numpy")
    return name != "numpy" and not (name == "fedjax" and model == "cnn")


def side(name, model, cohort, folder, seconds):
    """Run rounds for so long and print what was measured as one line of JSON."""
    if name.startswith("ours") or name in ("fedjax", "numpy"):
        devices = int(name[-1]) if name.startswith("ours") else 1
        flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " " + flags
        os.environ["JAX_PLATFORMS"] = "cpu"
    import baselines
    import numpy as np

    arrays = [np.load(f"{folder}/{part}.npy", mmap_mode="r") for part in ("images", "labels")]
    offsets = np.load(f"{folder}/offsets.npy")
    task = baselines.Task(model, cohort, *arrays, offsets, threads=int(name[-1]) if name.startswith("torch") else 1)
    ends, spent = [], []

    def timed():
        ends.append(time.time())
        spent.append(time.process_time())
        if len(ends) > 2 and ends[-1] - ends[1] > seconds:
            raise KeyboardInterrupt

    many = 1
    try:
        if model in SEEDS:
            seeds, every = SEEDS[model], RIDGE_ROUNDS[model]
            many = seeds * every
            for _ in (baselines.ridge_numpy if name == "numpy" else baselines.ridge_ours)(seeds, every):
                timed()
        elif name == "fedjax":
            for _ in baselines.fedjax_rounds(task):
                timed()
        elif name.startswith("ours"):
            many = 20 if model == "softmax" else 1
            for _ in baselines.ours(task, devices=int(name[-1]), every=many):
                timed()
        elif name.startswith("torch"):
            for _ in baselines.torch_loop(task):
                timed()
        elif name.startswith("blazefl"):
            for _ in baselines.blazefl_rounds(task, int(name[-1])):
                timed()
        elif name.startswith("pfl"):
            baselines.pfl_rounds(task, 10**6, timed)
        else:
            # Flower cannot be stopped from inside a round: a number of them that takes about as long
            baselines.flower_rounds(task, folder, 12, lambda: ends.append(time.time()))
            del ends[0]  # it looks at the model before the first round, too
    except KeyboardInterrupt:
        pass
    # the first round may warm up caches: steady state begins after it
    rounds = many * (len(ends) - 2) / (ends[-1] - ends[1])
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({
        "start": ends[0] - BEGAN - many / rounds, "rounds": rounds,
        "samples": rounds * (1 if model in SEEDS else task.samples),
        "memory": max(usage) / 2**10, "cpu": (spent[-1] - spent[1]) / (len(ends) - 2) / many if spent else None,
    }))  # fmt: skip


def ask(python, name, model, cohort, folder, seconds, limit):
    """Run a side in a process of its own, or two that share the cohort."""
    processes = 2 if name == "pfl2" else 1
    command = [python, __file__, "--side", name, "--model", model, "--cohort", str(cohort // processes)]
    command += ["--folder", folder, "--seconds", str(seconds)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    found = []
    for process in started:
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"failed": f"no answer within {limit} s"}
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            last = [line for line in error.splitlines() if line.strip()][-1:] or [f"exit {process.returncode}"]
            return {"failed": last[0][:160]}
        found.append(json.loads(lines[-1]))
    slowest = min(found, key=lambda each: each["rounds"])
    cpu = sum(each["cpu"] for each in found) if found[0]["cpu"] else None
    total = {"cpu": cpu, "memory": sum(each["memory"] for each in found), "samples": processes * slowest["samples"]}
    return {**slowest, **total}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of steady state for each side and turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--clients", type=int, default=3400)
    parser.add_argument("--sides", nargs="*", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--pfl", default=sys.executable, help="an interpreter that has pfl and PyTorch")
    parser.add_argument("--fedjax", default=sys.executable, help="an interpreter that has FedJAX")
    parser.add_argument("--blazefl", default=sys.executable, help="an interpreter that has BlazeFL")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a side is given up")
    parser.add_argument("--out")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--cohort", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.side:
        return side(flags.side, flags.model, flags.cohort, flags.folder, flags.seconds)

    import baselines
    import numpy as np

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for part, array in zip(("images", "labels", "offsets"), baselines.draw(flags.clients), strict=True):
            np.save(Path(folder) / f"{part}.npy", array)
        for model in flags.tasks:
            for turn in range(flags.repeats):
                for name in (name for name in flags.sides if plays(name, model)):
                    if turn and "failed" in results[model, name][0]:
                        continue
                    python = {"pf": flags.pfl, "fe": flags.fedjax, "bl": flags.blazefl}.get(name[:2], sys.executable)
                    got = ask(python, name, model, TASKS[model], folder, flags.seconds, flags.limit)
                    results.setdefault((model, name), []).append(got)
                    print(f"  {model} {name} turn {turn + 1}: {got}", file=sys.stderr, flush=True)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(
        "\n| task | side | start-up s | rounds/s | samples/s | peak MiB | CPU ms/round | of ours |"
        "\n|---|---|---|---|---|---|---|---|"
    )
    table = []
    for model in flags.tasks:
        best = {}
        sides = [name for name in flags.sides if plays(name, model)]
        for name in sides:
            turns = results[model, name]
            good = [turn for turn in turns if "failed" not in turn]
            if good:
                top = max(good, key=lambda turn: turn["rounds"])
                best[name] = {**top, "start": statistics.median(turn["start"] for turn in good)}
        fastest = max((best[name]["rounds"] for name in best if name.startswith("ours")), default=float("nan"))
        for name in sides:
            what = f"| {model}, {MORE[model]} | {NAMES[name]} |"
            if name not in best:
                print(f"{what} {results[model, name][0]['failed']} ||||||")
                continue
            row = best[name]
            table.append({"task": model, "side": name, **row})
            print(f"{what} {row['start']:.1f} | {row['rounds']:.4g} | {row['samples']:.0f} | {row['memory']:.0f} | "
                  f"{format(1e3 * row['cpu'], '.4g') if row['cpu'] else '–'} | "
                  f"{row['rounds'] / fastest:.2f} |")  # fmt: skip
    if flags.out:
        Path(flags.out).write_text(json.dumps(table, indent=1))
    return None


if __name__ == "__main__":
    main()
