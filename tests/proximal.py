"""Proxes and gradients of quadratics in NumPy."""

import jax
import numpy as np

from fedspam.solvers import Exact

ROUNDS, CLIENTS, D = 6, 6, 3
KEY = jax.random.key(0)
PROX = {"solver": Exact()}


def gradient(population, x, clients=None):
    gradients = np.asarray(population.hessians) @ x - np.asarray(population.linears)
    return (gradients if clients is None else gradients[clients]).mean(0)


def prox(population, client, x, g, gamma):
    return x - np.linalg.solve(np.asarray(population.hessians[client]) + np.eye(len(x)) / gamma, g)
