"""Cohorts spread over several devices, and over several processes: the draws of one device, sums up to their order."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fedspam import simulate
from fedspam.app.cli import main
from fedspam.methods import METHODS
from fedspam.problems import quadratics
from fedspam.simulation import engine

ROOT = Path(__file__).parents[2]

# what each process runs; a cohort of 4 on 3 devices leaves some of them with padding
SCRIPT = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
port, processes, number = map(int, sys.argv[1:4])
if processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
import jax.numpy as jnp
import numpy as np
from fedspam import Ragged, simulate
from fedspam.clients import Sharded
from fedspam.datasets import FederatedData
from fedspam.methods import METHODS
from fedspam.models import softmax_regression
from fedspam.problems import quadratics

def population(kind):
    if kind == "quadratics":
        return quadratics(0, clients=9, dimension=4), jnp.ones(4)
    rng = np.random.default_rng(0)
    rows = lambda n: {"features": rng.normal(size=(n, 3)), "label": rng.integers(0, 3, n).astype(np.int32)}
    model = softmax_regression(3, 3, dtype="float64")
    clients = [rows(n) for n in (3, 7, 2, 5, 4)]
    if kind == "sharded":  # some devices have two clients, and none of a cohort
        read = lambda part: FederatedData.of([(str(i), clients[i]) for i in part])
        return Sharded.of([(0, 1), (2,), (3, 4)], read, model.loss, weighted=True), model.init(0)
    options = {"weighted": True} if kind == "whole" else {"batch": 3}
    return Ragged.of(clients, model.loss, **options), model.init(0)

found = {"devices": len(jax.devices()), "local": len(jax.local_devices())}
for kind, name, options in CASES:
    method = METHODS[name]
    clients, start = population(kind)
    arguments = {key: value for key, value in {**method.example, **options}.items() if value is not None}
    run = lambda **devices: simulate(
        method.build(**arguments), clients, start, rounds=4, key=1, **devices
    )
    spread = run(devices=jax.devices())
    if kind == "sharded":
        clients, _ = population("whole")
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).tolist()
    found[f"{kind} {name}"] = flat(spread.params), spread.rows["bytes_up"].tolist()
    if processes == 1:
        found[f"{kind} {name} again"] = flat(run(devices=jax.devices()).params if kind != "sharded" else spread.params)
        alone = run()
        found[f"{kind} {name} alone"] = flat(alone.params), alone.rows["bytes_up"].tolist()
print(json.dumps(found), flush=True)
"""


def spawn(cases, devices, processes=1):
    """Run the script in so many processes of so many devices, and return what each found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT / "src"),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}",
    }
    script = f"CASES = {cases!r}\n{SCRIPT}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(port), str(processes), str(number)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip
    found = []
    try:
        for process in started:
            out, error = process.communicate(timeout=1800)
            assert process.returncode == 0, error[-2000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
    return found


@pytest.mark.slow
def test_three_devices_do_what_one_does():
    cases = [
        ("quadratics", "spam_pp", {}),  # affine: a central gradient on each device
        ("quadratics", "scaffold", {}),  # clients that remember
        ("ragged", "fedavg", {"local_rate": 0.1}),  # minibatches
        ("ragged", "spam_ppa", {"solver": None}),
        ("sharded", "spam_pp", {"solver": None}),  # clients stay where their rows are
        ("sharded", "scaffold", {}),
    ]
    (found,) = spawn(cases, devices=3)
    assert found["devices"] == 3
    for kind, name, _ in cases:
        params, charged = found[f"{kind} {name}"]
        alone, charged_alone = found[f"{kind} {name} alone"]
        assert params == found[f"{kind} {name} again"]  # the same bits every time
        assert charged == charged_alone
        # sums over clients in another order: a few roundings of 2^-53 each, times what 4 rounds make of them
        np.testing.assert_allclose(params, alone, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_two_processes_do_what_one_does():
    cases = [("quadratics", "spam_pp", {}), ("ragged", "fedavg", {"local_rate": 0.1})]
    first, second = spawn(cases, devices=1, processes=2)
    assert (first["devices"], first["local"]) == (2, 1)
    (alone,) = spawn(cases, devices=2)
    for kind, name, _ in cases:
        assert first[f"{kind} {name}"] == second[f"{kind} {name}"]  # both hosts end with the same model,
        assert first[f"{kind} {name}"] == alone[f"{kind} {name}"]  # to the bit that of two devices of one host


@pytest.mark.slow
def test_a_mesh_of_one_device_changes_no_bit():
    clients, method = quadratics(0, clients=9, dimension=4), METHODS["spam_pp"]
    run = lambda **devices: (
        simulate(method.build(**method.example), clients, np.ones(4), rounds=4, key=1, chunk=2, **devices).params
    )
    np.testing.assert_array_equal(run(devices=jax.devices()[:1]), run())


def test_no_devices_are_refused():
    with pytest.raises(ValueError, match=r"devices = \[\] is empty"):
        engine.mesh_of([])


# a sweep by settings and one by seeds, neither of which three devices divide; and one whose runs end early
SWEEP = """
import json
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from fedspam import Watch, simulate_many
from fedspam.methods import scaffold
from fedspam.problems import quadratics

clients, off = quadratics(0, clients=9, dimension=4), {}
ends = {"watch": Watch(growth=2.0), "lanes": 1}
for settings, seeds, side_by_side, more in ((4, 1, False, {}), (2, 4, True, {}), (5, 2, True, ends)):
    methods = [scaffold(3, 2, rate) for rate in (0.01, 0.02, 0.03, 4.0, 0.05)[:settings]]
    one, several = (
        simulate_many(
            methods, clients, jnp.ones(4), rounds=4, keys=range(seeds),
            side_by_side=side_by_side, devices=devices, **more,
        )
        for devices in (None, jax.devices())
    )
    assert np.array_equal(one.rounds_done, several.rounds_done)
    leaves = lambda run: jax.tree.leaves((run.params, run.state, run.memory, run.rows))
    assert several.params.shape == (settings, seeds, 4)
    pairs = zip(leaves(one), leaves(several), strict=True)
    number = lambda leaf: np.nan_to_num(np.float64(leaf))  # NaN: a round that was not done
    off[settings] = [float(np.max(np.abs(number(a) - number(b)))) for a, b in pairs]
used, done = len(several.params.sharding.device_set), one.rounds_done.tolist()
print(json.dumps({"devices": len(jax.devices()), "used": used, "off": off, "done": done}))
"""


ROUNDING = 1e-12  # absolute, of a few rounds in float64 with numbers up to 10


@pytest.mark.slow
def test_devices_share_the_runs_of_a_sweep():
    """One after another, runs have the bits of one device. Side by side, kernels sum more or fewer of them at once."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=3",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SWEEP], env=environment, check=False, capture_output=True, text=True, timeout=1800
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["devices"], found["used"]) == (3, 3)
    after, beside = found["off"]["4"], found["off"]["2"]
    assert len(after) > 10
    assert max(after) == 0
    assert max(beside) < ROUNDING
    assert [done for done, _ in found["done"]] == [4, 4, 4, 1, 4]  # the fourth diverges
    assert max(found["off"]["5"]) < ROUNDING


def test_more_devices_than_there_are_are_refused(capsys):
    count = len(jax.devices()) + 1
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "--devices", str(count), "--no-cache"])
    assert f"--devices {count}: JAX finds only {count - 1} here" in capsys.readouterr().err
