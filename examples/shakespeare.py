"""Predict the next character: 1,054 roles of Shakespeare train an LSTM, and each role keeps its lines.

    python examples/shakespeare.py [--rounds 500] [--cohort 10] [--plot curve.png]

The last fifth of each role's text is the test, 853,000 characters in total. Counting which character follows which six
characters predicts 0.562 of them correctly. The most frequent character alone predicts 0.163. Meant for a GPU.
"""

import argparse

from fedspam import Evaluation, datasets, fedavg, simulate
from fedspam.models import char_lstm


def main(
    rounds: int = 500,
    cohort: int = 10,
    batch: int = 10,
    every: int = 25,
    hidden: int = 256,
    roles: int | None = None,
    plot: str | None = None,
) -> dict[str, float]:
    # 1. Read rows of 80 characters and their next characters, by role: the first part of its text, and the rest.
    data = datasets.read_shakespeare()
    train, test = data
    if roles is not None:  # fewer roles, for a quick test
        train, test = (part.take(range(roles)) for part in data)

    # 2. Two LSTM layers predict the next character at every position. A minibatch is ten rows of a role.
    model = char_lstm(datasets.SYMBOLS, hidden=hidden, every=True)
    clients = train.population(model.loss, batch=batch)
    judge = Evaluation.of(test, model.correct, block=512)

    # 3. Train with FedAvg: ten roles per round, ten steps per role, then the average.
    method = fedavg(cohort, local_steps=10, local_rate=2.0)
    run = simulate(method, clients, model.init(0), rounds=rounds, key=0, probe=judge, every=every, record=())

    # 4. Print the accuracy over all test characters, and of the worst, the median and the best roles.
    print("round   accuracy   worst tenth of roles   median role   best tenth")
    for step, accuracy in enumerate(run.probes["accuracy"]):
        tenth, half, best = (run.probes[f"accuracy.{name}"][step] for name in ("q10", "q50", "q90"))
        print(f"{step * every:5} {accuracy:10.4f} {tenth:22.4f} {half:13.4f} {best:12.4f}")
    print(f"{run.status}; {run.run_seconds:.1f} s to run, {run.compile_seconds:.1f} s to compile")
    if plot is not None:
        draw(run.probes, every, plot)
    return {name: float(values[-1]) for name, values in run.probes.items()}


def draw(probes, every: int, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="rounds", ylabel="accuracy of the next character")
    rounds = [step * every for step in range(len(probes["accuracy"]))]
    axes.plot(rounds, probes["accuracy"], label="all characters")
    axes.fill_between(rounds, probes["accuracy.q10"], probes["accuracy.q90"], alpha=0.2, label="80 % of the roles")
    axes.axhline(0.562, color="grey", linestyle="--", linewidth=1, label="counts of six characters")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Shakespeare, by role")
    for name, value in (("rounds", 500), ("cohort", 10), ("batch", 10), ("every", 25), ("hidden", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--plot", help="where to draw the curve")
    main(**vars(parser.parse_args()))
