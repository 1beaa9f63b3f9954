"""Human activity recognition: the phones of 21 persons train a model, which is tested on 9 other persons.

    python examples/har.py [--model linear] [--rounds 200]
    python examples/har.py --model cnn --rounds 400

Central softmax regression on 123 features per window classifies 0.9556 of the other persons' windows correctly. The
CNN uses the raw signals of the sensors.
"""

import argparse

import numpy as np

from fedspam import Evaluation, datasets, fedavg, simulate, spam_pp
from fedspam.datasets import FederatedData
from fedspam.models import har_cnn, softmax_regression

UNSEEN = [str(person) for person in (2, 4, 9, 10, 12, 13, 18, 20, 24)]  # as the authors of the data chose them


def main(model: str = "linear", rounds: int = 200, every: int = 20) -> dict[str, float]:
    # 1. Read windows of 2.56 seconds by person: their features, or the signals of the six sensors.
    if model == "linear":
        har = datasets.read_har()
        owners, persons = datasets.by_key(har.person)
        rows = {"features": har.features.astype(np.float32), "label": har.labels.astype(np.int32)}
        windows = FederatedData.by(rows, owners, persons)
    else:
        windows = datasets.read_har_windows()

    # 2. Hold out nine persons, and scale all features with the mean and deviation of the others.
    seen, unseen = (
        windows.take([person for person in windows.clients if (person in UNSEEN) == held]) for held in (False, True)
    )
    axes = tuple(range(seen.examples["features"].ndim - 1))
    mean, deviation = seen.examples["features"].mean(axes), seen.examples["features"].std(axes)
    scale = lambda rows: {"features": (rows["features"] - mean) / deviation, "label": rows["label"]}
    seen, unseen = seen.map(scale), unseen.map(scale)

    # 3. The model and the method. For the linear model, all phones send gradients and one phone solves its prox.
    #    The CNN is trained with ten phones per round, on minibatches.
    if model == "linear":
        net = softmax_regression(123, 6, regularization=1 / seen.rows)
        clients, method = seen.population(net.loss, weighted=True), spam_pp(len(seen), step_size=3.0, fresh_weight=1.0)
    else:
        net = har_cnn()
        clients, method = seen.population(net.loss, batch=32), fedavg(10, local_steps=10, local_rate=0.05)

    # 4. Train, and evaluate on the held-out persons every few rounds.
    judge = Evaluation.of(unseen, net.correct)
    run = simulate(method, clients, net.init(0), rounds=rounds, key=0, probe=judge, every=every)
    print("round   accuracy   worst tenth of persons   median person")
    for step, accuracy in enumerate(run.probes["accuracy"]):
        tenth, median = (run.probes[f"accuracy.{name}"][step] for name in ("q10", "q50"))
        print(f"{step * every:5} {accuracy:10.4f} {tenth:24.4f} {median:15.4f}")
    return {name: float(values[-1]) for name, values in run.probes.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Human activities, by person")
    parser.add_argument("--model", choices=("linear", "cnn"), default="linear")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    main(**vars(parser.parse_args()))
