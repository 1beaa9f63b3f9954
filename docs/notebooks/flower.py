# %% [markdown]
# # From simulation to Flower
#
# The method that you simulated runs over [Flower](https://flower.ai) as it is. Here is a simulation, and then the same
# run through Flower's messages, in one process. It needs `pip install '.[flower]'`.

# %%
import jax.numpy as jnp
import numpy as np

from fedspam import Ragged, simulate, spam_pp


def loss(params, rows):  # one value per row
    return (
        rows["features"] @ params["weights"] + params["bias"] - rows["target"]
    ) ** 2


def rows_of(client):  # what a site has
    features = np.random.default_rng(client).normal(size=(20, 3)).astype(np.float32)
    return {"features": features, "target": features @ np.ones(3, np.float32) + 1}


params = {"weights": jnp.zeros(3), "bias": jnp.zeros(())}
method = spam_pp(cohort_size=3, step_size=1.0, fresh_weight=0.3)
sites = Ragged.of([rows_of(client) for client in range(5)], loss)
run = simulate(method, sites, params, rounds=12, key=0)

# %% [markdown]
# The client app holds data and loss, and the strategy holds the method. In a deployment they are in two files on
# different machines, and the `grid` that Flower passes to the server takes the place of `LoopbackGrid`.

# %%
import logging

from fedspam.flower import (
    FedspamStrategy,
    LoopbackGrid,
    client_app,
    clients_with,
    to_arrays,
)

logging.getLogger("flwr").setLevel(
    logging.WARNING
)  # without it, Flower logs every exchange
app = client_app(clients_with(loss, rows_of), method, params)
strategy = FedspamStrategy(method, params, seed=0, min_available_nodes=5)
result = strategy.start(
    LoopbackGrid(app, clients=5), to_arrays(params), num_rounds=12
)

# %% [markdown]
# Same draws, same parameters, up to the rounding of sums:

# %%
for name in params:
    here, there = np.asarray(run.params[name]), result.arrays[name].numpy()
    assert np.allclose(here, there, rtol=1e-3, atol=1e-4)
    print(f"{name:8} simulated {here.round(2)}, over Flower {there.round(2)}")

# %% [markdown]
# And the same bytes: the ledger's price of a round is what the messages weigh.

# %%
import matplotlib.pyplot as plt

metrics = result.train_metrics_clientapp
sent = [metrics[k]["bytes_up"] for k in sorted(metrics)]
figure, axis = plt.subplots()
axis.plot(np.cumsum(run.rows["bytes_up"]), label="priced by the ledger")
axis.plot(np.cumsum(sent), "o", label="counted over Flower")
axis.set(xlabel="rounds", ylabel="bytes sent by clients")
axis.legend()

# %% [markdown]
# `fedspam new my-project` writes such a project. Next: [a quick start on one machine](../deploy.md), and
# [Flower](../flower.md).
