"""Arguments that the constructors of methods refuse, with the reason."""

import optax
import pytest

from fedspam.methods import (
    Epochs,
    adaptive_acc_s_dane,
    adaptive_s_dane,
    delta_sgd,
    ditto,
    fedacg,
    fedavg,
    fedcm,
    fedcm_vr,
    fedexp,
    fedexprox,
    fednova,
    fedopt,
    fedprox,
    fedsps,
    scaffold_m,
    scaffold_m_vr,
    sppm_as,
)
from fedspam.solvers import Exact


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fedavg(2, 3, 0.1, optimizer=optax.sgd(0.1)), "it has a rate of its own; give the part without"),
        (lambda: fedavg(2, 3, 0.1, optimizer=0.9), "must be an Optax transformation, such as"),
        (lambda: fedprox(2, 0.7, solver=Exact(), optimizer=optax.trace(0.9)), "leave out local_steps, local_rate and"),
        (lambda: fedopt(2, 3, 0.1, 0.9), "must be an Optax optimizer, such as"),
        (lambda: fedopt(2, 3, 0.1, "adam"), "is a name without a rate; give server_step_size"),
        (lambda: fedopt(2, 3, 0.1, "Adam", server_step_size=0.1), "did you mean 'adam'"),
        (lambda: fedopt(2, 3, 0.1, optax.adam(0.1), server_step_size=0.1), "give the rate to the optimizer itself"),
        (lambda: fedavg(2, 0, 0.1), "local_steps = 0 .* or give Epochs"),
        (lambda: Epochs(0), "passes"),
        (lambda: Epochs(2, stragglers=1.5), "stragglers = 1.5"),
        (lambda: Epochs(float("nan")), "passes = nan"),
        (lambda: Epochs(1, stragglers=0.5), "but there is only 1; give more passes"),
        (lambda: Epochs(2.5, stragglers=0.5), "only 2.5; give more passes, a whole number of them"),
        (lambda: fedacg(2, Epochs(1), 0.1), "local_steps"),
        (lambda: fednova(2, 3, 0.1, momentum=1.0), "0 is plain SGD"),
        (lambda: fedcm(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: fedcm_vr(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: scaffold_m(2, 3, 0.1, fresh_weight=1.5), "1 is FedAvg or SCAFFOLD"),
        (lambda: scaffold_m_vr(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: sppm_as(2, 1.0, 0.1, exchanges=0), "exchanges"),
        (lambda: ditto(2, 3, 0.1, pull=-1.0), "0 is training alone"),
        (lambda: fedexp(0, 1, 0.1), "cohort_size"),
        (lambda: fedexp(2, 1, 0.1, damping=-1.0), "damping"),
        (lambda: fedexprox(2, 1.0), "give both, or a solver"),
        (lambda: fedacg(2, 1, 0.1, momentum=1.5), "0 is FedProx"),
        (lambda: fedacg(2, 1, 0.1, step_size=-1.0), "step_size"),
        (lambda: delta_sgd(2, 0), "local_steps"),
        (lambda: delta_sgd(2, 1, amplification=0.0), "amplification"),
        (lambda: delta_sgd(2, 1, growth=-0.1), "growth"),
        (lambda: fedsps(2, 1, scale=0.0), "scale"),
        (lambda: fedsps(2, 1, 0.0), "local_rate"),
        (lambda: adaptive_s_dane(0.0), "step_size"),
        (lambda: adaptive_acc_s_dane(convexity=-1.0), "convexity"),
    ],
)
def test_wrong_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
