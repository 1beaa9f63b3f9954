"""Disturb runs at random moments, let them resume, and compare the bits with those of an undisturbed run.

    python benchmarks/soak.py [--kills 200] [--damage 0.1] [--intruders 0.1] [--cuts 0.2] [--seed 0] [--minutes 60]
        [--jobs 1]

One process after another works on the same run folder: each is killed at a random moment (SIGKILL, or Ctrl-C for one in
four), some while they start, most while they compute and save, some as soon as a half-written file shows. Segments are
two rounds long, so that much of a run's time goes into writing. Now and then, before the next process takes over,

- the folder is put into a state that a power cut could have left, without some of what was not synced;
- a file of the folder is truncated or has a bit flipped;
- a link to a file elsewhere waits where a file will be written;
- a second process has asked for the folder while the first worked, and must have been refused in one line.

The run that gets to its end must have the bits of the undisturbed one in parameters, state, client memory, rows and
probes, and the file elsewhere must be as it was; then the next begins. A process that takes too long ends itself, and
so does the whole. ``--jobs`` spreads the kills over processes with seeds of their own.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import power_cut

METHODS = ("spam", "spam_pp", "scaffold", "auto")
ROUNDS, SEGMENT, CLIENTS, DIMENSION = 400, 2, 20, 1000
PATIENCE = 300  # seconds for one process
REFUSED = 3  # the exit status of a process that may not have the folder
WRITTEN = (".lock", ".manifest.json.partial", "rows.bin")  # where links wait
TREASURE = "a file of somebody else"


def child(name, folder, rounds, log):
    """What is killed: a run that resumes whatever the folder holds, and tells its progress and the hash of its end."""
    import jax
    import jax.numpy as jnp

    from fedspam import METHODS, Ragged, simulate
    from fedspam.simulation.records import Keep
    from fedspam.solvers import GradientDescent

    jax.config.update("jax_enable_x64", True)
    if log:
        power_cut.watch(log)
    keys = jax.random.split(jax.random.key(0), CLIENTS)
    clients = Ragged.of([jax.random.normal(key, (1 + i % 3, DIMENSION)) for i, key in enumerate(keys)], distance)
    example = {**METHODS[name].example}
    if "solver" in example:
        example["solver"] = GradientDescent(3, smoothness=0.1)
    where = {"folder": folder, "resume": True, "keep": Keep(2, best="norm", every=SEGMENT)} if folder else {}
    run = simulate(
        METHODS[name].build(**example), clients, jnp.ones(DIMENSION), rounds=rounds, key=1, probe=norm, every=2,
        **where,
        observe=lambda done, rows, probes: print("done", done, flush=True),
    )  # fmt: skip
    hashed = hashlib.sha256()
    for leaf in jax.tree.leaves((run.params, run.state, run.memory, dict(run.rows), dict(run.probes))):
        hashed.update(jax.device_get(leaf).tobytes())
    print("end", run.rounds, hashed.hexdigest(), flush=True)


def distance(x, rows):
    import jax.numpy as jnp

    return jnp.sum(jnp.sqrt(1 + (rows - x) ** 2), axis=1) / 10


def norm(x):
    import jax.numpy as jnp

    return {"norm": jnp.linalg.norm(x)}


class WrongError(Exception):
    """A run that did not come back as it was."""


def start(name, folder, rounds, cache, log="stderr", watched=""):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),  # so that a new process is at work in a second or two
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder or ""), "--rounds", str(rounds)]
    command += ["--log", str(watched)]
    with open(cache / log, "wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)


def finish(process, cache, said=""):
    """The last line of a run that is left alone."""
    if not process.stdout.closed:
        said += process.communicate(timeout=2 * PATIENCE)[0]
    lines = said.split("\n")
    if process.returncode != 0 or len(lines) < 2 or not lines[-2].startswith("end"):
        errors = (cache / "stderr").read_text()
        raise WrongError(f"exit status {process.returncode}: {lines[-2:]} {errors[-2000:]}")
    return lines[-2]


def kill(process, folder, chance, saves, meanwhile):
    """Kill at a random moment, one in four with SIGINT as Ctrl-C does, after calling `meanwhile` if it is at work.

    One in eight while it starts; the others some saves after the first: half of them within the time of the next two,
    half of them the moment that a half-written file shows.

    Returns None, or all it has said if it was over before.
    """
    said, began, last = [], time.perf_counter(), time.perf_counter()
    patience, look = chance.uniform(0, 3), False
    if chance.random() >= 1 / 8:
        look = chance.random() < 0.5
        for _ in range(chance.randint(1, saves)):
            said.append(process.stdout.readline())
            if not said[-1].startswith("done"):
                return "".join(said)
            began, last = time.perf_counter(), began
        patience = chance.uniform(0, 2 * (began - last) if len(said) > 1 else 0.1)
        meanwhile()
    if look:
        until = time.perf_counter() + 1  # a busy loop: such a file is there for a millisecond or less
        while not any(name.endswith(".partial") for name in os.listdir(folder)) and time.perf_counter() < until:
            pass
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is not None:
        return "".join(said)
    process.send_signal(signal.SIGINT if chance.random() < 0.25 else signal.SIGKILL)
    said.append(process.stdout.read())
    process.stdout.close()
    return None if process.wait() != 0 else "".join(said)  # it may have been quicker


def caught(folder):
    """What the kill interrupted, as far as the files tell."""
    if list(folder.glob(".*.partial")):
        return "while a checkpoint or manifest was written"
    saved = sorted(folder.glob("checkpoint-*"))
    if not saved:
        return "before the first checkpoint"
    if (folder / "rows.bin").stat().st_mtime_ns > saved[-1].stat().st_mtime_ns:
        return "after or while rows were written, before their checkpoint"
    return "between saves"


def spoil(folder, chance):
    """Truncate a file of the folder or flip a bit of it."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.stat().st_size)
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    if chance.random() < 0.5:
        del data[place:]
        what = "truncated"
    else:
        data[place] ^= 1 << chance.randrange(8)
        what = "with a flipped bit"
    path.write_bytes(data)
    return f"{path.stem.split('-')[0]} {what}"


