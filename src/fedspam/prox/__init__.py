"""Local solvers: how a client answers the approximate prox, each answer with its certificate."""

from fedspam.prox._certificate import (
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
from fedspam.prox.exact import Exact
from fedspam.prox.gradient import Accelerated, AdaptiveDescent, Backtracking, GradientDescent
from fedspam.prox.library import Optax, Optimistix
from fedspam.prox.newton import NewtonCG
from fedspam.prox.quasi_newton import LBFGS
from fedspam.prox.sampled import SampledSteps

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
