"""The methods on real processes: a SuperLink and three SuperNodes on 127.0.0.1, and Flower's simulation under Ray.

Each test is bounded in time, and everything it starts ends with it.
"""

import json
import os
import re
import runpy
import signal
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, spam, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.simulation import records, restore
from fedspam.solvers import GradientDescent
from processes import closing, free_port
from world import CLIENTS, LONGEST, World

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
pytestmark = pytest.mark.slow

TOLERANCE = 1e-5  # server and engine sum in other orders, in float32


def a_method(name):
    solver = GradientDescent(steps=5, smoothness=2.0)
    if name == "spam":
        return spam(step_size=0.5, fresh_weight=0.3, solver=solver)
    return spam_pp(3 if name == "secure" else 2, step_size=0.5, fresh_weight=0.3, solver=solver)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with closing(World(tmp_path_factory.mktemp("federation"))) as world:
        yield world.federation()


def simulated(name: str, rounds: int):
    clients = synthetic_logistic(0, clients=CLIENTS, dimension=4)
    return simulate(a_method(name), clients, jnp.ones(4), rounds=rounds, key=7)


def found(folder: Path, name: str):
    return restore(a_method(name), synthetic_logistic(0, clients=CLIENTS, dimension=4), jnp.ones(4), folder)


def assert_like_the_simulation(folder: Path, name: str, rounds: int) -> None:
    run, (params, done) = simulated(name, rounds), found(folder, name)
    assert done == rounds
    np.testing.assert_allclose(params, run.params, rtol=TOLERANCE, atol=TOLERANCE)
    _, rows, _ = records.read(folder)
    for column in ("bytes_down", "bytes_up", "floats_down", "floats_up"):
        np.testing.assert_array_equal(rows[column], run.rows[column])


@pytest.mark.thorough  # the test of a killed server compares a federation of processes with the simulation too
@pytest.mark.parametrize("name", ["spam", "spam_pp"])
def test_a_federation_of_processes_ends_where_the_simulation_does(world, name):
    world.begin(name, method=name, rounds=2)
    world.end()
    assert_like_the_simulation(world.folder / name, name, 2)


def test_a_killed_server_is_resumed_by_a_new_run(world):
    """It ends with the bits of the run that nobody killed (the test before, if it ran; the simulation's anyway).

    A message starts a process at every client, so this is tried with SPAM, which asks one per exchange.
    """
    world.begin("killed", method="spam", rounds=2)
    world.until("killed", 1)
    assert world.servers()
    for pid in world.servers():
        os.kill(pid, signal.SIGKILL)
    world.kill("flwr")
    assert found(world.folder / "killed", "spam")[1] == 1
    for _ in range(2):  # a node that is still busy with the killed run may let a round pass: then resume once more
        world.begin("killed", method="spam", rounds=2, resume=True)
        world.end()
        if found(world.folder / "killed", "spam")[1] == 2:
            break
    params, done = found(world.folder / "killed", "spam")
    assert done == 2, world.logs()
    np.testing.assert_allclose(params, simulated("spam", 2).params, rtol=TOLERANCE, atol=TOLERANCE)
    undisturbed = world.folder / "spam"
    if undisturbed.exists():
        np.testing.assert_array_equal(params, found(undisturbed, "spam")[0])


@pytest.mark.thorough  # eleven runs, of which ten are killed
def test_a_server_killed_ten_times_and_a_killed_superlink_leave_the_same_bits(tmp_path):
    """Each server does one exchange and dies in the next. Halfway the SuperLink is killed too, and started again."""
    rounds, deaths = 5, 10  # SPAM-PP: the start and two exchanges per round, so that the eleventh server does the last
    with closing(World(tmp_path)) as world:
        folder, state = world.folder / "mortal", ["--database", str(world.folder / "state.db")]
        world.federation(*state)
        for death in range(deaths):
            world.begin("mortal", method="spam_pp", rounds=rounds, resume=death > 0, exchanges=1)
            world.wait(lambda: len(complete(folder)) > death, LONGEST, f"exchange {death + 1}")
            world.wait(lambda: not world.servers(), LONGEST, f"the server to die after exchange {death + 1}")
            world.kill("flwr")
            if death == deaths // 2:
                world.kill("superlink")
                world.superlink(*state)
        assert found(folder, "spam_pp")[1] == rounds - 1
        world.begin("mortal", method="spam_pp", rounds=rounds, resume=True)
        world.end()
        assert len(complete(folder)) == deaths + 1  # none was done twice
        world.begin("whole", method="spam_pp", rounds=rounds)
        world.end()
        assert_like_the_simulation(world.folder / "whole", "spam_pp", rounds)
        params, done = found(folder, "spam_pp")
        assert done == rounds
        np.testing.assert_array_equal(params, found(world.folder / "whole", "spam_pp")[0])


