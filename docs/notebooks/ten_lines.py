# %% [markdown]
# # Ten lines to a picture
#
# Four hospitals train a model of heart disease together. The patients come with fedspam, so nothing is downloaded.

# %%
from fedspam import Evaluation, auto, datasets, fedavg, simulate
from fedspam.datasets import FederatedData
from fedspam.models import logistic_regression

heart = datasets.read_heart()  # 740 patients of four hospitals
rows = {
    "features": heart.features / abs(heart.features).max(axis=0),
    "label": heart.labels,
}
train, test = FederatedData.by(
    rows, heart.hospital, datasets.HOSPITALS
).hold_out_examples(0.3)

model = logistic_regression(13)
hospitals = train.population(
    model.loss, weighted=True
)  # every patient counts the same
judge = Evaluation.of(test, model.correct)

# %% [markdown]
# A method is one word with its settings. `auto` needs only the number of clients per round.

# %%
methods = {
    "auto": auto(cohort_size=4),
    "FedAvg": fedavg(cohort_size=4, local_steps=10, local_rate=0.3),
}
runs = {
    name: simulate(method, hospitals, model.init(0), rounds=20, key=0, probe=judge)
    for name, method in methods.items()
}
for name, run in runs.items():
    print(
        f"{name:7} accuracy {run.probes['accuracy'][-1]:.3f}, {run.rows['bytes_up'].sum() / 1e3:.0f} kB sent"
    )

# %% [markdown]
# The probe was evaluated before the first round and after each. It sends no message.

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots()
for name, run in runs.items():
    axis.plot(run.probes["accuracy"], label=name)
axis.set(xlabel="rounds", ylabel="accuracy on held-out patients")
axis.legend()

# %% [markdown]
# `Evaluation` also has the quantiles over clients. Here it says how far the hospitals are apart.

# %%
for name, score in zip(
    datasets.HOSPITALS,
    judge.per_client(runs["auto"].params)["accuracy"],
    strict=True,
):
    print(f"{name:12} {score:.3f}")

# %% [markdown]
# Next: [your own data](../tutorial.md), or [which method](../choosing.md).
