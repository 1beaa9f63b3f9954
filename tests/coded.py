"""Clients whose replies go through a codec, once more in NumPy."""

import jax.numpy as jnp
import numpy as np

from fedspam import simulate
from fedspam.federation.codecs import RandK, TopK

N, D, KEPT = 4, 64, 16
COHORTS = np.array([[0, 3], [3, 1], [2, 0], [1, 2]])
TOP, RAND = TopK(0.25), RandK(0.25)
OMEGA, ALPHA = 3.0, 0.25
MU, L = 0.5, 2.0


class Numbers:
    """The clients in NumPy, and the codec that keeps the largest quarter."""

    def __init__(self, clients):
        self.h, self.b = np.asarray(clients.hessians), np.asarray(clients.linears)
        self.smoothness = np.sqrt(np.mean(np.linalg.eigvalsh(self.h)[:, -1] ** 2))
        self.best = np.linalg.solve(self.h.mean(0), self.b.mean(0))

    def grad(self, i, x):
        return self.h[i] @ x - self.b[i]

    def full(self, x):
        return self.h.mean(0) @ x - self.b.mean(0)

    def value(self, x):
        return 0.5 * (x - self.best) @ self.h.mean(0) @ (x - self.best)

    def top(self, v):
        kept = np.argsort(-np.abs(v), kind="stable")[:KEPT]
        out = np.zeros_like(v)
        out[kept] = v[kept]
        return out


def same(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def played(method, clients, rounds=4, key=0, **options):
    return simulate(method, clients, jnp.ones(D), rounds=rounds, key=key, **options)
