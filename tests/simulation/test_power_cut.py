"""After a power cut the disk holds what was synced and any part of the rest: a run goes on, with the same bits."""

import random
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, spam
from fedspam._internal import files
from fedspam.problems import quadratics
from fedspam.simulation.records import Keep, RecordError
from fedspam.solvers import Exact
from loading import benchmark

METHOD = spam(0.8, 0.3, solver=Exact(), start="zero")
PEOPLE = quadratics(jax.random.key(0), clients=12, dimension=4, delta=0.2, condition=4.0)
ROUNDS, SEGMENT = 12, 4

power_cut = benchmark("power_cut")


def go(folder=None):
    """The parameters of a run, and after how many rounds it continued."""
    seen = []
    run = simulate(
        METHOD,
        PEOPLE,
        jnp.ones(4),
        rounds=ROUNDS,
        key=5,
        every=SEGMENT,
        keep=Keep(2, every=SEGMENT) if folder else None,
        folder=folder,
        resume=folder is not None and folder.exists(),
        observe=lambda done, rows, probes: seen.append(done),
    )
    return np.asarray(run.params).tobytes(), min(seen, default=ROUNDS + SEGMENT) - SEGMENT


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """All that an undisturbed run does to its files."""
    place = tmp_path_factory.mktemp("power")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("os", "remove", "_forget"):
            patch.setattr(files, name, getattr(files, name))  # put back after the test
        patch.setattr(files, "open", open, raising=False)
        power_cut.watch(place / "log")
        go(place / "run")
    return list(power_cut.operations(place / "log"))


def promised(operations):
    """The newest checkpoint that was on the disk, as far as syncs promise."""
    done, named = 0, 0
    for kind, *facts in operations:
        if kind == "replace" and (found := re.match(r"checkpoint-(\d+)", facts[1])):
            named = int(found[1])
        elif kind == "sync folder":
            done = named
    return done


def after_cuts(operations, folder, states):
    """For each of some power cuts: what was promised, where the run continued, and its end."""
    chance = random.Random(0)
    for number in range(states):
        place = folder / str(number)
        place.mkdir()
        until = number * len(operations) // states
        power_cut.cut(place, {}, operations[: until + 1], chance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that files are damaged is said, and is what is tried here
            try:
                end, continued = go(place)
            except RecordError:
                end, continued = None, -1
        yield promised(operations[: until + 1]), continued, end


def test_what_was_saved_survives_a_power_cut(logged, tmp_path):
    undisturbed, _ = go()
    seen = list(after_cuts(logged, tmp_path, 60))
    assert max(promise for promise, _, _ in seen) == ROUNDS
    assert all(continued >= promise for promise, continued, _ in seen)
    assert all(end == undisturbed for _, _, end in seen)


def test_without_syncs_it_would_be_lost(logged, tmp_path):
    """The test above can fail: here no file is synced before it gets its name."""
    careless = [operation for operation in logged if operation[0] != "sync"]
    assert any(continued < promise for promise, continued, _ in after_cuts(careless, tmp_path, 60))
