"""The digits of scikit-learn, split so that each of 30 clients has two or three kinds of digits. Needs no download.

    python examples/digits.py [--rounds 300] [--target 0.93]

Shows all steps: rows, a split, held-out rows and clients, minibatches, a target, and the cost of reaching it.
"""

import argparse

from fedspam import Evaluation, Target, datasets, fedavg, simulate, spam_pp
from fedspam.datasets import FederatedData
from fedspam.models import mlp
from fedspam.simulation.evaluation import Named
from fedspam.solvers import GradientDescent


def main(
    rounds: int = 300, target: float = 0.93, every: int = 10, methods: tuple[str, ...] = ("fedavg", "spam_pp")
) -> dict[str, float]:
    # 1. Sort the rows by digit, cut them into shards, and give two shards to each of 30 clients.
    rows = datasets.read_digits()
    data = FederatedData.by(rows, datasets.shards(rows["label"], clients=30, each=2))

    # 2. Hold out five clients, and a fifth of the rows of the others.
    seen, unseen = data.hold_out_clients(1 / 6)
    train, test = seen.hold_out_examples(0.2)

    # 3. Train a small network. Clients draw minibatches of ten rows.
    model = mlp(64, 10, hidden=(50,))
    clients = train.population(model.loss, batch=10)
    judge = Named({"test": Evaluation.of(test, model.correct), "unseen": Evaluation.of(unseen, model.correct)})

    # 4. Run two methods, each until it reaches the target.
    known = {
        "fedavg": fedavg(10, local_steps=10, local_rate=0.1),
        "spam_pp": spam_pp(
            10, step_size=2.0, fresh_weight=0.3, solver=GradientDescent(steps=10, local_rate=0.1, minibatch=True)
        ),
    }
    found = {}
    print("method    rounds   MB up    test   unseen clients")
    for name in methods:
        run = simulate(
            known[name], clients, model.init(0), rounds=rounds, key=0, probe=judge, every=every,
            until=Target("test.accuracy", at_least=target),
        )  # fmt: skip
        test_accuracy, other = (float(run.probes[f"{part}.accuracy"][-1]) for part in ("test", "unseen"))
        up = run.rows["bytes_up"].sum() / 1e6
        print(f"{name:8} {run.rounds:7} {up:7.1f} {test_accuracy:7.3f} {other:16.3f}   {run.status}")
        found |= {f"{name}.test": test_accuracy, f"{name}.rounds": run.rounds}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Digits, split among clients")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--target", type=float, default=0.93)
    main(**vars(parser.parse_args()))
