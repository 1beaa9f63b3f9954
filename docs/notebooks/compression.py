# %% [markdown]
# # Compression and bytes
#
# A codec sends numbers as codes of a few bits. It is an argument of the run: no method knows of it. Every byte of every
# message is counted, headers included.

# %%
import jax.numpy as jnp
import numpy as np

from fedspam import fedavg, simulate
from fedspam.problems import quadratics

clients = quadratics(0, clients=30, dimension=200, delta=0.5)
method = fedavg(10, local_steps=5, local_rate=0.02)
first = jnp.linalg.norm(clients.gradient(jnp.zeros(200)))
probe = lambda x: {"gradient": jnp.linalg.norm(clients.gradient(x)) / first}
ways = {
    "32 bits": None,
    "8 bits up and down": {"up": "quantize-8", "down": "quantize-8"},
    "a tenth up": {"up": "topk-0.1"},
}
runs = {
    name: simulate(
        method,
        clients,
        jnp.zeros(200),
        rounds=40,
        key=0,
        probe=probe,
        codecs=codecs,
    )
    for name, codecs in ways.items()
}

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, sharey=True)
for name, run in runs.items():
    axes[0].semilogy(run.probes["gradient"], label=name)
    sent = (
        np.append(0, (run.rows["bytes_up"] + run.rows["bytes_down"]).cumsum()) / 1e6
    )
    axes[1].semilogy(sent, run.probes["gradient"])
axes[0].set(xlabel="rounds", ylabel="gradient, relative to the first")
axes[0].legend(fontsize="small")
axes[1].set(xlabel="megabytes, both directions")

# %% [markdown]
# Eight bits halve the bytes and cost no rounds until 0.01. From there on their rounding is a floor. A tenth of the
# numbers is a *biased* codec: what it leaves out is lost in every round. `ef21_pp` is a method for such a codec: its
# clients send changes, and remember what arrived.

# %%
from fedspam.federation.codecs import TopK
from fedspam.methods import ef21_pp
from fedspam.theory import ef21_step_size

codec = TopK(0.1)
gamma = 3 * ef21_step_size(
    clients.smoothness, codec.alpha(jnp.zeros(200)), share=10 / 30
)
repaired = simulate(
    ef21_pp(10, gamma),
    clients,
    jnp.zeros(200),
    rounds=200,
    key=0,
    probe=probe,
    codecs={"up": "topk-0.1"},
)
for name, run in {**runs, "EF21-PP, a tenth": repaired}.items():
    sent = run.rows["bytes_up"].sum() / 1e6
    print(
        f"{name:20} {run.rounds:4} rounds, {sent:5.2f} MB up, gradient {run.probes['gradient'][-1]:.3f}"
    )

# %% [markdown]
# EF21-PP loses here: eight bits reach a smaller error with fewer bytes. It is for targets that a biased codec cannot
# reach otherwise, as on [a9a](../compression.md#methods-made-for-compression). Next: [all codecs](../compression.md).
