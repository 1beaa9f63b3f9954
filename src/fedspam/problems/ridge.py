r"""The ridge regression of the paper's experiments, with a name for every way to read its description.

.. math:: f(x) = \mathbb{E}_\xi \|A_\xi x - y_\xi\|^2 + \tfrac\lambda2\|x\|^2
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key
from fedspam.problems.quadratic import Quadratics, check_size

Shift = Literal["printed", "none", "flipped"]
NoiseMatrix = Literal["gram", "symmetric"]


class Ridge(NamedTuple):
    """A drawn problem: its clients, and the point x_0 at which the paper starts."""

    population: Quadratics
    start: Float[np.ndarray, " d"]


def ridge(
    key: Key | int, clients: int = 10, dimension: int = 100,
    *, regularization: float = 0.1, scale: float = 1.0, shift: Shift = "printed", noise_matrix: NoiseMatrix = "gram",
    replace: bool = False,
) -> Ridge:  # fmt: skip
    r"""Draw the paper's distributed ridge regression.

    :math:`A = A_0A_0^\top` is shared, :math:`A'_\xi = A + s B_\xi`, and
    :math:`A_\xi = A'_\xi \pm \lambda_{\min}(A'_\xi) I`. The entries of :math:`A_0`, of the matrices behind
    :math:`B_\xi`, of :math:`y_\xi` and of :math:`x_0` are standard normal. As the loss has no ½,
    :math:`H_\xi = 2A_\xi^\top A_\xi + \lambda I`. Equal keys give equal draws under every reading.

    Arguments:
        clients, dimension: the paper has 10 and 100.
        regularization: :math:`\lambda`.
        scale: s. It controls the similarity :math:`\delta`; 0 makes all clients' Hessians equal.
        shift: 'printed' adds the least eigenvalue of :math:`A'_\xi` times the identity, as the text has it; 'flipped'
            subtracts it, which is what makes an indefinite matrix positive semidefinite; 'none' leaves it out.
        noise_matrix: 'gram' is :math:`B_\xi = B_0B_0^\top` ("generated similarly to A"); 'symmetric' is
            :math:`(B_0 + B_0^\top)/2`.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Appendix "Experimental details".

    >>> clients, start = ridge(0, clients=4, dimension=6)
    >>> clients.size, start.shape, bool(clients.delta < clients.client_smoothness.max())
    (4, (6,), True)
    """
    checks.whole("clients", clients, 1)
    checks.whole("dimension", dimension, 1)
    check_size(clients, dimension)
    checks.between("regularization", regularization, 0, np.inf)
    checks.between("scale", scale, 0, np.inf)
    checks.one_of("shift", shift, ("printed", "none", "flipped"))
    checks.one_of("noise_matrix", noise_matrix, ("gram", "symmetric"))
    random = prng.numpy_generator(key)

    identity = np.eye(dimension)
    root = random.standard_normal((dimension, dimension))
    roots = random.standard_normal((clients, dimension, dimension))
    targets = random.standard_normal((clients, dimension))
    start = random.standard_normal(dimension)

    noise = roots @ roots.mT if noise_matrix == "gram" else (roots + roots.mT) / 2
    matrices = root @ root.T + scale * noise
    sign = {"printed": 1.0, "none": 0.0, "flipped": -1.0}[shift]
    matrices = matrices + sign * np.linalg.eigvalsh(matrices)[:, :1, None] * identity

    hessians = 2 * matrices @ matrices + regularization * identity  # the matrices are symmetric
    linears = 2 * (matrices @ targets[:, :, None])[:, :, 0]
    constants = (targets**2).sum(1)
    symmetric = (hessians + hessians.mT) / 2
    return Ridge(Quadratics.of(symmetric, linears, constants, replace=replace), start)
