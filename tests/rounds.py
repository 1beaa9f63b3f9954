"""Rounds of methods beside the same clients in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import simulate
from fedspam.federation.traced import Traced

START = np.array([1.0, -1.0, 0.5, 2.0])
COHORTS = np.array([[0, 3], [3, 1], [4, 2]])
CLIENTS = 6
ETA, BETA = 0.2, 0.3


@jax.jit
def one_round(method, population, state, key, k, replay):
    return method.round(state, key, Traced(population, round=k, replay=replay))


class Clients:
    """The clients once more, in NumPy."""

    def __init__(self, population):
        self.h, self.b = np.asarray(population.hessians), np.asarray(population.linears)
        self.c = np.asarray(population.constants)

    def value(self, i, y):
        return 0.5 * y @ self.h[i] @ y - self.b[i] @ y + self.c[i]

    def grad(self, i, y):
        return self.h[i] @ y - self.b[i]

    def descended(self, i, x, steps, eta, pull=0.0):
        y = x
        for _ in range(steps):
            y = y - eta * (self.grad(i, y) + pull * (y - x))
        return y

    def prox(self, i, x, gamma):
        return np.linalg.solve(self.h[i] + np.eye(len(x)) / gamma, self.b[i] + x / gamma)


def same(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)


def play(method, population, start=START, cohorts=COHORTS):
    """Some rounds with given cohorts: the last state, and what each round recorded. Clients keep nothing."""
    state, infos = method.init(jnp.asarray(start), jax.random.key(9), Traced(population)), []
    for k in range(len(cohorts)):
        key = jax.random.fold_in(jax.random.key(0), k)
        state, info = one_round(method, population, state, key, k, {"cohort": np.asarray(cohorts)})
        infos.append(info)
    return state, infos


def reached(method, population, start=START, cohorts=COHORTS):
    """The parameters after those rounds, and what each recorded."""
    state, infos = play(method, population, start, cohorts)
    return np.asarray(method.params(state)), infos


def played(method, population, start=START, cohorts=COHORTS):
    """A run with given cohorts, with the memory of the clients."""
    return simulate(method, population, jnp.asarray(start), rounds=len(cohorts), key=0, replay={"cohort": cohorts})


# --- clients of one, two and three rows ---

SIZES = (1, 2, 3)
ALL = np.array([[0, 1, 2]] * 3)


def parabola(x, rows):
    """Each row is a curvature and a center."""
    return 0.5 * rows[:, 0] * jnp.sum((x - rows[:, 1:]) ** 2, axis=1)


def descended(uneven, i, x, steps, momentum=0.0, decay=0.0):
    h, *center = np.asarray(uneven.examples)[[0, 1, 3][i]]
    y, v = x, 0.0
    for _ in range(steps):
        v = momentum * v + h * (y - np.array(center)) + decay * y
        y = y - ETA * v
    return y
