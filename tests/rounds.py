"""Rounds of methods beside the same clients in NumPy."""

import jax
import numpy as np

from fedspam.federation.traced import Traced

START = np.array([1.0, -1.0, 0.5, 2.0])


COHORTS = np.array([[0, 3], [3, 1], [4, 2]])


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