def logged(folder: Path, event: str) -> list[dict]:
    """The lines of the log of a run, of all its servers, about one kind of event."""
    log = folder / "events.jsonl"
    lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return [line for line in lines if line["event"] == event]


def complete(folder: Path) -> list[str]:
    """The complete exchanges of a run, of all its servers."""
    return [line["exchange"] for line in logged(folder, "exchange") if line["enough"]]


@pytest.mark.thorough
def test_a_terminated_server_says_so_and_is_resumed(world):
    folder = world.folder / "terminated"
    world.begin("terminated", method="spam_pp", rounds=2)
    world.until("terminated", 1)
    for pid in world.servers():
        os.kill(pid, signal.SIGTERM)
    stopped = lambda: records.read(folder)[0]["status"]["reason"].startswith("SIGTERM")
    world.wait(stopped, LONGEST, "the server to note that it stops")
    world.wait((folder / "model.safetensors").exists, LONGEST, "the model")
    world.kill("flwr")
    for _ in range(2):
        world.begin("terminated", method="spam_pp", rounds=2, resume=True)
        world.end()
        if found(folder, "spam_pp")[1] == 2:
            break
    np.testing.assert_allclose(
        found(folder, "spam_pp")[0], simulated("spam_pp", 2).params, rtol=TOLERANCE, atol=TOLERANCE
    )


@pytest.mark.thorough  # a federation of its own
def test_a_late_supernode_takes_part_and_a_file_stops_the_run(tmp_path):
    """The third SuperNode starts after the first round. Nobody knows how many rounds that takes: the run is stopped."""
    with closing(World(tmp_path)) as world:
        world.superlink()
        for id in (0, 1):
            world.supernode(id)
        folder = world.folder / "late"
        world.begin("late", method="spam_pp", rounds=1000, nodes=2)
        world.until("late", 1)
        assert not any(2 in line["answered"] for line in logged(folder, "exchange"))
        world.supernode(2)
        came = lambda: any(2 in line["answered"] for line in logged(folder, "exchange"))
        world.wait(came, LONGEST, "client 2 to take part")
        (folder / "stop").touch()
        world.end()
        assert records.read(folder)[0]["status"]["reason"].startswith("the file")
        late = [line["client"] for line in logged(folder, "node") if line["late"]]
        assert late == [2]
        assert not any(line["void"] for line in logged(folder, "round")[1:])


@pytest.mark.thorough  # a federation of its own, of which one node and the server die
def test_what_goes_wrong_at_sites_is_seen_and_ends_nothing(tmp_path):
    """A site that is late, one that restarts, one with another release, one whose policy refuses, and a killed server.

    Nobody knows how many rounds that takes: the run is stopped when all of it has been seen.
    """
    with closing(World(tmp_path, clients=5)) as world:
        world.superlink()
        (world.folder / "policy.toml").write_text('methods = ["scaffold"]')
        world.supernode(0)
        world.supernode(1)
        world.supernode(3, WIRE="99")
        world.supernode(4, f'policy="{world.folder / "policy.toml"}"')
        folder, port = world.folder / "faults", free_port()
        settings = {"rounds": 1000, "nodes": 2, "quorum": 0.2, "retries": 0, "timeout": 600.0, "metrics": port}
        world.begin("faults", method="fedavg", **settings)
        world.until("faults", 1)
        world.supernode(2)
        world.wait(lambda: last_answered(folder, 2), LONGEST, "the late site to take part")
        world.kill("supernode1")
        world.wait(lambda: 1 in failed(folder), LONGEST, "the loss of site 1 to be noticed")
        world.supernode(1)
        world.wait(lambda: last_answered(folder, 1), LONGEST, "site 1 to be back")

        page, metrics = (served(port, path) for path in ("", "metrics"))
        assert "speaks version 99 of the wire" in page
        assert "methods of its policy are [&#x27;scaffold&#x27;], the message is of &#x27;fedavg&#x27;" in page
        assert re.search(r'<td class="number">1</td><td>(lost|absent)', page)
        assert metric(metrics, "nodes_refused") == 2
        assert metric(metrics, "nodes_late_total") >= 2
        assert metric(metrics, 'introductions_total{outcome="refused"}') >= 1
        assert metric(metrics, 'introductions_total{outcome="rejected"}') >= 1
        assert "refused" in (world.folder / "policy.jsonl").read_text()

        for pid in world.servers():
            os.kill(pid, signal.SIGKILL)
        world.kill("flwr")
        before = len(logged(folder, "round"))
        world.begin("faults", method="fedavg", resume=True, **settings)
        world.wait(lambda: len(logged(folder, "round")) > before, LONGEST, "the resumed run to do a round")
        assert metric(served(port, "metrics"), "resumed_after_round") == before - 1  # the start is round 0
        (folder / "stop").touch()
        world.end()
        assert records.read(folder)[0]["status"]["reason"].startswith("the file")
        assert not any(line["void"] for line in logged(folder, "round")[1:])
        assert len(logged(folder, "begin")) == 2


