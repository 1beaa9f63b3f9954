"""The theory as code: what the theorems promise, what their constants are on given clients, what a run was worth."""

from fedspam.theory.bounds import (
    Bound,
    averaged_bound,
    constant_bound,
    inexact_bound,
    partial_bound,
    printed_momentum,
    varying_bound,
)
from fedspam.theory.certificates import Certificates, certificates
from fedspam.theory.complexity import Promise, Traffic, order, promise, traffic, trips_needed
from fedspam.theory.constants import Constants, effective_cohort_of, least_momentum, lyapunov_weight, premises
from fedspam.theory.intervals import Estimate
from fedspam.theory.lyapunov import drift, lyapunov
from fedspam.theory.measure import Cost, Measurement, in_simulator, measure, over_bytes
from fedspam.theory.observed import Observed

__all__ = [
    "Bound",
    "Certificates",
    "Constants",
    "Cost",
    "Estimate",
    "Measurement",
    "Observed",
    "Promise",
    "Traffic",
    "averaged_bound",
    "certificates",
    "constant_bound",
    "drift",
    "effective_cohort_of",
    "in_simulator",
    "inexact_bound",
    "least_momentum",
    "lyapunov",
    "lyapunov_weight",
    "measure",
    "order",
    "over_bytes",
    "partial_bound",
    "premises",
    "printed_momentum",
    "promise",
    "traffic",
    "trips_needed",
    "varying_bound",
]
