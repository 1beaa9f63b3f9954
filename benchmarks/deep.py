"""A FedAvg round of ResNet-18 with BatchNorm, against central training of the same images in JAX and in PyTorch.

    python benchmarks/deep.py --out deep.json
    python benchmarks/deep.py --cohort 2 --batch 4 --steps 1 --side 8 --repeats 1 --only jax,bridge

The images are noise of CIFAR-10's size. A round is 5 local steps of 32 images on each of 10 clients: in JAX, and as the
PyTorch module through `from_torch`, with clients side by side and one after another. Central training takes the same
1,600 images in 5 steps of 320, and in 50 steps of 32. Float32 has TF32 products, and bfloat16 is mixed precision: the
parameters stay float32. A program that fails is told and left out.
"""

import argparse
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from threading import Lock

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
ROUNDS = 4  # in one program
TRACING = Lock()  # PyTorch traces one module at a time


def network(flags):
    import torch

    from torch_zoo import Basic, ResNet

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    return ResNet(Basic, tuple(flags.widths), (2, 2, 2, 2))


def rows(flags, count, first):
    made = np.random.default_rng(count)
    shape = (3, flags.side, flags.side) if first else (flags.side, flags.side, 3)
    return {
        "features": made.normal(size=(count, *shape)).astype(np.float32),
        "label": made.integers(0, 10, count).astype(np.int32),
    }


def of_kind(kind, dtype, flags):
    import dataclasses

    from fedspam.models import Model, Normalization, from_torch
    from fedspam.models.networks import Residual

    policy = Normalization("averaged")
    if kind == "bridge":
        import torch

        module = network(flags).to(getattr(torch, dtype))  # so that PyTorch traces it with inputs of this type
        return dataclasses.replace(from_torch(module, normalization="averaged"), dtype=dtype)
    network_ = Residual((flags.side, flags.side, 3), 10, tuple(flags.widths), (2, 2, 2, 2))
    return Model(network_, dtype, normalization=policy)


def federated(kind, dtype, chunk, flags):
    """A program of `ROUNDS` rounds: compiled, and how to run it."""
    from fedspam import Ragged, fedavg
    from fedspam.simulation import engine

    with TRACING if kind == "bridge" else nullcontext():
        model = of_kind(kind, dtype, flags)
        clients = [rows(flags, 2 * flags.batch, kind == "bridge") for _ in range(flags.cohort)]
        population = Ragged.of(clients, model.loss, batch=flags.batch)
        setup, _ = engine.prepared(
            fedavg(flags.cohort, flags.steps, 0.01), population, model.init(0), jax.random.key(0), chunk=chunk
        )
        carry = engine.begin(setup)[0]
        args = (setup, carry, jnp.int32(0), jnp.int32(ROUNDS))
        lowered = engine.advance.lower(*args, length=ROUNDS, every=ROUNDS, record=())
    program = lowered.compile()
    return lambda: jax.block_until_ready(program(*args).carry)


def central(dtype, batch, flags):
    """The same network and step, on minibatches of all images: `ROUNDS` passes."""
    model = of_kind("jax", dtype, flags)
    data = jax.tree.map(jnp.asarray, rows(flags, flags.cohort * flags.steps * flags.batch, False))
    count = flags.cohort * flags.steps * flags.batch // batch

    @jax.jit
    def train(params, data):
        def step(params, number):
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number % count * batch, batch), data)

            def loss(params):
                losses, after = model.loss.of_batch(params, part, key=None, kept=jnp.ones(batch, bool))
                return losses.mean(), after

            gradient, after = jax.grad(loss, has_aux=True)(params)
            own = jax.tree.map(lambda leaf, slope: leaf - 0.01 * slope, params["params"], gradient["params"])
            return {"params": own, "statistics": after["statistics"]}, None

        return jax.lax.scan(step, params, jnp.arange(ROUNDS * count))[0]

    params = model.init(0)
    program = train.lower(params, data).compile()
    return lambda: jax.block_until_ready(program(params, data))


def by_torch(dtype, batch, flags):
    """The PyTorch module, trained centrally on the same number of images."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = network(flags).to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    made = rows(flags, flags.cohort * flags.steps * flags.batch, True)
    images = torch.tensor(made["features"]).to(device, memory_format=torch.channels_last)
    labels = torch.tensor(made["label"]).long().to(device)

    def run():
        for _ in range(ROUNDS):
            for start in range(0, len(labels), batch):
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                    scores = module(images[start : start + batch])
                torch.nn.functional.cross_entropy(scores.float(), labels[start : start + batch]).backward()
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    return run


def timed(run, repeats):
    """Milliseconds of one round: the best of several, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1000 * min(times) / ROUNDS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--widths", type=int, nargs=4, default=(64, 128, 256, 512))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200, help="begin no further program after so many")
    parser.add_argument("--only", default="jax,bridge,central,torch")
    flags = parser.parse_args()
    began, only, many = time.perf_counter(), flags.only.split(","), flags.cohort * flags.batch
    programs = {}
    for dtype in ("bfloat16", "float32"):
        if "jax" in only:
            for chunk in (1, flags.cohort):
                name = f"FedAvg in JAX, {'one after another' if chunk == 1 else 'side by side'}, {dtype}"
                programs[name] = lambda dtype=dtype, chunk=chunk: federated("jax", dtype, chunk, flags)
        if "bridge" in only:
            name = f"FedAvg of the PyTorch module, one after another, {dtype}"
            programs[name] = lambda dtype=dtype: federated("bridge", dtype, 1, flags)
        for batch in (many, flags.batch):
            if "central" in only:
                name = f"central in JAX, steps of {batch}, {dtype}"
                programs[name] = lambda dtype=dtype, batch=batch: central(dtype, batch, flags)
            if "torch" in only:
                name = f"central in PyTorch, steps of {batch}, {dtype}"
                programs[name] = lambda dtype=dtype, batch=batch: by_torch(dtype, batch, flags)

    found = {}
    print("| | ms per round |\n|---|---|", flush=True)

    def done(name, make, repeats):
        try:
            found[name] = timed(make() if repeats is None else make, repeats or flags.repeats)
            print(f"| {name} | {found[name]:.2f} |", flush=True)
        except Exception as error:  # the other programs are still of use
            traceback.print_exc(limit=-3)
            print(f"| {name} | fails: {type(error).__name__} |", flush=True)
        if flags.out:
            Path(flags.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    # programs of JAX are compiled at once, and then timed alone
    with ThreadPoolExecutor(8) as pool:
        made = {name: pool.submit(make) for name, make in programs.items() if "in PyTorch" not in name}
        wait(made.values())
    print(f"<!-- compiled after {time.perf_counter() - began:.0f} s -->", flush=True)
    for name, make in programs.items():
        if time.perf_counter() - began > flags.seconds:
            print(f"| {name} | no time left |", flush=True)
        elif name in made:
            error = made[name].exception()
            if error is None:
                done(name, made[name].result(), flags.repeats)
            else:
                traceback.print_exception(error, limit=-3)
                print(f"| {name} | fails: {type(error).__name__} |", flush=True)
        else:
            done(name, make, None)
    print(f"<!-- {jax.devices()[0].device_kind}, {time.perf_counter() - began:.0f} s -->")


if __name__ == "__main__":
    main()