def last_answered(folder: Path, client: int) -> bool:
    """Whether this client has answered in the last exchange."""
    return client in ([[]] + [line["answered"] for line in logged(folder, "exchange")])[-1]


def failed(folder: Path) -> set[int]:
    """The clients whose nodes were lost or absent in the last exchange."""
    failures = ([[]] + [line["failures"] for line in logged(folder, "exchange")])[-1]
    return {each["client"] for each in failures if each["kind"] in ("lost", "absent")}


def served(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
        return answer.read().decode()


def metric(text: str, name: str) -> float:
    found = re.search(rf"^fedspam_{re.escape(name)} (.*)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


@pytest.mark.thorough  # Flower takes a minute to notice
def test_a_killed_supernode_is_replaced(world):
    """The last test of this world. Whoever else is there stands in; no round is void."""
    world.begin("lost", method="spam_pp", rounds=3, timeout=20.0)
    world.until("lost", 1)
    world.kill("supernode2")
    world.end()
    _, rows, _ = records.read(world.folder / "lost")
    assert rows["void"].tolist() == [False] * 3
    assert rows["difference.accepted"].tolist() == [2] * 3
    asked = rows["difference.asked"].sum() + rows["prox.asked"].sum()
    assert asked > 3 * 3  # client 2 was asked, and others after it


@pytest.mark.thorough  # a secure sum takes four trips, each of several seconds
def test_a_secure_sum_on_processes(tmp_path):
    with closing(World(tmp_path, "SecureSum(in_clear=('train.prox',))")) as world:
        world.federation().begin("secure", method="secure", rounds=2)
        world.end()
        params, done = found(world.folder / "secure", "secure")
        assert done == 2
        clear = simulated("secure", 2).params
        np.testing.assert_allclose(params, clear, rtol=TOLERANCE, atol=TOLERANCE)  # float32 hides rounding to 2^-33
        assert world.log("flwr").count("unmask: 3 of 3") == 3  # the start and two rounds


NETWORK = """
import numpy as np, torch
from fedspam import Ragged, fedavg
from fedspam.models import Normalization, from_torch

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
model = from_torch(module, normalization="recalibrated", compiled=True)
made = np.random.default_rng(0)
rows = [
    {"features": made.normal(2, size=(n, 4)).astype(np.float32), "label": np.arange(n, dtype=np.int32) % 3}
    for n in (6, 9, 4)
]
clients, first, secure = Ragged.of(rows, model.loss, batch=3), model.init(0), None
plain = fedavg(3, 2, 0.1)

def method(context):
    return Normalization("recalibrated").around(plain, first)
"""


@pytest.mark.thorough  # a federation of its own
def test_running_statistics_on_processes(tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
    with closing(World(tmp_path)) as world:
        task = tmp_path / "app" / "trial" / "task.py"
        task.write_text(NETWORK)
        own = runpy.run_path(str(task))  # what the processes import
        world.federation().begin("network", rounds=2, timeout=600.0)  # tracing a module takes its time
        world.end()
        params, done = restore(own["method"](None), own["clients"], own["first"], world.folder / "network")
        assert not records.read(world.folder / "network")[1]["void"].any()
    due = simulate(own["plain"], own["clients"], own["first"], rounds=2, key=7).params
    assert done == 2
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(due), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.thorough  # tests/flower/test_template.py runs Flower's simulation too
def test_flowers_own_simulation_ends_where_ours_does(tmp_path):
    with closing(World(tmp_path)) as world:
        world.superlink("--simulation")
        resources = "num-supernodes=3 client-resources-num-cpus=1 client-resources-num-gpus=0.0"
        world.begin("ray", resources, method="spam_pp", rounds=3)
        world.end()
        assert_like_the_simulation(world.folder / "ray", "spam_pp", 3)
