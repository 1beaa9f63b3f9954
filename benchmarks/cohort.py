"""Whole cohorts on one accelerator, against central gradients and against PyTorch on the same device.

    python benchmarks/cohort.py [--out cohort.json] [--cohorts 50 500] [--small]

The FEMNIST CNN (1.2 million parameters), cohorts of 50 and 500 clients with 100 images each:

- SPAM-PP's gradient exchange (the difference at two points, over all images), beside twice a central gradient over the
  same images; at most 1.05 is the aim;
- a round of FedAvg (5 local steps of 20 images each), beside one central gradient over the same images; at most 1.6;
- the same round in PyTorch, one client after another and under ``torch.func.vmap``.

Then rounds a second at cohort 50 over 3,400 clients of log-normal size, softmax regression and the CNN, beside one
process of pfl where it is installed. Each part is a process of its own, so that its peak memory is its own, and one
that fails says why and leaves the others alone. --small tries everything in small on whatever device there is.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import sides

IMAGES = sides.LOCAL_STEPS * sides.BATCH  # of a client


def central(asked):
    """One central gradient, and SPAM-PP's exchange, over all images of a cohort."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from fedspam import Ragged, spam_pp
    from fedspam.federation.traced import Traced
    from fedspam.models import femnist_cnn

    model = femnist_cnn(sides.CLASSES, dtype=asked.dtype)
    images, labels, offsets = sides.draw(asked.cohort, equal=asked.images)
    clients = Ragged.of_sizes({"features": images, "label": labels}, np.diff(offsets), model.loss)
    x, x_prev, key = model.init(0), model.init(1), jax.random.key(0)
    total = len(images)

    def gradient(x, rows, parts):
        """The best central gradient: all images at once, or in a few parts that are added up."""
        loss = lambda x, rows: jnp.sum(model.loss(x, rows)) / total
        if parts == 1:
            return jax.grad(loss)(x, rows)
        split = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), rows)
        add = lambda sum, rows: (jax.tree.map(jnp.add, sum, jax.grad(loss)(x, rows)), None)
        return lax.scan(add, jax.tree.map(jnp.zeros_like, x), split)[0]

    method = spam_pp(asked.cohort, 0.1, 0.1)

    @jax.jit
    def exchange(clients, x, x_prev, key):
        fed = Traced(clients, chunk=asked.chunk)
        return fed.mean(
            fed.sample(key, asked.cohort), method.difference, x=x, x_prev=x_prev, fresh_weight=jnp.float32(0.1)
        )

    spam = clocked(exchange, asked, clients, x, x_prev, key)
    peak = jax_peak()  # before the central gradient takes more

    choices = {}
    for parts in (1, 5):
        if total % parts == 0:
            try:
                choices[parts] = clocked(jax.jit(lambda x, rows: gradient(x, rows, parts)), asked, x, clients.examples)
            except Exception as error:  # out of memory: other parts may fit
                print(f"central gradient in {parts} parts: {str(error)[:100]}", file=sys.stderr)
    parts = min(choices, key=lambda parts: choices[parts]["ms"])
    here, there = (
        jax.jit(gradient, static_argnums=2)(x, clients.examples, parts),
        gradient(x_prev, clients.examples, parts),
    )
    expected = jax.tree.map(lambda a, b: a - 0.9 * b, here, there)
    apart, size = (
        float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))))
        for tree in (jax.tree.map(jnp.subtract, exchange(clients, x, x_prev, key), expected), expected)
    )
    return {
        "central_ms": choices[parts]["ms"], "central_parts": parts, "exchange_ms": spam["ms"],
        "exchange_compile_s": spam["compile_s"], "error": apart / size, "memory_mib": peak,
    }  # fmt: skip


def fedavg(asked):
    """A round of FedAvg here, at the chunk that is chosen unless one is given."""
    images, labels, offsets = sides.draw(asked.cohort, equal=asked.images)
    task = sides.Task("cnn", asked.cohort, images, labels, offsets)
    return {**rounds_of(sides.ours(task, chunk=asked.chunk), asked), "memory_mib": jax_peak()}


def torch_side(asked):
    """A round of FedAvg in PyTorch."""
    import torch

    images, labels, offsets = sides.draw(asked.cohort, equal=asked.images)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = sides.Task("cnn", asked.cohort, images, labels, offsets, device=device)
    found = rounds_of(sides.torch_loop(task) if asked.part == "torch-loop" else sides.torch_vmap(task), asked)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {**found, "memory_mib": peak}


def ragged(asked):
    """Rounds a second over 3,400 clients of log-normal size."""
    images, labels, offsets = sides.draw(asked.clients)
    task = sides.Task(asked.model, asked.cohort, images, labels, offsets)
    many = 50 if asked.model == "softmax" and not asked.small else 1
    found = rounds_of(sides.ours(task, chunk=asked.chunk, every=many), asked)
    return {"ms": found["ms"] / many, "compile_s": found["compile_s"], "memory_mib": jax_peak()}


def pfl(asked):
    """The same in one process of pfl."""
    import torch

    images, labels, offsets = sides.draw(asked.clients)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = sides.Task(asked.model, asked.cohort, images, labels, offsets, device=device)
    ends = [time.perf_counter()]
    sides.pfl_rounds(task, 8, lambda: ends.append(time.perf_counter()))
    return {"ms": 1e3 * statistics.median(np.diff(ends[2:])), "memory_mib": None}


