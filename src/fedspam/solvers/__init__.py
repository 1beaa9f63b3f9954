"""Local solvers: how a client answers the approximate prox, each answer with its certificate."""

from fedspam.solvers._certificate import Absolute as Absolute
from fedspam.solvers._certificate import Answer as Answer
from fedspam.solvers._certificate import Certificate as Certificate
from fedspam.solvers._certificate import LocalSolver as LocalSolver
from fedspam.solvers._certificate import Never as Never
from fedspam.solvers._certificate import Point as Point
from fedspam.solvers._certificate import Relative as Relative
from fedspam.solvers._certificate import Stop as Stop
from fedspam.solvers._certificate import Surrogate as Surrogate
from fedspam.solvers._certificate import certified as certified
from fedspam.solvers._certificate import certify as certify
from fedspam.solvers.exact import Exact as Exact
from fedspam.solvers.external import Optax as Optax
from fedspam.solvers.external import Optimistix as Optimistix
from fedspam.solvers.gradient import Accelerated as Accelerated
from fedspam.solvers.gradient import AdaptiveDescent as AdaptiveDescent
from fedspam.solvers.gradient import Backtracking as Backtracking
from fedspam.solvers.gradient import GradientDescent as GradientDescent
from fedspam.solvers.minibatch import SampledSteps as SampledSteps
from fedspam.solvers.newton import NewtonCG as NewtonCG
from fedspam.solvers.quasi_newton import LBFGS as LBFGS
