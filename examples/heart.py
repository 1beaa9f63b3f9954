"""Heart disease in four hospitals that may not share their data.

    python examples/heart.py [--seeds 20] [--rounds 40]

Two thirds of each hospital's patients are for training, and the others are for the test. Over 20 random splits, SPAM-PP
classifies 0.794 of the test patients correctly; central training reaches 0.796, with a standard deviation of 0.021. The
hospitals differ: 45 of the 46 patients of Switzerland are ill.

These numbers are not comparable with those that FLamby published for the same data. FLamby uses one fixed split. Here,
splits are random, and features are scaled with one mean and deviation, pooled over the training rows of all hospitals.
`python reproductions/flamby_heart.py` runs FLamby's own table.
"""

import argparse

import numpy as np

from fedspam import Evaluation, datasets, simulate, spam_pp
from fedspam.datasets import FederatedData
from fedspam.models import logistic_regression


def main(seeds: int = 20, rounds: int = 40) -> dict[str, float]:
    # 1. Read the patients by hospital, with 13 features per patient.
    heart = datasets.read_heart()
    patients = FederatedData.by({"features": heart.features, "label": heart.labels}, heart.hospital, datasets.HOSPITALS)
    scores = []
    for seed in range(seeds):
        # 2. Hold out a third of every hospital's patients, and scale with the mean and deviation of the others. In a
        #    federation, each hospital would send its sums and sums of squares once, with the same result.
        train, test = patients.hold_out_examples(0.34, seed=seed)
        mean, deviation = (getattr(train.examples["features"], of)(axis=0) for of in ("mean", "std"))
        scale = lambda rows: {"features": ((rows["features"] - mean) / deviation).astype(np.float32), **_label(rows)}
        train, test = train.map(scale), test.map(scale)

        # 3. The model, the clients, and the evaluation over all patients and per hospital.
        model = logistic_regression(13, regularization=1 / train.rows)
        clients = train.population(model.loss, weighted=True)
        judge = Evaluation.of(test, model.correct, block=64)

        # 4. Train. All four hospitals send gradients, and one of them solves its prox.
        run = simulate(spam_pp(4, step_size=2.0, fresh_weight=1.0), clients, model.init(0), rounds=rounds, key=seed)
        scores.append([*judge.per_client(run.params)["accuracy"].tolist(), float(judge(run.params)["accuracy"])])

    means, deviations = np.mean(scores, axis=0), np.std(scores, axis=0)
    for name, centrally, mean, deviation in zip(
        [*datasets.HOSPITALS, "all patients"], (0.792, 0.808, 0.884, 0.750, 0.796), means, deviations, strict=True
    ):
        print(f"{name:12} {mean:.3f} +- {deviation:.3f}   (central training: {centrally:.3f})")
    return {"accuracy": float(means[-1]), "deviation": float(deviations[-1])}


def _label(rows):
    return {"label": rows["label"].astype(np.int32)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SPAM-PP on heart disease")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    main(**vars(parser.parse_args()))
