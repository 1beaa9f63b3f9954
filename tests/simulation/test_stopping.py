"""When a run ends before its last round."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Patience, simulate, spam_pp
from fedspam.problems import quadratics

CLIENTS = quadratics(0, clients=4, dimension=3)
METHOD = spam_pp(2, step_size=0.1, fresh_weight=0.3)


@pytest.mark.slow
def test_a_run_without_improvement_ends(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """Patience ends it at the same round whatever the segments; the bar tells rounds and time."""
    unit = float(jnp.linalg.norm(CLIENTS.gradient(jnp.ones(3))))
    probe = lambda x: {"size": jnp.maximum(jnp.linalg.norm(CLIENTS.gradient(x)) / unit, 0.5)}  # stays at 0.5
    run = lambda **more: simulate(METHOD, CLIENTS, jnp.ones(3), rounds=60, key=0, probe=probe, every=2, **more)
    whole = run()
    first = int(np.argmax(whole.probes["size"] <= 0.5))
    ended = run(until=Patience("size", 3), folder=tmp_path / "run", observe="bar")
    assert str(ended.status) == "reached: size has not improved on 0.5 for 3 evaluations"
    assert ended.rounds == 2 * (first + 3)
    shown = capsys.readouterr().err
    assert "compiling the rounds ..." in shown
    assert f"round {ended.rounds}/60" in shown
    assert "left" in shown
    np.testing.assert_array_equal(ended.probes["size"], whole.probes["size"][: first + 4])
    with pytest.raises(ValueError, match=r"until\.probe = 'accuracy' is not a probe of this run"):
        run(until=Patience("accuracy", 3))
