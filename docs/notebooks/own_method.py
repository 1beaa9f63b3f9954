# %% [markdown]
# # Write a method in 15 minutes
#
# A method is a class with a `round` that reads like its pseudocode. This one is FedAvg whose server moves in the
# direction of the sign of the mean change:
#
# $$
# y_i = x - \eta \sum_{j<m} \nabla f_i(y_i^j), \qquad x \leftarrow x + \gamma\, \mathrm{sign} \sum_i (y_i - x)
# $$

# %%
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam import on_client, simulate
from fedspam._internal.trees import static, struct


class State(NamedTuple):
    x: Any
    k: Any  # rounds done


class Info(NamedTuple):
    step_size: Any  # what a round records
    gradients: Any


@struct
class SignAvg:
    """Numbers are leaves of the class, so that a sweep over them compiles once. Sizes are static."""

    step_size: float
    local_rate: float
    local_steps: int = static(default=5)
    cohort_size: int = static(default=5)
    name: str = static(default="sign_avg")

    def init(self, params, key, fed):
        return State(params, jnp.zeros((), jnp.int32))

    def round(self, state, key, fed):
        cohort = fed.sample(key, self.cohort_size)
        change = fed.mean(cohort, self.local, x=state.x)
        gamma = self.step_size / jnp.sqrt(1.0 + state.k)
        x = jax.tree.map(lambda x, d: x + gamma * jnp.sign(d), state.x, change)
        return State(x, state.k + 1), Info(gamma, self.local_steps * cohort.size)

    @on_client
    def local(self, oracle, key, *, x):
        """What a client does, wherever it is: in the simulator, or at the other end of a wire."""
        y = x
        for each in jax.random.split(key, self.local_steps):
            y = jax.tree.map(
                lambda y, g: y - self.local_rate * g, y, jax.grad(oracle)(y, each)
            )
        return jax.tree.map(jnp.subtract, y, x)

    def params(self, state):
        return state.x

    def client_state(self, params):
        return ()  # clients have no state


# %% [markdown]
# `fed.mean` is the only line that speaks with clients, so the same class runs compiled, over encoded bytes and over
# Flower. What it costs is known before it runs: the ledger looks at the shapes.

# %%
from fedspam.federation import ledger
from fedspam.problems import quadratics

clients = quadratics(0, clients=50, dimension=20, delta=0.5)
method = SignAvg(step_size=0.1, local_rate=0.1)
for exchange in ledger.plan(method, jnp.zeros(20), clients).round:
    print(
        exchange.label,
        exchange.cohort,
        "clients,",
        exchange.bytes_down,
        "bytes down,",
        exchange.bytes_up,
        "up each",
    )

# %%
import matplotlib.pyplot as plt

from fedspam import fedavg

probe = lambda x: {"gradient": jnp.linalg.norm(clients.gradient(x))}
figure, axis = plt.subplots()
for label, one in {
    "SignAvg": method,
    "FedAvg": fedavg(5, local_steps=5, local_rate=0.1),
}.items():
    run = simulate(one, clients, jnp.zeros(20), rounds=60, key=0, probe=probe)
    axis.semilogy(run.probes["gradient"], label=label)
axis.set(xlabel="rounds", ylabel="norm of the gradient")
axis.legend()

# %% [markdown]
# Check one round by hand before you trust a curve. With one client, one local step and $\eta = 1$ the change is
# $-\nabla f(x)$:

# %%
alone = quadratics(0, clients=1, dimension=4, delta=0.0, noise=0.0)
one = SignAvg(step_size=0.1, local_rate=1.0, local_steps=1, cohort_size=1)
run = simulate(one, alone, jnp.zeros(4), rounds=1, key=0)
expected = -0.1 * jnp.sign(alone.gradient(jnp.zeros(4)))
assert jnp.allclose(run.params, expected)
print(run.params)

# %% [markdown]
# With a line of `register` at its end, the file works in every command: `fedspam compare --method-file sign_avg.py
# --methods sign_avg,fedavg`. [The skeleton](../contributing.md#how-to-add-a-method) has it.
