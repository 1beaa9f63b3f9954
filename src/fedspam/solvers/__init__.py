"""Local solvers: how a client answers the approximate prox, each answer with its certificate.

Two arguments mean the same in all of them: `steps` is the largest number of steps, and `stop` the rule by which an
answer is good enough: `Relative`, `Absolute` or `Never`.
"""

from fedspam.solvers._certificate import (
    Absolute as Absolute,
    Answer as Answer,
    Certificate as Certificate,
    LocalSolver as LocalSolver,
    Never as Never,
    Point as Point,
    Relative as Relative,
    Stop as Stop,
    Surrogate as Surrogate,
    certified as certified,
    certify as certify,
)
from fedspam.solvers.exact import Exact as Exact
from fedspam.solvers.external import Optax as Optax, Optimistix as Optimistix
from fedspam.solvers.gradient import (
    Accelerated as Accelerated,
    AdaptiveDescent as AdaptiveDescent,
    Backtracking as Backtracking,
    GradientDescent as GradientDescent,
)
from fedspam.solvers.minibatch import SampledSteps as SampledSteps
from fedspam.solvers.newton import NewtonCG as NewtonCG
from fedspam.solvers.quasi_newton import LBFGS as LBFGS
