"""Handwriting: 105 writers train a CNN together. It is tested on them and on 79 other writers.

    python examples/femnist.py [--method fedavg] [--rounds 500] [--cohort 10] [--target 0.82]

Central training of the same CNN reaches 0.828 on held-out images of the 105 writers, and 0.592 on the other writers,
who have more letters and fewer digits. The script takes a few minutes on a GPU, and an hour on two cores.
"""

import argparse

from fedspam import Evaluation, Target, datasets, fedavg, simulate, spam_pp
from fedspam.methods import fedadam
from fedspam.models import leaf_cnn
from fedspam.simulation.evaluation import Named
from fedspam.solvers import GradientDescent

# Each writer uses minibatches of its own images. The prox client of SPAM-PP takes 10 steps, as clients of FedAvg do.
METHODS = {
    "fedavg": lambda cohort: fedavg(cohort, local_steps=10, local_rate=0.05),
    "fedadam": lambda cohort: fedadam(cohort, local_steps=10, local_rate=0.03, server_step_size=0.003),
    "spam_pp": lambda cohort: spam_pp(
        cohort, step_size=1.0, fresh_weight=0.3, solver=GradientDescent(steps=10, local_rate=0.05, minibatch=True)
    ),
}


def main(
    method: str = "fedavg",
    rounds: int = 500,
    cohort: int = 10,
    batch: int = 20,
    every: int = 25,
    target: float | None = None,
    writers: int | None = None,
    hidden: int = 256,
) -> dict[str, float]:
    # 1. Read images by writer: for training, held out from the same writers, and from other writers.
    data = datasets.read_femnist()
    train, test, unseen = (part.take(part.clients[:writers]) for part in data)  # all writers by default

    # 2. The model and the clients. A client draws a minibatch at every call, the same at both points of a difference.
    model = leaf_cnn(hidden=hidden)
    clients = train.population(model.loss, batch=batch)

    # 3. Two evaluations, on held-out images and on other writers, each with quantiles over writers.
    judge = Named({"images": Evaluation.of(test, model.correct), "writers": Evaluation.of(unseen, model.correct)})

    # 4. Train until the last round or the target.
    until = None if target is None else Target("images.accuracy", at_least=target)
    run = simulate(
        METHODS[method](cohort), clients, model.init(0), rounds=rounds, key=0, probe=judge, every=every, until=until,
        record=(),
    )  # fmt: skip

    print("round      MB up   test images   worst tenth of writers   unseen writers")
    for step in range(len(run.probes["images.accuracy"])):
        sent = run.rows["bytes_up"][: step * every].sum() / 1e6
        seen = [run.probes[name][step] for name in ("images.accuracy", "images.accuracy.q10", "writers.accuracy")]
        print(f"{step * every:5} {sent:10.0f} {seen[0]:13.4f} {seen[1]:24.4f} {seen[2]:16.4f}")
    print(f"{method}: {run.status}; {run.run_seconds:.1f} s to run, {run.compile_seconds:.1f} s to compile")
    return {name: float(values[-1]) for name, values in run.probes.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="FEMNIST, by writer")
    parser.add_argument("--method", choices=METHODS, default="fedavg")
    for name, value in (("rounds", 500), ("cohort", 10), ("batch", 20), ("every", 25)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--target", type=float, help="test accuracy to stop at")
    main(**vars(parser.parse_args()))
