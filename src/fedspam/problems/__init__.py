"""Problems whose constants are known: quadratics, the paper's ridge, logistic and softmax regression."""

from fedspam.problems.quadratic import QuadraticOracle as QuadraticOracle
from fedspam.problems.quadratic import Quadratics as Quadratics
from fedspam.problems.quadratic import progress as progress
from fedspam.problems.quadratic import quadratics as quadratics
from fedspam.problems.regression import LogisticLoss as LogisticLoss
from fedspam.problems.regression import SoftmaxLoss as SoftmaxLoss
from fedspam.problems.regression import cross_entropy as cross_entropy
from fedspam.problems.regression import logistic as logistic
from fedspam.problems.regression import logistic_smoothness as logistic_smoothness
from fedspam.problems.regression import softmax as softmax
from fedspam.problems.regression import synthetic_logistic as synthetic_logistic
from fedspam.problems.ridge import Ridge as Ridge
from fedspam.problems.ridge import ridge as ridge
from fedspam.problems.solution import Solution as Solution
from fedspam.problems.solution import row_weights as row_weights
from fedspam.problems.solution import solve as solve
