# %% [markdown]
# # See δ: similarity measured and used
#
# δ says how much the Hessian of a client differs from the mean Hessian: $\delta = \max_i \|H_i - H\|$. If δ is small
# against the curvature L, clients can take large steps without drifting apart. These patients of four hospitals are
# split in two ways.

# %%
import numpy as np

from fedspam import datasets
from fedspam.problems import logistic
from fedspam.theory import measure

heart = datasets.read_heart()
features, labels = (
    heart.features / abs(heart.features).max(axis=0),
    np.where(heart.labels > 0, 1.0, -1.0),
)
splits = {
    "at random": datasets.iid(len(labels), 4),
    "by hospital": heart.hospital,
}
problems = {
    name: logistic(features, labels, owners, regularization=0.01, weighted=True)
    for name, owners in splits.items()
}

# %% [markdown]
# `measure` asks the clients, as a method does, and says what the answer costs.

# %%
start = np.zeros(13, np.float32)
found = {name: measure(problem, start) for name, problem in problems.items()}
for name, one in found.items():
    ratio = one.delta.value / one.smoothness.value
    print(
        f"{name:11} δ = {one.delta.value:6.3f}, L = {one.smoothness.value:6.3f}, δ/L = {ratio:.2f}",
        end="",
    )
    print(f", for {one.cost.bytes_up / 1e3:.0f} kB sent")

# %% [markdown]
# SPAM-PP takes the step size 1/δ. The more alike the clients, the larger its steps, and the fewer its rounds.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from fedspam import simulate, spam_pp


def slope(problem):
    """The norm of the gradient of the mean loss of all rows."""
    mean = lambda x: problem.loss(x, problem.examples).mean()
    return lambda x: jnp.linalg.norm(jax.grad(mean)(x))


figure, axis = plt.subplots()
for name, problem in problems.items():
    method = spam_pp(
        4, step_size=1 / found[name].delta.value, fresh_weight=1.0
    )  # all clients: no noise of cohorts
    norm = slope(problem)
    run = simulate(
        method,
        problem,
        start,
        rounds=25,
        key=0,
        probe=lambda x, norm=norm: {"gradient": norm(x)},
    )
    axis.semilogy(
        run.probes["gradient"] / run.probes["gradient"][0],
        label=f"{name}, γ = {1 / found[name].delta.value:.2f}",
    )
axis.set(xlabel="rounds", ylabel="gradient, relative to the first")
axis.legend()

# %% [markdown]
# `auto` needs no measurement: it learns the step size from what clients send. `fedspam measure` does this from a
# terminal. Next: [what the intervals mean](../measure.md), and [the theorem on top of a run](theorem.md).
