# %% [markdown]
# # Compare methods fairly
#
# A comparison is fair if every method was tuned with the same effort, on draws that the result does not use. Here two
# methods try six settings each on two seeds. Then the best setting of each runs on four other seeds.

# %%
from fedspam import Evaluation, datasets, fedavg, simulate_many
from fedspam.datasets import FederatedData
from fedspam.methods import scaffold
from fedspam.models import softmax_regression

digits = datasets.read_digits()
owners = datasets.shards(
    digits["label"], clients=20, each=2
)  # every client has two or three kinds of digits
train, test = FederatedData.by(digits, owners).hold_out_examples(0.25)
model = softmax_regression(64, 10)
clients = train.population(model.loss)
judge = Evaluation.of(test, model.correct)

# %% [markdown]
# Methods that differ only in numbers share one compiled program, so a grid costs little more than one run.

# %%
import numpy as np

rates = 0.1 * 3.0 ** np.arange(6)
constructors = {
    "FedAvg": lambda rate: fedavg(5, local_steps=5, local_rate=rate),
    "SCAFFOLD": lambda rate: scaffold(5, local_steps=5, local_rate=rate),
}
ROUNDS = 40
tuned, rate_of = {}, {}
for name, make in constructors.items():
    tuned[name] = simulate_many(
        [make(rate) for rate in rates],
        clients,
        model.init(0),
        rounds=ROUNDS,
        keys=[100, 101],
        probe=judge,
        every=5,
    )
    final = (
        tuned[name].probes["accuracy"][:, :, -1].mean(axis=1)
    )  # settings, seeds, rounds
    rate_of[name] = rates[np.nanargmax(final)]
    print(f"{name:8} {final.round(3)} -> rate {rate_of[name]:.2f}")

# %% [markdown]
# If the best rate is at an end of the grid, the grid is too short, and the comparison is not fair.

# %%
for name, rate in rate_of.items():
    assert rates[0] < rate < rates[-1], (
        f"the best rate of {name} is at an end of the grid: make it longer"
    )
finals = {
    name: simulate_many(
        make(rate_of[name]),
        clients,
        model.init(0),
        rounds=ROUNDS,
        keys=range(4),
        probe=judge,
        every=5,
    )
    for name, make in constructors.items()
}

# %% [markdown]
# Compare what you pay for. SCAFFOLD sends two vectors down where FedAvg sends one.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, sharey=True)
for name, run in finals.items():
    accuracy = run.probes["accuracy"]
    accuracy = accuracy.reshape(-1, accuracy.shape[-1])  # one line per seed
    rounds = np.arange(accuracy.shape[1]) * 5
    sent = (run.rows["bytes_up"] + run.rows["bytes_down"]).reshape(-1, ROUNDS)[0]
    sent = np.append(0, sent.cumsum())[::5] / 1e6
    for axis, cost in zip(axes, (rounds, sent), strict=True):
        axis.fill_between(
            cost, accuracy.min(axis=0), accuracy.max(axis=0), alpha=0.2
        )
        axis.plot(cost, accuracy.mean(axis=0), label=name)
axes[0].set(xlabel="rounds", ylabel="accuracy on held-out rows")
axes[1].set(xlabel="megabytes, both directions")
axes[1].legend()

# %% [markdown]
# Bands go from the lowest to the highest seed. `fedspam compare` does all of this for any list of methods, with the
# costs until a target as a table. Next: [a sweep into pandas](sweep.md), or [what we found](../comparison.md).
