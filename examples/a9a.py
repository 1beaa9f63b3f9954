"""Logistic regression on a9a, to six digits of its optimum, while every client keeps its rows.

    python examples/a9a.py [--clients 20] [--rounds 200] [--rows 32561]

SPAM-PP has to find the optimal loss 0.333340752069, which was computed centrally to a gradient norm of 1e-12.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedspam import Target, datasets, simulate, spam_pp
from fedspam.problems import logistic, solve


def main(clients: int = 20, rounds: int = 200, rows: int = 32561) -> dict[str, float]:
    jax.config.update("jax_enable_x64", True)  # six digits of a loss need more than float32 has

    # 1. Read the rows and split them among the clients.
    read = datasets.read_libsvm(datasets.data_path("libsvm/a9a"), features=123)
    features, labels = read.features[:rows], read.labels[:rows]
    owners = datasets.iid(len(labels), clients)

    # 2. Make the population of clients. It is weighted, so that f is the mean over all rows.
    population = logistic(features, labels, owners, regularization=1e-3, weighted=True)

    # 3. The optimal loss. It is known for all rows; for fewer rows it is computed here, centrally.
    optimum = 0.333340752069 if rows == 32561 else solve(population, jnp.zeros(123)).value
    loss = Partial(lambda rows, x: {"loss": jnp.mean(population.loss(x, rows))}, population.examples)

    # 4. Train. All clients send gradients, and one of them solves its prox. With fresh_weight 1 the past is not used.
    method = spam_pp(cohort_size=clients, step_size=100.0, fresh_weight=1.0)
    enough = Target("loss", at_most=(1 + 1e-6) * optimum)
    run = simulate(method, population, jnp.zeros(123), rounds=rounds, key=0, probe=loss, until=enough)

    final = float(run.probes["loss"][-1])
    test = datasets.read_libsvm(datasets.data_path("libsvm/a9a.t"), features=123)
    accuracy = float(((test.features @ run.params > 0) == (test.labels > 0)).mean())
    sent = run.rows["bytes_up"].sum() / 1e6
    print(f"{run.status}\n{run.rounds} rounds, {sent:.1f} MB from the clients")
    print(f"loss {final:.9f}, {final / optimum - 1:.1e} above the optimum")
    print(f"test accuracy {accuracy:.4f} (central training: 0.8512)")
    return {"gap": final / optimum - 1, "accuracy": accuracy, "rounds": run.rounds}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SPAM-PP on a9a")
    for name, value in (("clients", 20), ("rounds", 200), ("rows", 32561)):
        parser.add_argument(f"--{name}", type=int, default=value)
    main(**vars(parser.parse_args()))
