"""The audit of privacy: no leak above the reported epsilon, and one that is there is found."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from loading import benchmark

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install '.[privacy]'")

audit = benchmark("audit")
ONCE = audit.SETTINGS[0]


@pytest.mark.parametrize("setting", audit.SETTINGS, ids=lambda setting: setting.name)
def test_no_more_leaks_than_epsilon_says(setting):
    """With fewer runs than the benchmark: the bound is below the truth in 19 of 20 audits, and the truth below epsilon
    by at least a third, so that chance does not fail this test."""
    assert audit.audited(setting, 200) <= audit.reported(setting)


def test_too_little_noise_is_noticed():
    """The worlds are twelve standard deviations apart, so that no draw of a thousand is on the wrong side."""
    assert audit.audited(audit.weakened(ONCE, 0.08), 1000) > audit.reported(ONCE)


def test_noise_that_leaks_in_its_last_bits_is_noticed(monkeypatch):
    """Noise in floating point, as it was once: the rest modulo its grid tells whether a reply is there."""
    setting = next(setting for setting in audit.SETTINGS if setting.last_bits)

    def floating(self, values):
        draws = np.random.default_rng().normal(size=values["reply"].shape) * self.deviation
        return {"reply": np.where(values["reply"] == 0, self.grid * np.rint(draws / self.grid), draws)}

    monkeypatch.setattr(audit.Privacy, "protect", floating)
    assert audit.audited(setting, 1000) > audit.reported(setting)


@pytest.mark.parametrize(("hits", "alarms"), [(1000, 0), (500, 100), (999, 3)])
def test_the_bound_is_that_of_clopper_and_pearson(hits, alarms):
    low, high = (binomtest(count, 1000).proportion_ci(0.95, "exact") for count in (hits, alarms))
    assert audit.bound(hits, alarms, 1000) == pytest.approx(math.log((low.low - audit.DELTA) / high.high))
    assert audit.bound(0, 0, 1000) == audit.bound(100, 500, 1000) == 0
