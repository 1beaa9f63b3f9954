"""Rows and loss of the clients in NumPy alone."""

from typing import Any

import numpy as np

CLIENTS, ROWS, FEATURES = 3, 12, 4
STEPS, RATE = 3, 0.1  # of local gradient descent


def rows(client: int) -> dict[str, np.ndarray]:
    """The rows of a client; the clients differ."""
    features = np.random.default_rng(client).normal(size=(ROWS, FEATURES)).astype(np.float32)
    return {"features": features, "target": (features.sum(1) + client).astype(np.float32)}


def loss_and_gradient(params: Any, rows: Any) -> tuple[Any, dict[str, Any]]:
    """Half the mean squared error of ``torch.nn.Linear``, whose parameters have these names."""
    residual = rows["features"] @ params["weight"][0] + params["bias"][0] - rows["target"]
    gradient = {"bias": residual.mean(keepdims=True), "weight": (residual @ rows["features"])[None] / len(residual)}
    return 0.5 * np.mean(residual**2), gradient
