"""Which mushrooms are poisonous? Twenty clients with different kinds of mushrooms train one model.

    python examples/mushrooms.py [--clients 20] [--rounds 300] [--alpha 1]

The rows are split by a Dirichlet distribution, so that clients differ. The optimal loss is 0.050301979486. There,
99.90 % of the rows are classified correctly. FedAvg gets as many bytes as SPAM-PP, and the best rate of 0.1, 0.3 and
0.6. It ends farther from the optimum, because its clients drift apart.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedspam import datasets, fedavg, simulate, spam_pp
from fedspam.problems import logistic

OPTIMUM = 0.050301979486


def main(clients: int = 20, rounds: int = 300, alpha: float = 1.0) -> dict[str, float]:
    jax.config.update("jax_enable_x64", True)  # six digits of a loss need more than float32 has

    # 1. Read the rows, with labels 1 and 2, and split them. Some clients get hardly any poisonous mushrooms.
    read = datasets.read_libsvm(datasets.data_path("libsvm/mushrooms"))
    labels = (read.labels == 2).astype(int)
    owners = datasets.dirichlet(labels, clients, alpha)
    population = logistic(read.features, labels, owners, regularization=1e-3, weighted=True)

    # 2. The probe: the loss over all rows, and the share of rows that are classified correctly.
    def evaluate(rows, x):
        right = rows["label"] * (rows["features"] @ x) > 0
        return {"loss": jnp.mean(population.loss(x, rows)), "accuracy": jnp.mean(right)}

    probe, start = Partial(evaluate, population.examples), jnp.zeros(read.features.shape[1])

    # 3. Two methods on the same clients. In SPAM-PP, all clients send gradients and one client solves its prox.
    found = {}
    print("method     rounds      MB up   loss above optimum   accuracy")
    for name, method, share in (
        ("spam_pp", spam_pp(clients, step_size=30.0, fresh_weight=1.0), 1.0),
        ("fedavg", fedavg(clients, local_steps=5, local_rate=0.6), 1.05),  # a few more rounds, for as many bytes
    ):
        run = simulate(method, population, start, rounds=int(share * rounds), key=0, probe=probe)
        gap, accuracy = float(run.probes["loss"][-1]) / OPTIMUM - 1, float(run.probes["accuracy"][-1])
        print(f"{name:9} {run.rounds:7} {run.rows['bytes_up'].sum() / 1e6:10.1f} {gap:20.1e} {accuracy:10.4f}")
        found |= {f"{name}.gap": gap, f"{name}.accuracy": accuracy}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SPAM-PP and FedAvg on mushrooms")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--alpha", type=float, default=1.0)
    main(**vars(parser.parse_args()))
