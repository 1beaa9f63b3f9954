"""The theory as code: the bounds of the theorems, their constants on given clients, and the certificates of a run."""

from fedspam.theory.bounds import (
    Bound as Bound,
    averaged_bound as averaged_bound,
    constant_bound as constant_bound,
    inexact_bound as inexact_bound,
    partial_bound as partial_bound,
    printed_fresh_weight as printed_fresh_weight,
    varying_bound as varying_bound,
)
from fedspam.theory.certificates import Certificates as Certificates, certificates as certificates
from fedspam.theory.complexity import (
    Promise as Promise,
    Traffic as Traffic,
    order as order,
    promise as promise,
    traffic as traffic,
    trips_needed as trips_needed,
)
from fedspam.theory.compression import (
    OlgaParameters as OlgaParameters,
    dasha_step_size as dasha_step_size,
    ef21_step_size as ef21_step_size,
    locodl_rate as locodl_rate,
    olga_parameters as olga_parameters,
)
from fedspam.theory.constants import (
    Constants as Constants,
    effective_cohort_of as effective_cohort_of,
    least_fresh_weight as least_fresh_weight,
    lyapunov_weight as lyapunov_weight,
    premises as premises,
)
from fedspam.theory.intervals import IntervalEstimate as IntervalEstimate
from fedspam.theory.lemmas import drift as drift, lyapunov as lyapunov
from fedspam.theory.measure import (
    MeasureCost as MeasureCost,
    Measurement as Measurement,
    in_simulator as in_simulator,
    measure as measure,
    over_bytes as over_bytes,
)
from fedspam.theory.observed import Observed as Observed
