"""Which mushrooms are poisonous? Twenty collectors who found different kinds of them agree on one answer.

    python examples/mushrooms.py [--clients 20] [--rounds 300] [--alpha 1]

The split is by Dirichlet's shares, so that clients differ. Centrally the optimum is 0.050301979486, where 99.90 % of
the rows are told right. FedAvg, with as many bytes and the best step size of 0.1, 0.3 and 0.6, shows what going one's
own way costs.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedspam import datasets, simulate, spam_pp
from fedspam.methods import fedavg
from fedspam.problems import logistic

OPTIMUM = 0.050301979486


def main(clients: int = 20, rounds: int = 300, alpha: float = 1.0) -> dict[str, float]:
    jax.config.update("jax_enable_x64", True)  # six digits of a loss need more than float32 has

    # 1. The rows, labels 1 and 2, split so unevenly that some clients see hardly any poisonous ones.
    read = datasets.read_libsvm(datasets.data_path("libsvm/mushrooms"))
    labels = (read.labels == 2).astype(int)
    owners = datasets.dirichlet(labels, clients, alpha)
    population = logistic(read.features, labels, owners, regularization=1e-3, weighted=True)

    # 2. What to look at along the way: the pooled loss, and how many rows are told right.
    def look(rows, x):
        right = rows["label"] * (rows["features"] @ x) > 0
        return {"loss": jnp.mean(population.loss(x, rows)), "accuracy": jnp.mean(right)}

    probe, start = Partial(look, population.examples), jnp.zeros(read.features.shape[1])

    # 3. Two methods on the same clients. SPAM-PP asks everyone for gradients, and one client to solve its problem.
    found = {}
    print("method     rounds      MB up   loss above optimum   accuracy")
    for name, method, share in (
        ("spam_pp", spam_pp(clients, step_size=30.0, fresh_weight=1.0), 1.0),
        ("fedavg", fedavg(clients, local_steps=5, local_rate=0.6), 1.05),  # one exchange a round: a little more of them
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
