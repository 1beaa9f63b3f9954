"""Local solvers: how a client answers the approximate prox, each answer with its certificate."""

from fedspam.solvers._certificate import (
    Absolute,
    Answer,
    Certificate,
    LocalSolver,
    Never,
    Point,
    Relative,
    Stop,
    Surrogate,
    certify,
)
from fedspam.solvers.exact import Exact
from fedspam.solvers.external import Optax, Optimistix
from fedspam.solvers.gradient import Accelerated, AdaptiveDescent, Backtracking, GradientDescent
from fedspam.solvers.minibatch import SampledSteps
from fedspam.solvers.newton import NewtonCG
from fedspam.solvers.quasi_newton import LBFGS

__all__ = [
    "LBFGS",
    "Absolute",
    "Accelerated",
    "AdaptiveDescent",
    "Answer",
    "Backtracking",
    "Certificate",
    "Exact",
    "GradientDescent",
    "LocalSolver",
    "Never",
    "NewtonCG",
    "Optax",
    "Optimistix",
    "Point",
    "Relative",
    "SampledSteps",
    "Stop",
    "Surrogate",
    "certify",
]
