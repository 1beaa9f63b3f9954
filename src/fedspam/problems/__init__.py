"""Problems whose constants are known: quadratics, the paper's ridge regression, logistic regression."""

from fedspam.problems.logistic import LogisticLoss, logistic, logistic_smoothness, synthetic_logistic
from fedspam.problems.quadratic import QuadraticOracle, Quadratics, quadratics
from fedspam.problems.ridge import Ridge, ridge

__all__ = [
    "LogisticLoss",
    "QuadraticOracle",
    "Quadratics",
    "Ridge",
    "logistic",
    "logistic_smoothness",
    "quadratics",
    "ridge",
    "synthetic_logistic",
]
