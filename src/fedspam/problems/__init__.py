"""Problems whose constants are known: quadratics, the paper's ridge, logistic and softmax regression.

Arguments that mean the same in all of them: `key` is the randomness, a key or a seed; `clients` is how many there are,
and `dimension` that of x; with `replace` a cohort may hold a client twice.
"""

from fedspam.problems.quadratic import (
    QuadraticOracle as QuadraticOracle,
    Quadratics as Quadratics,
    progress as progress,
    quadratics as quadratics,
)
from fedspam.problems.regression import (
    LogisticLoss as LogisticLoss,
    SoftmaxLoss as SoftmaxLoss,
    cross_entropy as cross_entropy,
    logistic as logistic,
    logistic_smoothness as logistic_smoothness,
    softmax as softmax,
    synthetic_logistic as synthetic_logistic,
)
from fedspam.problems.ridge import Ridge as Ridge, ridge as ridge
from fedspam.problems.solution import Solution as Solution, row_weights as row_weights, solve as solve
