"""Problems whose constants are known: quadratics, the paper's ridge, logistic and softmax regression."""

from fedspam.problems.logistic import LogisticLoss, logistic, logistic_smoothness, synthetic_logistic
from fedspam.problems.measured import Measured, measure, row_weights
from fedspam.problems.quadratic import QuadraticOracle, Quadratics, quadratics
from fedspam.problems.ridge import Ridge, ridge
from fedspam.problems.softmax import SoftmaxLoss, softmax

__all__ = [
    "LogisticLoss",
    "Measured",
    "QuadraticOracle",
    "Quadratics",
    "Ridge",
    "SoftmaxLoss",
    "logistic",
    "logistic_smoothness",
    "measure",
    "quadratics",
    "ridge",
    "row_weights",
    "softmax",
    "synthetic_logistic",
]
