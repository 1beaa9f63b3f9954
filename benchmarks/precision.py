"""What the precision of matrix products does to gradient differences, and to a run of SPAM-PP.

    python benchmarks/precision.py [--hidden 200] [--rounds 1000]

On newer GPUs of NVIDIA, products of float32 matrices round their inputs to TF32, which has 10 bits after the point
instead of 23. SPAM-PP, MVR and their relatives use differences of two gradients, and where x is near x_prev most of the
two cancels. The first table has the relative error of such a difference against float64 on the CPU, for steps
|x - x_prev|/|x| from 1 to 1e-5. The second has |grad f| along runs of SPAM-PP, evaluated in float64, and the time
per round: with a few clients per round, and with all of them and a small fresh weight, where nothing else hides the
rounding. TF32 is also emulated by rounding the inputs of every product, so that this runs anywhere.
"""

import argparse
import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Ragged, simulate, spam_pp
from fedspam.solvers import GradientDescent

STEPS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
MODES = ("device default", "float32", "emulated TF32")
FEATURES, CLASSES, CLIENTS, ROWS = 64, 10, 20, 100


def rounded(x):
    """x with 10 bits after the point, to the nearest, ties to even, as TF32 has them."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits = bits + jnp.uint32(0xFFF) + ((bits >> 13) & jnp.uint32(1))
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFE000), jnp.float32)


@jax.custom_vjp
def tf32_product(a, b):
    return jnp.matmul(rounded(a), rounded(b), precision="highest")


tf32_product.defvjp(
    lambda a, b: (tf32_product(a, b), (a, b)), lambda kept, d: (tf32_product(d, kept[1].T), tf32_product(kept[0].T, d))
)


def loss_by(product):
    """The loss of every row of a network with one hidden layer, with this product of matrices."""

    def loss(params, rows):
        hidden = jnp.tanh(product(rows["features"], params["in"]))
        logits = product(hidden, params["out"])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), rows["label"][:, None], 1)[:, 0]

    return loss


def task(hidden, dtype=np.float32):
    """The rows of all clients, labeled by another network, and the first parameters."""
    random = np.random.default_rng(0)
    weights = lambda *shape: (random.normal(size=shape) / np.sqrt(shape[0])).astype(dtype)
    features = random.normal(size=(CLIENTS * ROWS, FEATURES)).astype(dtype)
    teacher = np.tanh(features @ weights(FEATURES, hidden)) @ weights(hidden, CLASSES)
    rows = {"features": features, "label": np.argmax(teacher, 1).astype(np.int32)}
    return rows, {"in": weights(FEATURES, hidden), "out": weights(hidden, CLASSES)}


def gradient_by(mode, rows):
    """params -> the gradient of the mean loss over the rows, compiled for a mode."""
    loss = loss_by(tf32_product if mode == "emulated TF32" else jnp.matmul)
    gradient = jax.jit(jax.grad(lambda params, rows: jnp.mean(loss(params, rows))))

    def call(params):
        with precision(mode):
            return flat(gradient(params, rows))

    return call


def precision(mode):
    return jax.default_matmul_precision("float32") if mode == "float32" else contextlib.nullcontext()


def exact_gradient(rows, params):
    """The gradient in float64, on the CPU."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = lambda leaf: np.asarray(leaf, np.float64) if np.asarray(leaf).dtype.kind == "f" else np.asarray(leaf)
        loss = loss_by(jnp.matmul)
        gradient = jax.grad(lambda params, rows: jnp.mean(loss(params, rows)))
        return flat(gradient(jax.tree.map(wide, params), jax.tree.map(wide, rows)))


def flat(tree):
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def difference_errors(mode, hidden, steps=STEPS):
    """|D - D_64| / |D_64| for D = grad f(x) - grad f(x_prev), at each distance of x and x_prev."""
    rows, x = task(hidden)
    random, gradient = np.random.default_rng(1), gradient_by(mode, rows)
    there, exact_there = gradient(x), exact_gradient(rows, x)
    errors = []
    for step in steps:
        noise = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), x)
        scale = step * np.linalg.norm(flat(x)) / np.linalg.norm(flat(noise))
        y = jax.tree.map(lambda leaf, other: np.float32(leaf + scale * other), x, noise)
        exact = exact_gradient(rows, y) - exact_there
        errors.append(float(np.linalg.norm(gradient(y) - there - exact) / np.linalg.norm(exact)))
    return errors


def curve(mode, hidden, rounds, cohort, fresh_weight):
    """|grad f| at a few rounds of SPAM-PP, and the milliseconds per round."""
    rows, x = task(hidden)
    loss = loss_by(tf32_product if mode == "emulated TF32" else jnp.matmul)
    clients = Ragged.of_sizes(rows, [ROWS] * CLIENTS, loss)
    method = spam_pp(cohort, 0.5, fresh_weight, solver=GradientDescent(3, smoothness=2.0))
    norms = [np.linalg.norm(exact_gradient(rows, x))]
    with precision(mode):
        for upto in (rounds // 10, rounds // 3, rounds):
            run = simulate(method, clients, x, rounds=upto, key=0, record=())
            norms.append(np.linalg.norm(exact_gradient(rows, jax.tree.map(np.asarray, run.params))))
    return norms, 1e3 * run.run_seconds / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {FEATURES}-{options.hidden}-{CLASSES} network\n")
    print("relative error of the gradient difference, by |x - x_prev|/|x|\n")
    print(f"| products | {' | '.join(f'{step:g}' for step in STEPS)} |\n|---|{'---|' * len(STEPS)}")
    for mode in MODES:
        errors = difference_errors(mode, options.hidden)
        print(f"| {mode} | {' | '.join(f'{error:.1e}' for error in errors)} |", flush=True)
    at = (0, options.rounds // 10, options.rounds // 3, options.rounds)
    print(f"\n| run | products | {' | '.join(f'norm at {k}' for k in at)} | ms per round |\n|---|---|{'---|' * 5}")
    for cohort, fresh_weight in ((5, 0.1), (CLIENTS, 0.01)):
        for mode in MODES:
            norms, ms = curve(mode, options.hidden, options.rounds, cohort, fresh_weight)
            shown = " | ".join(f"{norm:.4g}" for norm in norms)
            print(f"| cohort {cohort}, p = {fresh_weight:g} | {mode} | {shown} | {ms:.3f} |", flush=True)
    print(f"\nin {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
