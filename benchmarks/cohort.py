"""Whole cohorts on one accelerator, against central gradients and against PyTorch on the same device.

    python benchmarks/cohort.py [--out cohort.json] [--cohorts 50 500] [--small]

The FEMNIST CNN (1.2 million parameters), cohorts of 50 and 500 clients with 100 images each:

- SPAM-PP's gradient exchange (the difference at two points, over all images), beside twice a central gradient over the
  same images; at most 1.05 is the aim;
- a round of FedAvg (5 local steps of 20 images each), beside one central gradient over the same images; at most 1.6;
- the same round in PyTorch, one client after another and under ``torch.func.vmap``.

Then an account of the distance between the two: the FLOPs and bytes of a local step with weights per client and with
shared ones, by XLA's own count, the bytes of the weights alone, and the rates that the device reaches.

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

import baselines
import numpy as np

IMAGES = baselines.LOCAL_STEPS * baselines.BATCH  # of a client


def central(flags):
    """One central gradient, and SPAM-PP's exchange, over all images of a cohort."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from fedspam import Ragged, spam_pp
    from fedspam.federation.traced import Traced
    from fedspam.models import femnist_cnn

    model = femnist_cnn(baselines.CLASSES, dtype=flags.dtype)
    images, labels, offsets = baselines.draw(flags.cohort, equal=flags.images)
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

    method = spam_pp(flags.cohort, 0.1, 0.1)

    @jax.jit
    def exchange(clients, x, x_prev, key):
        fed = Traced(clients, chunk=flags.chunk)
        return fed.mean(
            fed.sample(key, flags.cohort), method.difference, x=x, x_prev=x_prev, fresh_weight=jnp.float32(0.1)
        )

    spam = clocked(exchange, flags, clients, x, x_prev, key)
    peak = jax_peak()  # before the central gradient takes more

    choices = {}
    for parts in (1, 5):
        if total % parts == 0:
            try:
                choices[parts] = clocked(jax.jit(lambda x, rows: gradient(x, rows, parts)), flags, x, clients.examples)
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


def fedavg(flags):
    """A round of FedAvg here, at the chunk that is chosen unless one is given."""
    images, labels, offsets = baselines.draw(flags.cohort, equal=flags.images)
    task = baselines.Task("cnn", flags.cohort, images, labels, offsets)
    return {**rounds_of(baselines.ours(task, chunk=flags.chunk), flags), "memory_mib": jax_peak()}


def account(flags):
    """A local step with weights per client, beside the same step with shared weights: time, FLOPs and bytes."""
    import jax
    import jax.numpy as jnp

    from fedspam.models import femnist_cnn

    model = femnist_cnn(baselines.CLASSES, dtype=flags.dtype)
    images, labels, _ = baselines.draw(flags.cohort, equal=baselines.BATCH)
    x = model.init(0)
    apart = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], flags.cohort, 0), x)
    together = {"features": jnp.asarray(images), "label": jnp.asarray(labels)}
    split = jax.tree.map(lambda leaf: leaf.reshape(flags.cohort, baselines.BATCH, *leaf.shape[1:]), together)

    def step(x, rows):
        slope = jax.grad(lambda x: jnp.mean(model.loss(x, rows)))(x)
        return jax.tree.map(lambda u, g: u - 0.1 * g, x, slope)

    def counted(function, *arguments):
        found = jax.jit(function).lower(*arguments).compile().cost_analysis()
        found = found[0] if isinstance(found, list) else found
        measured = clocked(jax.jit(function), flags, *arguments)
        return {"ms": measured["ms"], "flops": found.get("flops"), "bytes": found.get("bytes accessed")}

    wide = 512 if flags.small else 8192
    square = jnp.ones((wide, wide), flags.dtype)
    product = clocked(jax.jit(jnp.matmul), flags, square, square)["ms"]
    line = jnp.ones(2**22 if flags.small else 2**28, jnp.float32)
    copied = clocked(jax.jit(lambda line: line + 1), flags, line)["ms"]
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(x))
    return {
        "own": counted(jax.vmap(step), apart, split), "shared": counted(step, x, together),
        # a step reads a client's weights forward, backward and in the update, and writes the gradient and the weights
        "weights_bytes": 5 * weights * flags.cohort, "flops_per_s": 2e3 * wide**3 / product,
        "bytes_per_s": 2e3 * line.nbytes / copied,
    }  # fmt: skip


def tell(found):
    """The account as text: for each step its time, and the time that its FLOPs and bytes take at the device's rates."""
    if "failed" in found:
        return f"no account: {found['failed']}"
    rate, width = found["flops_per_s"], found["bytes_per_s"]
    lines = [
        f"the device multiplies matrices at {rate / 1e12:.3g} TFLOP/s and copies {width / 1e9:.4g} GB/s (measured)",
        "| one local step of the cohort | ms | GFLOP | ms at that rate | GB by XLA's count | ms at that rate |",
        "|---|---|---|---|---|---|",
    ]
    for name, key in (("weights per client", "own"), ("shared weights", "shared")):
        each = found[key]
        flops, moved = each["flops"] or float("nan"), each["bytes"] or float("nan")
        lines.append(
            f"| {name} | {each['ms']:.4g} | {flops / 1e9:.4g} | {1e3 * flops / rate:.3g} | {moved / 1e9:.4g} | "
            f"{1e3 * moved / width:.3g} |"
        )
    extra, cost = found["weights_bytes"], found["own"]["ms"] - found["shared"]["ms"]
    lines.append(
        f"weights per client alone move {extra / 1e9:.3g} GB per step, at least {1e3 * extra / width:.3g} ms of the "
        f"{cost:.3g} ms that they cost"
    )
    return "\n".join(lines)


