# %% [markdown]
# # The theorem on top of a run
#
# Theorem 3.2 of [the paper](https://arxiv.org/abs/2405.20127) bounds the mean of $\|\nabla f(x_k)\|^2$ over the rounds
# of SPAM. The bound is a function of fedspam, with the constants as printed and as corrected. Here it lies above twenty
# runs.

# %%
import jax.numpy as jnp
import numpy as np

from fedspam import simulate_many, spam
from fedspam.problems import quadratics
from fedspam.solvers import Exact
from fedspam.theory import (
    Constants,
    Observed,
    constant_bound,
    least_fresh_weight,
    premises,
)

ROUNDS = 400
clients = quadratics(
    0, clients=40, dimension=10, delta=1.0, condition=10.0, noise=0.5
)
start = jnp.asarray(clients.minimizer, jnp.float32) + 1

# %% [markdown]
# The theorem wants $\gamma \le 1/(4\delta)$ and a fresh weight that is large enough for it. SPAM asks one client per
# round, whose prox is exact. `Observed` records what the proof is about, such as the gradient of f. None of it is sent.

# %%
gamma = 1 / (4 * clients.delta)
p = float(least_fresh_weight(gamma, clients.delta))
method = Observed(spam(gamma, p, solver=Exact()), clients, clients.optimum)
runs = simulate_many(method, clients, start, rounds=ROUNDS, keys=range(20))
rows = {
    name: np.asarray(column[0], np.float64) for name, column in runs.rows.items()
}  # seeds, rounds
means = rows["slope"].cumsum(axis=1) / np.arange(1, ROUNDS + 1)
print(
    f"γ = {gamma:.2f}, p = {p:.2f}, mean of the squared gradients after {ROUNDS} rounds: {means[:, -1].mean():.2f}"
)

# %% [markdown]
# The constants of the bound. σ is the largest that any run met, because the clients of these quadratics differ more,
# away from the minimizer.

# %%
known = Constants(
    delta=clients.delta,
    sigma=float(np.sqrt(rows["spread"].max())),
    gap=float(rows["gap"][:, 0].mean()),
    error=float(rows["error"][:, 0].mean()),
)
print("premises that do not hold:", premises(known, np.full(ROUNDS, gamma), p))
bounds = {
    version: constant_bound(known, gamma, p, ROUNDS, version=version)
    for version in ("corrected", "paper")
}

# %%
import matplotlib.pyplot as plt

rounds = np.arange(1, ROUNDS + 1)
figure, axis = plt.subplots()
axis.fill_between(rounds, means.min(axis=0), means.max(axis=0), alpha=0.3)
axis.loglog(rounds, means.mean(axis=0), label="twenty runs")
axis.loglog(rounds, bounds["corrected"].total, "--", label="the bound, corrected")
axis.loglog(rounds, bounds["paper"].total, ":", label="the bound, as printed")
axis.set(xlabel="rounds", ylabel="mean of squared gradients")
axis.legend()

# %%
for name in ("start", "estimator", "noise"):
    print(f"{name:10} {getattr(bounds['corrected'], name)[-1]:8.3f}")
assert (means.mean(axis=0) <= bounds["corrected"].total).all()

# %% [markdown]
# The bound holds, and it is far above the runs: it is a worst case. Its largest part is the noise of one client per
# round, which a cohort divides. `fedspam theory` does this for five theorems. Next: [the theory as code](../theory.md).
