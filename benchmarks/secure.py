"""What a secure sum costs at 10 and 100 clients, with clients that drop out in the midst of it.

    python benchmarks/secure.py [--clients 10 100] [--neighbors 32] [--dimension 1000] [--lost 0 0.1 0.3] [--rounds 3]

MVR over an in-process grid of Flower messages, all clients in every round; each has one row of its own, so that next to
nothing is spent on gradients. Some clients are lost for good after they have shared their keys, when they should send
their masked reply: the worst moment, because the others must then reveal the masks that they had with each lost client.
All work of clients and server happens in this process, one after another; seconds are those of the processor, and `per
client` is what a client spends. The error is that of the mean gradient against the mean of the clients that stayed, and
the bytes are those of Flower's records, for the whole round and all clients, beside a round in clear.
"""

import argparse
import logging
import time

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Error, Message

from fedspam import Ragged
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.methods import mvr


def run(clients, dimension, lost, secure, rounds):
    """Seconds per round in all and on a client, megabytes per round, the error of the sum, and clients that counted."""
    rows = np.random.default_rng(0).normal(size=(clients, 1, dimension))
    population = Ragged.of(list(rows), lambda x, rows: 0.5 * jnp.sum((x - rows) ** 2, axis=1))
    x = jnp.ones(dimension)
    method = mvr(clients, step_size=0.1, fresh_weight=1.0, start="zero", first="update")  # g is the mean gradient
    app = client_app(clients_of(population), method, x, secure=secure)
    gone, spent = set(range(round(lost * clients))), []

    def twist(client, message, answer):
        if client in gone and message.metadata.message_type == "train.difference":
            return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]
        began = time.process_time()
        replies = [answer()]
        spent.append(time.process_time() - began)
        return replies

    def start(count):
        options = {"seed": 3, "replies": Replies(quorum=0.5, retries=2, patience=1), "introductions": clients}
        strategy = FedspamStrategy(method, x, secure=secure, **options)
        began = time.process_time()
        result = strategy.start(LoopbackGrid(app, clients, twist=twist), to_arrays(x), num_rounds=count, timeout=600)
        return result, time.process_time() - began

    first, _ = start(1)  # with all compilation
    spent.clear()
    result, many = start(rounds + 1)
    here = [id for id in range(clients) if id not in gone]
    expected = x - 0.1 * (x - rows[here].mean((0, 1)))
    error = np.abs(first.arrays["params"].numpy() - expected).max() / 0.1
    row = result.train_metrics_clientapp[rounds + 1]
    bytes_of = lambda row: row["flower_down"] + row["flower_up"]
    return (
        many / (rounds + 1),
        sum(spent) / clients / (rounds + 1),
        bytes_of(row) / 1e6,
        error,
        row["difference.accepted"],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--neighbors", type=int, default=32, help="of the sparse graph; above 200 clients the only one")
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--lost", type=float, nargs="*", default=[0.0, 0.1, 0.3])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"{options.dimension} numbers, jax {jax.__version__}, {jax.devices()[0].device_kind}\n")
    print("| clients | lost | sum | counted | s per round | ms per client | MB per round | error |")
    print("|---|---|---|---|---|---|---|---|")
    for clients in options.clients:
        graphs = [None] * (clients <= 200) + [options.neighbors] * (clients > options.neighbors + 1)
        sums = {f"secure, {near or 'all'} neighbors": SecureSum(threshold=0.6, neighbors=near) for near in graphs}
        for lost in options.lost:
            for kind, secure in ({"in clear": None} | sums if lost == 0 else sums).items():
                seconds, own, megabytes, error, counted = run(clients, options.dimension, lost, secure, options.rounds)
                print(
                    f"| {clients} | {round(lost * clients)} | {kind} | {counted} | {seconds:.2f} | {1000 * own:.1f} | "
                    f"{megabytes:.3f} | {error:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
