"""The theory as code: what the theorems promise, what their constants are on given clients, what a run was worth."""

from fedspam.theory.bounds import (
    Bound,
    averaged_bound,
    constant_bound,
    inexact_bound,
    partial_bound,
    printed_fresh_weight,
    varying_bound,
)
from fedspam.theory.certificates import Certificates, certificates
from fedspam.theory.complexity import Promise, Traffic, order, promise, traffic, trips_needed
from fedspam.theory.constants import Constants, effective_cohort_of, least_fresh_weight, lyapunov_weight, premises
from fedspam.theory.intervals import IntervalEstimate
from fedspam.theory.lyapunov import drift, lyapunov
from fedspam.theory.measure import MeasureCost, Measurement, in_simulator, measure, over_bytes
from fedspam.theory.observed import Observed

__all__ = [
    "Bound",
    "Certificates",
    "Constants",
    "IntervalEstimate",
    "MeasureCost",
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
    "least_fresh_weight",
    "lyapunov",
    "lyapunov_weight",
    "measure",
    "order",
    "over_bytes",
    "partial_bound",
    "premises",
    "printed_fresh_weight",
    "promise",
    "traffic",
    "trips_needed",
    "varying_bound",
]