def torch_side(flags):
    """A round of FedAvg in PyTorch."""
    import torch

    images, labels, offsets = baselines.draw(flags.cohort, equal=flags.images)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = baselines.Task("cnn", flags.cohort, images, labels, offsets, device=device)
    found = rounds_of(baselines.torch_loop(task) if flags.part == "torch-loop" else baselines.torch_vmap(task), flags)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {**found, "memory_mib": peak}


def ragged(flags):
    """Rounds a second over 3,400 clients of log-normal size."""
    images, labels, offsets = baselines.draw(flags.clients)
    task = baselines.Task(flags.model, flags.cohort, images, labels, offsets)
    many = 50 if flags.model == "softmax" and not flags.small else 1
    found = rounds_of(baselines.ours(task, chunk=flags.chunk, every=many), flags)
    return {"ms": found["ms"] / many, "compile_s": found["compile_s"], "memory_mib": jax_peak()}


def pfl(flags):
    """The same in one process of pfl."""
    import torch

    images, labels, offsets = baselines.draw(flags.clients)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = baselines.Task(flags.model, flags.cohort, images, labels, offsets, device=device)
    ends = [time.perf_counter()]
    baselines.pfl_rounds(task, 8, lambda: ends.append(time.perf_counter()))
    return {"ms": 1e3 * statistics.median(np.diff(ends[2:])), "memory_mib": None}


def clocked(function, flags, *arguments):
    """Milliseconds of a compiled call: the median over a few seconds."""
    import jax

    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    compile_s = time.perf_counter() - began
    return {"ms": median_ms(lambda: jax.block_until_ready(function(*arguments)), flags), "compile_s": compile_s}


def rounds_of(rounds, flags):
    began = time.perf_counter()
    next(rounds)
    compile_s = time.perf_counter() - began
    return {"ms": median_ms(lambda: next(rounds), flags), "compile_s": compile_s}


def median_ms(call, flags):
    spans, began = [], time.perf_counter()
    while not spans or (time.perf_counter() - began < flags.seconds and len(spans) < 200):
        start = time.perf_counter()
        call()
        spans.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spans)


def jax_peak():
    import jax

    facts = jax.devices()[0].memory_stats() or {}
    return facts["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in facts else None


def device():
    import jax

    return {"device": str(jax.devices()[0]), "kind": jax.devices()[0].device_kind, "jax": jax.__version__}


PARTS = {
    "device": lambda flags: device(), "central": central, "fedavg": fedavg, "torch-loop": torch_side,
    "torch-vmap": torch_side, "ragged": ragged, "pfl": pfl, "account": account,
}  # fmt: skip


def ask(part, flags, *options):
    """A part in a process of its own; what it measured, or why it failed."""
    command = [sys.executable, __file__, "--part", part, "--seconds", str(flags.seconds), *map(str, options)]
    if flags.small:
        command.append("--small")
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=flags.limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {flags.limit:g} s"}
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
    flags = parser.parse_args()
    if flags.small:
        flags.clients, flags.cohorts = 60, [2, 4] if flags.cohorts == [50, 500] else flags.cohorts
        flags.seconds, flags.limit = min(flags.seconds, 0.5), max(flags.limit, 300)
    if flags.part:
        measured = PARTS[flags.part](flags)
        print(json.dumps(measured))
        if flags.part == "account":
            print(tell(measured))
        return

    began = time.perf_counter()
    found = {"device": ask("device", flags), "cohorts": {}, "ragged": {}, "date": time.strftime("%Y-%m-%d")}
    facts = found["device"]
    print(f"{facts.get('kind', facts)}, jax {facts.get('jax')}, {found['date']}\n")
    print("| cohort x images | | ms | of central gradients | peak MiB | compile s |\n|---|---|---|---|---|---|")
    for cohort in flags.cohorts:
        here = {
            part: ask(part, flags, "--cohort", cohort) for part in ("central", "fedavg", "torch-vmap", "torch-loop")
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
        found["cohorts"][cohort]["account"] = ask("account", flags, "--cohort", cohort, "--dtype", flags.dtype)
        print(f"\n{tell(found['cohorts'][cohort]['account'])}\n", flush=True)

    cohort = 4 if flags.small else 50
    print(
        f"\n| cohort {cohort} of {flags.clients} clients, log-normal | ms per round | rounds/s | times pfl | peak MiB |"
    )
    print("|---|---|---|---|---|")
    for model in ("softmax", "cnn"):
        options = ("--model", model, "--cohort", cohort)
        chunks = {"": [], ", chunks of 10": ["--chunk", 10]} if model == "cnn" and not flags.small else {"": []}
        peer = ask("pfl", flags, *options)
        found["ragged"][f"{model} pfl"] = peer
        for label, chunk in chunks.items():
            row = ask("ragged", flags, *options, *chunk)
            found["ragged"][model + label] = row
            rate = f"{1e3 / row['ms']:.4g}" if "ms" in row else "–"
            print(f"| {model}{label} | {number(row, 'ms')} | {rate} | {ratio(peer.get('ms'), row.get('ms'))} | "
                  f"{number(row, 'memory_mib')} |")  # fmt: skip
        rate = f"{1e3 / peer['ms']:.4g}" if "ms" in peer else "–"
        print(f"| {model}, pfl | {number(peer, 'ms')} | {rate} | 1 | |", flush=True)
    found["seconds"] = time.perf_counter() - began
    print(f"\nin {found['seconds']:.0f} s")
    if flags.out:
        Path(flags.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
