# %% [markdown]
# # Your own table to a model
#
# You have a table, and one of its columns says where a row comes from. That column makes the clients. Here the table is
# made up; in its place, read yours: `pandas.read_csv("visits.csv")`.

# %%
import numpy as np
import pandas as pd

random = np.random.default_rng(0)
parts = []
for shop in range(15):
    count = int(random.integers(40, 120))
    part = pd.DataFrame(
        {
            "shop": f"shop {shop:02}",
            "age": random.normal(35 + shop, 10, count).round(),
            "visits": random.poisson(3, count),
            "city": random.choice(["Bonn", "Rome", "Oslo"], count),
        }
    )
    score = (
        0.08 * (part["age"] - 40)
        + 0.5 * (part["visits"] - 3)
        + 1.5 * (part["city"] == "Rome")
        - 0.5
    )
    part["buys"] = np.where(score + random.normal(0, 0.5, count) > 0, "yes", "no")
    part.loc[random.random(count) < 0.05, "age"] = np.nan  # missing values are fine
    parts.append(part)
visits = pd.concat(parts)
visits.head()

# %% [markdown]
# `read_table` takes a path or a data frame. A fifth of every shop's rows is held out. The encoder learns categories,
# means and scales from the other rows alone.

# %%
from fedspam import datasets

rows = datasets.read_table(visits, client="shop", label="buys")
train, test = rows.hold_out_examples(0.2)
encoder = datasets.Encoder.of_table(train, label="buys")
print(
    len(train),
    "shops,",
    train.rows,
    "rows to learn from,",
    test.rows,
    "to judge by;",
    encoder.width,
    "features",
)

# %% [markdown]
# The model is a small network. Any other model goes the same way, also [one in PyTorch](pytorch.md).

# %%
from fedspam import Evaluation, auto, models, simulate

model = models.mlp(encoder.width, len(encoder.classes), hidden=(16,))
shops = encoder.examples(train).population(model.loss)
judge = Evaluation.of(encoder.examples(test), model.correct)
run = simulate(
    auto(cohort_size=8), shops, model.init(0), rounds=40, key=0, probe=judge
)

# %%
import matplotlib.pyplot as plt

megabytes = np.append(0, run.rows["bytes_up"].cumsum()) / 1e6
figure, axis = plt.subplots()
axis.fill_between(
    megabytes,
    run.probes["accuracy.q10"],
    run.probes["accuracy.q90"],
    alpha=0.2,
    label="most shops",
)
axis.plot(megabytes, run.probes["accuracy"], label="all held-out rows")
axis.set(xlabel="megabytes sent by the shops", ylabel="accuracy")
axis.legend(loc="lower right")

# %% [markdown]
# One file holds everything that new rows need, the encoder included: no training data, and no code that is executed.

# %%
import fedspam

models.save("shops.safetensors", run.params, model=model, encoder=encoder)
trained = fedspam.load("shops.safetensors")
new = pd.DataFrame(
    {"age": [25, 61, None], "visits": [1, 4, 6], "city": ["Oslo", "Rome", "Bonn"]}
)
new.assign(
    buys=trained.predict(new),
    probability=trained.probabilities(new).max(axis=1).round(2),
)

# %% [markdown]
# The same from a terminal: `fedspam run --data table --data.path visits.csv --data.client shop --data.label buys`, and
# then `fedspam predict`. Next: [use your model](../use.md), and [compare methods fairly](fair.md).
