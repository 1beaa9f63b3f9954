# %% [markdown]
# # A sweep into pandas, with bands
#
# `simulate_many` runs many settings and seeds in one compiled program. The result becomes one long table.

# %%
import jax.numpy as jnp

from fedspam import simulate_many, spam_pp
from fedspam.problems import quadratics

clients = quadratics(0, clients=50, dimension=20, delta=0.5, condition=20.0)
probe = lambda x: {"gradient": jnp.linalg.norm(clients.gradient(x))}
weights = (0.05, 0.2, 0.8)
methods = [spam_pp(5, step_size=1 / clients.delta, fresh_weight=p) for p in weights]
runs = simulate_many(
    methods, clients, jnp.zeros(20), rounds=80, keys=range(10), probe=probe
)
table = runs.to_pandas()
print(len(table), "lines, with", ", ".join(table.columns[:6]), "...")
table[["setting", "seed", "round", "gradient", "bytes_up"]].head()

# %% [markdown]
# A line is one round of one run. `setting` is the place in the list of methods. The rest is pandas:

# %%
table["fresh weight"] = table["setting"].map(dict(enumerate(weights)))
bands = (
    table.groupby(["fresh weight", "round"])["gradient"]
    .quantile([0.1, 0.5, 0.9])
    .unstack()
)
bands.xs(80, level="round").round(4)

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots()
for weight, band in bands.groupby(level="fresh weight"):
    band = band.droplevel("fresh weight")
    axis.fill_between(band.index, band[0.1], band[0.9], alpha=0.2)
    axis.semilogy(band.index, band[0.5], label=f"p = {weight}")
axis.set(xlabel="rounds", ylabel="norm of the gradient")
axis.legend()

# %% [markdown]
# The median of ten seeds, and the band of eight of them. A small fresh weight averages more noise out, and a large one
# is sooner at its floor. `to_polars` and `to_arrow` make the same table. Next: [compare methods fairly](fair.md).