def clocked(function, asked, *arguments):
    """Milliseconds of a compiled call: the median over a few seconds."""
    import jax

    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    compile_s = time.perf_counter() - began
    return {"ms": median_ms(lambda: jax.block_until_ready(function(*arguments)), asked), "compile_s": compile_s}


def rounds_of(rounds, asked):
    began = time.perf_counter()
    next(rounds)
    compile_s = time.perf_counter() - began
    return {"ms": median_ms(lambda: next(rounds), asked), "compile_s": compile_s}


def median_ms(call, asked):
    spans, began = [], time.perf_counter()
    while not spans or (time.perf_counter() - began < asked.seconds and len(spans) < 200):
        start = time.perf_counter()
        call()
        spans.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spans)


def jax_peak():
    import jax

    told = jax.devices()[0].memory_stats() or {}
    return told["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in told else None


def device():
    import jax

    return {"device": str(jax.devices()[0]), "kind": jax.devices()[0].device_kind, "jax": jax.__version__}


PARTS = {
    "device": lambda asked: device(), "central": central, "fedavg": fedavg, "torch-loop": torch_side,
    "torch-vmap": torch_side, "ragged": ragged, "pfl": pfl,
}  # fmt: skip


def ask(part, asked, *options):
    """A part in a process of its own; what it measured, or why it failed."""
    command = [sys.executable, __file__, "--part", part, "--seconds", str(asked.seconds), *map(str, options)]
    if asked.small:
        command.append("--small")
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=asked.limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {asked.limit:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    errors = [line.strip() for line in done.stderr.splitlines() if "Error" in line or "error" in line]
    return {"failed": (errors or done.stderr.splitlines() or [f"exit {done.returncode}"])[-1][:160]}


def number(found, name, digits=4):
    if "failed" in found:
        return found["failed"]
    return "–" if found.get(name) is None else f"{found[name]:.{digits}g}"


def ratio(a, b, factor=1.0):
    return f"{a / (factor * b):.3f}" if a and b else "–"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--cohorts", nargs="*", type=int, default=[50, 500])
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each number")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a part is given up")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", choices=list(PARTS), help="one part alone")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--clients", type=int, default=3400)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--chunk", type=int)
    asked = parser.parse_args()
    if asked.small:
        asked.clients, asked.cohorts = 60, [2, 4] if asked.cohorts == [50, 500] else asked.cohorts
        asked.seconds, asked.limit = min(asked.seconds, 0.5), max(asked.limit, 300)
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked)))
        return

    began = time.perf_counter()
    found = {"device": ask("device", asked), "cohorts": {}, "ragged": {}, "date": time.strftime("%Y-%m-%d")}
    told = found["device"]
    print(f"{told.get('kind', told)}, jax {told.get('jax')}, {found['date']}\n")
    print("| cohort x images | | ms | of central gradients | peak MiB | compile s |\n|---|---|---|---|---|---|")
    for cohort in asked.cohorts:
        here = {
            part: ask(part, asked, "--cohort", cohort) for part in ("central", "fedavg", "torch-vmap", "torch-loop")
        }
        found["cohorts"][cohort] = here
        one, name = here["central"], f"| {cohort} x {IMAGES} |"
        base = one.get("central_ms")
        print(f"{name} central gradient ({one.get('central_parts')} parts) | {number(one, 'central_ms')} | 1 | | |")
        print(f"{name} SPAM-PP's gradient exchange | {number(one, 'exchange_ms')} | "
              f"{ratio(one.get('exchange_ms'), base, 2)} of two | {number(one, 'memory_mib')} | "
              f"{number(one, 'exchange_compile_s', 2)} |")  # fmt: skip
        for part, what in (("fedavg", "FedAvg round"), ("torch-vmap", "the same, torch.func.vmap"),
                           ("torch-loop", "the same, PyTorch loop")):  # fmt: skip
            row = here[part]
            print(f"{name} {what} | {number(row, 'ms')} | {ratio(row.get('ms'), base)} of one | "
                  f"{number(row, 'memory_mib')} | {number(row, 'compile_s', 2)} |", flush=True)  # fmt: skip
        print(f"<!-- relative error of the exchange against the central gradients: {number(one, 'error')} -->")

    cohort = 4 if asked.small else 50
    print(
        f"\n| cohort {cohort} of {asked.clients} clients, log-normal | ms a round | rounds/s | times pfl | peak MiB |"
    )
    print("|---|---|---|---|---|")
    for model in ("softmax", "cnn"):
        options = ("--model", model, "--cohort", cohort)
        chunks = {"": [], ", chunks of 10": ["--chunk", 10]} if model == "cnn" and not asked.small else {"": []}
        peer = ask("pfl", asked, *options)
        found["ragged"][f"{model} pfl"] = peer
        for label, chunk in chunks.items():
            row = ask("ragged", asked, *options, *chunk)
            found["ragged"][model + label] = row
            rate = f"{1e3 / row['ms']:.4g}" if "ms" in row else "–"
            print(f"| {model}{label} | {number(row, 'ms')} | {rate} | {ratio(peer.get('ms'), row.get('ms'))} | "
                  f"{number(row, 'memory_mib')} |")  # fmt: skip
        rate = f"{1e3 / peer['ms']:.4g}" if "ms" in peer else "–"
        print(f"| {model}, pfl | {number(peer, 'ms')} | {rate} | 1 | |", flush=True)
    found["seconds"] = time.perf_counter() - began
    print(f"\nin {found['seconds']:.0f} s")
    if asked.out:
        Path(asked.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
