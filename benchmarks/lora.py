"""Adapters against full training on Shakespeare: the accuracy and the bytes of a transformer that knows other roles.

    python benchmarks/lora.py [--pretrain 1000] [--rounds 300] [--roles 400] [--width 128] [--data FOLDER]

A character transformer is trained on half of the roles with FedAvg, whose clients take ten steps of Adam. Then the
other half trains it further: all of its parameters, adapters of rank 2 and 8 (LoRA), or its last layer norm and
embeddings alone. The accuracy is that of the next character in the last fifth of what the second half says. Three rates
run side by side, and the best counts. Meant for a GPU.
"""

import argparse
import time

import jax
import numpy as np
import optax

from fedspam import Evaluation, datasets, fedavg, simulate_many
from fedspam.models import char_transformer, lora, train_part

RATES = (0.001, 0.003, 0.01)
COHORT = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pretrain", type=int, default=1000, metavar="N", help="rounds on the first half of the roles")
    parser.add_argument("--rounds", type=int, default=300, help="on the second half, for every row")
    parser.add_argument("--roles", type=int, default=400, help="the longest ones; every second of them is of each half")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--data", help="the folder of the data sets ($FEDSPAM_DATA, else ./data)")
    options = parser.parse_args()
    try:
        data = datasets.read_shakespeare(options.data)
    except FileNotFoundError as error:
        parser.exit(0, f"skipped: {error}\n")
    longest = sorted(range(len(data.train)), key=lambda role: -int(data.train.sizes[role]))[: options.roles]
    first, second = longest[::2], longest[1::2]
    model = char_transformer(datasets.SYMBOLS, width=options.width, heads=4, layers=2)

    def train(one, start, roles, rounds):
        """The run of the best rate: its parameters, accuracies before and after, rate, numbers and bytes up."""
        clients = data.train.take(roles).population(one.loss, batch=10)
        judge = Evaluation.of(data.test.take(second), one.correct, block=512)
        adam = optax.scale_by_adam()  # one object: equal settings compile once
        methods = [fedavg(min(COHORT, len(roles)), 10, rate, optimizer=adam) for rate in RATES]
        run = simulate_many(methods, clients, start, rounds=rounds, keys=[0], probe=judge, every=rounds)
        accuracy = run.probes["accuracy"][:, 0]
        best = int(np.argmax(accuracy[:, -1]))
        sent = {name: float(run.rows[name][best, 0, 0]) / min(COHORT, len(roles)) for name in ("floats_up", "bytes_up")}
        params = jax.tree.map(lambda leaf: leaf[best, 0], run.params)
        return params, accuracy[best], RATES[best], sent

    began = time.perf_counter()
    base, accuracy, rate, _ = train(model, model.init(0), first, options.pretrain)
    print(f"{options.roles} roles, width {options.width}: {options.pretrain} rounds on one half with rate {rate:g}, "
          f"then {options.rounds} on the other, which begins with {accuracy[-1]:.4f}\n")  # fmt: skip
    print(
        "| trained | parameters | kB up per client and round | accuracy | local rate | s |\n|---|---|---|---|---|---|"
    )
    for name, one in {
        "all parameters": model,
        "adapters of rank 8": lora(model, base, rank=8, names="block*"),
        "adapters of rank 2": lora(model, base, rank=2, names="block*"),
        "embeddings and last norm": train_part(model, base, ("characters", "norm.*")),
    }.items():
        row = time.perf_counter()
        _, accuracy, rate, sent = train(one, base if one is model else one.init(0), second, options.rounds)
        print(f"| {name} | {sent['floats_up']:,.0f} | {sent['bytes_up'] / 1e3:.1f} | {accuracy[-1]:.4f} | {rate:g} | "
              f"{time.perf_counter() - row:.0f} |", flush=True)  # fmt: skip
    print(f"\n{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
