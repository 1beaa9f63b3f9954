"""What is its owner doing? Phones of 21 persons learn to tell, and are tried on 9 persons they have never seen.

    python examples/har.py [--model linear] [--rounds 200]
    python examples/har.py --model cnn --rounds 400

Centrally, softmax regression on 123 features of each window tells 0.9556 of the unseen persons' windows right. The CNN
reads the sensors themselves.
"""

import argparse

import numpy as np

from fedspam import datasets, simulate, spam_pp
from fedspam.datasets import FederatedData
from fedspam.methods import fedavg
from fedspam.models import har_cnn, softmax_regression
from fedspam.simulation.evaluation import Evaluation

UNSEEN = [str(person) for person in (2, 4, 9, 10, 12, 13, 18, 20, 24)]  # as the authors of the data chose them


def main(model: str = "linear", rounds: int = 200, every: int = 20) -> dict[str, float]:
    # 1. Windows of 2.56 seconds by person: features of them, or the signals of the six sensors.
    if model == "linear":
        har = datasets.read_har()
        owners, persons = datasets.by_key(har.person)
        rows = {"features": har.features.astype(np.float32), "label": har.labels.astype(np.int32)}
        windows = FederatedData.by(rows, owners, persons)
    else:
        windows = datasets.read_har_windows()

    # 2. Persons that training never sees, and the scale of what it sees.
    seen, unseen = (
        windows.take([person for person in windows.clients if (person in UNSEEN) == held]) for held in (False, True)
    )
    axes = tuple(range(seen.examples["features"].ndim - 1))
    mean, deviation = seen.examples["features"].mean(axes), seen.examples["features"].std(axes)
    scale = lambda rows: {"features": (rows["features"] - mean) / deviation, "label": rows["label"]}
    seen, unseen = seen.map(scale), unseen.map(scale)

    # 3. The model and the method. The linear one is solved: everybody sends gradients, one person's phone does the
    #    work. The CNN is trained as phones are: ten of them at a time, on minibatches.
    if model == "linear":
        net = softmax_regression(123, 6, regularization=1 / seen.rows)
        clients, method = seen.population(net.loss, weighted=True), spam_pp(len(seen), step_size=3.0, fresh_weight=1.0)
    else:
        net = har_cnn()
        clients, method = seen.population(net.loss, batch=32), fedavg(10, local_steps=10, local_rate=0.05)

    # 4. Train, and look at the unseen persons along the way.
    judge = Evaluation.of(unseen, net.correct)
    run = simulate(method, clients, net.init(0), rounds=rounds, key=0, probe=judge, every=every)
    print("round   accuracy   worst tenth of persons   median person")
    for look, accuracy in enumerate(run.probes["accuracy"]):
        tenth, median = (run.probes[f"accuracy.{name}"][look] for name in ("q10", "q50"))
        print(f"{look * every:5} {accuracy:10.4f} {tenth:24.4f} {median:15.4f}")
    return {name: float(values[-1]) for name, values in run.probes.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Human activities, by person")
    parser.add_argument("--model", choices=("linear", "cnn"), default="linear")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    main(**vars(parser.parse_args()))