def plant(folder, elsewhere, chance):
    """A link to a file elsewhere, where the next process will write."""
    path = folder / chance.choice(WRITTEN)
    path.unlink(missing_ok=True)  # without its rows, a run begins again
    path.symlink_to(elsewhere)
    return path


def refused(process, cache, log, undisturbed):
    """Whether a process was refused in one line; False if it ended as the undisturbed one."""
    said = process.communicate(timeout=2 * PATIENCE)[0]
    if process.returncode == 0 and said.splitlines()[-1:] == [undisturbed]:
        return False
    errors = (cache / log).read_text()
    told = [line for line in said.splitlines() if not line.startswith("done ")]
    in_one_line = len(told) == 1 and told[0].startswith("refused: ") and "Traceback" not in errors
    if process.returncode != REFUSED or not in_one_line:
        words = " / ".join([*told, *errors.splitlines()])
        raise WrongError(f"a process that must be refused ended with {process.returncode}: {words[-2000:]}")
    return True


def soak(
    folder, kills, methods=METHODS, *, damage=0.1, intruders=0.1, cuts=0.2, seed=0, rounds=ROUNDS, minutes=60, say=print
):
    """Kill so many times, spread over the methods, and count. Raises `WrongError` at the first wrong bit."""
    chance, counts, deadline = random.Random(seed), Counter(), time.monotonic() + 60 * minutes
    cache, elsewhere = Path(folder) / "cache", Path(folder) / "elsewhere"
    cache.mkdir(parents=True)
    elsewhere.write_text(TREASURE)
    saves = max(2, rounds // SEGMENT // 5)  # the most that one process is given before it is killed
    for number, name in enumerate(methods):
        goal = kills * (number + 1) // len(methods) - kills * number // len(methods)
        undisturbed = finish(start(name, None, rounds, cache), cache)
        killed = 0
        while killed < goal:
            place, deaths = Path(folder) / f"{name}-{killed}", 0
            while True:
                if time.monotonic() > deadline:
                    raise WrongError(f"{minutes} minutes are over after {killed} of {goal} kills of {name}")
                log, before = cache / "log", {}
                log.unlink(missing_ok=True)
                if chance.random() < cuts:
                    log.touch()
                    before = {path.name: path.read_bytes() for path in place.iterdir()} if place.exists() else {}
                process, said = start(name, place, rounds, cache, watched=log if log.exists() else ""), ""

                def second():
                    if chance.random() < intruders:
                        process.send_signal(signal.SIGSTOP)  # so that it is still there
                        other = start(name, place, rounds, cache, "second")
                        was = refused(other, cache, "second", undisturbed)
                        process.send_signal(signal.SIGCONT)
                        counts["second processes, " + ("refused" if was else "after the end of the first")] += 1

                if killed >= goal or (said := kill(process, place, chance, saves, second)) is not None:
                    break
                killed, deaths = killed + 1, deaths + 1
                if place.exists():
                    counts[caught(place)] += 1
                    if log.exists():
                        power_cut.cut(place, before, power_cut.operations(log), chance)
                        counts["power cuts"] += 1
                    if list(place.glob("checkpoint-*")) and chance.random() < damage:
                        counts[spoil(place, chance)] += 1
                    if chance.random() < intruders:
                        link = plant(place, elsewhere, chance)
                        was = refused(start(name, place, rounds, cache), cache, "stderr", undisturbed)
                        counts[f"links at {link.name}, {'refused' if was else 'without effect'}"] += 1
                        if link.is_symlink():
                            link.unlink()
                else:
                    counts["before the folder was there"] += 1
            end = finish(process, cache, said)
            if elsewhere.read_text() != TREASURE:
                raise WrongError(f"{name} wrote through a link to {elsewhere}; see {place}")
            if end != undisturbed:
                raise WrongError(f"{name} after {deaths} kills: {end}, undisturbed: {undisturbed}; see {place}")
            counts["runs that ended with the undisturbed bits"] += 1
            shutil.rmtree(place)
            say(f"{name}: equal bits after {deaths} kills ({killed} of {goal})")
        counts[f"kills of {name}"] = killed
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--damage", type=float, default=0.1, help="how often a file is damaged after a kill")
    parser.add_argument("--intruders", type=float, default=0.1, help="how often there are links and second processes")
    parser.add_argument("--cuts", type=float, default=0.2, help="how often a kill is a power cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the kills, each with a seed")
    parser.add_argument("--minutes", type=float, default=60, help="when to give up")
    parser.add_argument("--methods", nargs="*", help=f"of {', '.join(METHODS)}; those that there are by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if arguments.child:
        signal.alarm(PATIENCE)  # whatever hangs dies by this
        from fedspam.simulation.records import RecordError

        try:
            return child(arguments.child, arguments.folder, arguments.rounds, arguments.log)
        except RecordError as error:
            print(f"refused: {error}", flush=True)
            return REFUSED
    from fedspam.methods import METHODS as REGISTERED

    methods = arguments.methods or [name for name in METHODS if name in REGISTERED]
    began, folder = time.time(), tempfile.mkdtemp(prefix="fedspam-soak-")
    options = {name: getattr(arguments, name) for name in ("damage", "intruders", "cuts", "rounds", "minutes")}
    jobs = arguments.jobs
    shares = [arguments.kills * (job + 1) // jobs - arguments.kills * job // jobs for job in range(jobs)]
    try:
        with ProcessPoolExecutor(jobs) as pool:
            each = [
                pool.submit(soak, Path(folder) / str(job), share, methods, seed=arguments.seed + job, **options)
                for job, share in enumerate(shares)
            ]
            counts = sum((job.result() for job in each), Counter())
    except WrongError as error:
        return f"WRONG: {error}\nthe files are left in {folder}"
    shutil.rmtree(folder)
    print(f"\nseed {arguments.seed}, {jobs} at once, {time.time() - began:.0f} s: every run had the undisturbed bits")
    for what, count in sorted(counts.items()):
        print(f"{count:5d}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
