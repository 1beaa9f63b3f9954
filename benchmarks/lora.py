"""Adapters against full training on Shakespeare: the accuracy and the bytes of a transformer that knows other roles.

    python benchmarks/lora.py [--rounds 100] [--roles 60] [--width 64] [--data FOLDER]

A character transformer is trained on half of the roles with FedAvg. Then the other half trains it further: all of its
parameters, adapters of rank 2 and 8 (LoRA), or its last layer norm and embeddings alone. The accuracy is that of the
next character in the last fifth of what the second half says. Meant for a GPU.
"""

import argparse

from fedspam import Evaluation, datasets, fedavg, simulate
from fedspam.models import char_transformer, lora, train_part

RATES = (0.1, 0.3, 1.0)  # the best of these, for every row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--roles", type=int, default=60, help="the longest ones; every second of them is of each half")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--data", help="the folder of the data sets ($FEDSPAM_DATA, else ./data)")
    options = parser.parse_args()
    try:
        data = datasets.read_shakespeare(options.data)
    except FileNotFoundError as error:
        parser.exit(0, f"skipped: {error}\n")
    longest = sorted(range(len(data.train)), key=lambda role: -int(data.train.sizes[role]))[: options.roles]
    first, second = longest[::2], longest[1::2]
    model = char_transformer(datasets.SYMBOLS, width=options.width, heads=4, layers=2)
    judge_of = lambda one: Evaluation.of(data.test.take(second), one.correct, block=512)

    def train(one, start, roles, rate):
        clients = data.train.take(roles).population(one.loss, batch=10)
        method = fedavg(min(10, len(roles)), local_steps=10, local_rate=rate)
        return simulate(method, clients, start, rounds=options.rounds, key=0, probe=judge_of(one), every=options.rounds)

    pre = max((train(model, model.init(0), first, rate) for rate in RATES), key=lambda run: run.probes["accuracy"][-1])
    base = pre.params
    rows = {
        "all parameters": model,
        "adapters of rank 8": lora(model, base, rank=8, names="block*"),
        "adapters of rank 2": lora(model, base, rank=2, names="block*"),
        "embeddings and last norm": train_part(model, base, ("characters", "norm.*")),
    }
    print(f"{options.roles} roles, width {options.width}, {options.rounds} rounds each; before: "
          f"{float(pre.probes['accuracy'][-1]):.4f}\n")  # fmt: skip
    print("| trained | parameters | kB up per client and round | accuracy | local rate |\n|---|---|---|---|---|")
    for name, one in rows.items():
        start = base if one is model else one.init(0)
        runs = {rate: train(one, start, second, rate) for rate in RATES}
        rate, run = max(runs.items(), key=lambda item: item[1].probes["accuracy"][-1])
        clients = min(10, len(second))
        count = int(run.rows["floats_up"][0]) // clients
        sent = float(run.rows["bytes_up"][0]) / clients / 1e3
        print(f"| {name} | {count:,} | {sent:.1f} | {float(run.probes['accuracy'][-1]):.4f} | {rate:g} |", flush=True)


if __name__ == "__main__":
    main()
