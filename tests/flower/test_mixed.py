"""One federation of three kinds of clients, as processes on 127.0.0.1: with JAX, with PyTorch alone, and in C++.

Each test is bounded in time, and everything it starts ends with it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")

from flwr.app import Context, Message, RecordDict

from fedspam import Ragged, simulate
from fedspam.flower import FedspamStrategy, LoopbackGrid, export_works, to_arrays
from fedspam.flower.wire.schema import Schema
from fedspam.methods import auto, spam_pp
from fedspam.simulation import restore
from fedspam.solvers import GradientDescent
from fedspam_client import conformance, relay_app
from fedspam_client.frames import ProgramError, ask
from fedspam_client.privacy import Privacy
from processes import closing, free_port
from world import CLIENTS, PROJECT, SERVER, World

SOURCE = Path(__file__).parents[2] / "client" / "cpp"
WORKS = ("starting_gradient", "begin", "difference", "prox", "train")
DIMENSION, ROUNDS = 20, 3

TASK = """
import jax.numpy as jnp
from fedspam import spam_pp
from fedspam.methods import auto
from fedspam.solvers import GradientDescent

secure, first = None, jnp.ones(20)
solver = GradientDescent(5, local_rate=0.5, safeguard=False)
methods = {"spam_pp": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver), "auto": auto(3, solver=solver)}

def method(context):
    return methods[context.run_config["method"]]
"""
CLIENT = """
import os
import safetensors.numpy

folder, kind = os.environ["TRIAL"], os.environ["KIND"]
stored = safetensors.numpy.load_file(f"{folder}/rows.safetensors")
works = [f"{folder}/spam_pp.works", f"{folder}/auto.works"]

def rows(client):
    return tuple(stored[f"client-{client}.{part}"] for part in ("features", "label"))

if kind == "jax":
    import jax.numpy as jnp
    from fedspam.flower import client_app, clients_with
    from trial.task import first, method

    def loss(x, rows):
        return jnp.logaddexp(0, -rows[1] * (rows[0] @ x)) + 0.05 * jnp.sum(x**2)

    app = client_app(clients_with(loss, rows), method, first)
elif kind == "torch":
    import torch
    import fedspam_client

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.params = torch.nn.Parameter(torch.ones(20, dtype=torch.float64))

        def forward(self, features):
            return features @ self.params, self.params

    def loss(predict, features, label):
        scores, x = predict(features)
        return torch.nn.functional.softplus(-label * scores).mean() + 0.05 * (x * x).sum()

    app = fedspam_client.client_app(fedspam_client.torch_client(Linear(), loss, rows), works)
else:
    import fedspam_client

    app = fedspam_client.relay_app(os.environ["PROGRAM"].split("|"), os.environ["WORKS"].split())
"""
# stands before the installed packages on the path of the clients that must do without
ABSENT = "raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The client in C++."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler, g++ or clang++, to build client/cpp")
    return compiled(tmp_path_factory, compiler)


def compiled(tmp_path_factory, compiler, *options):
    built = tmp_path_factory.mktemp("cpp") / "client"
    options = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", *options, "-o", str(built)]
    subprocess.run([compiler, *options, str(SOURCE / "client.cpp")], check=True, timeout=600)
    return built


def loss(x, rows):
    return jnp.logaddexp(0, -rows[1] * (rows[0] @ x)) + 0.05 * jnp.sum(x**2)


def some_rows():
    for client in range(CLIENTS):
        draws = np.random.default_rng(client)
        features = draws.normal(size=(5 + client, DIMENSION)) / 2
        yield features, np.sign(features @ np.ones(DIMENSION) + draws.normal(size=5 + client))


def the_methods():
    solver = GradientDescent(5, local_rate=0.5, safeguard=False)
    return {"spam_pp": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver), "auto": auto(3, solver=solver)}


def written(folder, program):
    """Rows and works for the clients, and the command of the program."""
    stored = {
        f"client-{id}.{part}": array
        for id, rows in enumerate(some_rows())
        for part, array in zip(("features", "label"), rows, strict=True)
    }
    safetensors.numpy.save_file(stored, folder / "rows.safetensors")
    command = [str(program), "--rows", str(folder / "rows.safetensors"), "--regularization", "0.1"]
    command += ["--steps", "5", "--rate", "0.5"]
    for name, method in the_methods().items():
        export_works(folder / f"{name}.works", method, jnp.ones(DIMENSION))
        command += ["--schema", f"{Schema.of(method, jnp.ones(DIMENSION)).digest}={name}"]
    return command


class MixedWorld(World):
    """A SuperLink, and SuperNodes of which each has another kind of client."""

    def __init__(self, folder: Path, program: Path) -> None:
        super().__init__(folder)
        for name, text in {"task": TASK, "client": CLIENT, "server": SERVER}.items():
            (folder / "app" / "trial" / f"{name}.py").write_text(text)
        assert "trial.client:app" in PROJECT
        for name in ("jax", "jaxlib"):
            (folder / "absent" / name).mkdir(parents=True)
            (folder / "absent" / name / "__init__.py").write_text(ABSENT)
        with jax.enable_x64(True):
            self.environment |= {"PROGRAM": "|".join(written(folder, program)), "WORKS": " ".join(WORKS)}
        self.environment["TRIAL"] = str(folder)

    def client(self, id: int, kind: str) -> None:
        path = (
            self.environment["PYTHONPATH"]
            if kind == "jax"
            else f"{self.folder}/absent:{self.environment['PYTHONPATH']}"
        )
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        node += ["--port", str(free_port()), "--node-config", f"partition-id={id} num-partitions={CLIENTS}"]
        self.start(f"supernode-{kind}", node, self.folder, {"KIND": kind, "PYTHONPATH": path})


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_mixed_federation_of_processes_ends_where_the_simulation_does(tmp_path, program):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'fedspam[torch]'")
    with closing(MixedWorld(tmp_path, program)) as world:
        world.superlink()
        for id, kind in enumerate(("jax", "torch", "cpp")):
            world.client(id, kind)
        for name in the_methods():
            world.begin(name, method=name, rounds=ROUNDS)
            world.end()
    with jax.enable_x64(True):
        first, clients = jnp.ones(DIMENSION), Ragged.of(list(some_rows()), loss)
        for name, method in the_methods().items():
            run = simulate(method, clients, first, rounds=ROUNDS, key=7)
            found, done = restore(method, clients, first, tmp_path / name)
            assert done == ROUNDS
            assert float(jnp.linalg.norm(run.params - first)) > 0.1  # it has moved
            np.testing.assert_allclose(found, run.params, rtol=1e-9, atol=1e-9)


@pytest.mark.thorough
def test_the_program_in_one_process(tmp_path, program):
    """The C++ client as every client of a federation, without a network, in single precision."""
    command = written(tmp_path, program)
    clients = Ragged.of([tuple(part.astype(np.float32) for part in rows) for rows in some_rows()], loss)
    for method in the_methods().values():
        first, app = jnp.ones(DIMENSION), relay_app(command, WORKS)
        strategy = FedspamStrategy(method, first, seed=7, min_available_nodes=CLIENTS)
        result = strategy.start(LoopbackGrid(app, CLIENTS), to_arrays(first), num_rounds=ROUNDS, timeout=60)
        run = simulate(method, clients, first, rounds=ROUNDS, key=7)
        np.testing.assert_allclose(result.arrays["params"].numpy(), run.params, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_the_program_gives_the_golden_replies(tmp_path, program, capsys):
    options = ["--rows", "{folder}/problem.safetensors", "--regularization", "0.1", "--steps", "3", "--rate", "0.2"]
    command = ["run", str(tmp_path), str(program), *options, "--schema", "{schema}={method}"]
    assert conformance.main(command) == 0, capsys.readouterr().out


@pytest.mark.thorough
def test_the_program_refuses_what_is_damaged(tmp_path, program):
    """Cut and changed messages are refused with a reason; none ends the program."""
    golden = conformance.GOLDEN / "spam_pp-02"
    head = conformance._json(golden / "message.json") | {"partition-id": 1, "num-partitions": 3}
    fields = (golden / "message.safetensors").read_bytes()
    command = [str(program), "--rows", str(conformance.GOLDEN / "problem.safetensors")]
    command += ["--schema", f"{head['schema']}=spam_pp"]
    assert "refused" not in ask(command, head, fields, b"", 300).head
    draws = np.random.default_rng(0)
    for _ in range(40):
        changed = bytearray(fields)
        changed[draws.integers(0, 8 + 300)] = draws.integers(0, 256)
        ask(command, head, bytes(changed[: draws.integers(1, len(changed))]), b"", 300)
    for data in (b"", fields[:100], fields[:-1], b"\xff" * 100):
        assert ask(command, head, data, b"", 300).head["refused"]


@pytest.mark.thorough
def test_numbers_that_do_not_fit_are_refused_and_nothing_is_undefined(tmp_path_factory):
    """A cast of a number that does not fit is undefined in C++: the program ends here if it makes one."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ and its sanitizers")
    program = compiled(
        tmp_path_factory, compiler, "-fsanitize=undefined,float-cast-overflow,address", "-fno-sanitize-recover=all"
    )
    golden = conformance.GOLDEN / "spam_pp-02"
    head = conformance._json(golden / "message.json") | {"partition-id": 1, "num-partitions": 3}
    data = (golden / "message.safetensors").read_bytes()
    fields = safetensors.numpy.load(data)
    command = [str(program), "--rows", str(conformance.GOLDEN / "problem.safetensors")]
    command += ["--schema", f"{head['schema']}=spam_pp"]
    assert "refused" not in ask(command, head, data, b"", 300).head
    for wrong in (1e300, -1e300, 2.0**63, 0.5, -1):
        assert ask(command, head | {"partition-id": wrong}, data, b"", 300).head["refused"]
    for name in ("num-partitions", "partition-id"):
        assert ask(command, {**head, name: 1e300, "type": "query.whoami"}, b"", b"", 300).head["refused"]
    huge = {name: np.full_like(array, 1e38) if array.dtype == np.float32 else array for name, array in fields.items()}
    ask(command, head, safetensors.numpy.save(huge), b"", 300)  # a reply that overflows a float
    negative = data.replace(b'"shape":[', b'"shape":[-1,')
    for damaged in (negative, data.replace(b'"shape":[', b'"shape":[1e300,'), data.replace(b'"x"', b'"\\u12g4"')):
        length = int.from_bytes(data[:8], "little") + len(damaged) - len(data)
        assert ask(command, head, length.to_bytes(8, "little") + damaged[8:], b"", 300).head["refused"]


SCRIPTS = {
    "silent": ("import time; time.sleep(600)", "did not answer within"),
    "failing": ("import sys; sys.stdin.buffer.read(); sys.exit('out of luck')", "ended with 1; the log of the site"),
    "short": ("import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write(b'12345')", "which are no 3 frames"),
    "long": ("import sys; sys.stdout.buffer.write(bytes(24) + b'more')", "bytes more than its 3 frames"),
    "null": (
        "import sys; sys.stdin.buffer.read()\n"
        "sys.stdout.buffer.write(bytes([11]) + bytes(7) + b'{\"a\": null}' + bytes(16))",
        "a header of type NoneType; headers hold texts",
    ),
    "empty": ("import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write(bytes(24))", "not readable"),
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_program_that_does_not_answer_is_named(name):
    script, complaint = SCRIPTS[name]
    with pytest.raises(ProgramError, match=complaint):
        ask([sys.executable, "-I", "-S", "-c", script], {}, b"", b"", 1 if name == "silent" else 300)
    with pytest.raises(ProgramError, match="cannot be started"):
        ask(["/no/such/program"], {}, b"", b"", 1)


def test_what_a_program_says_stays_at_the_site_and_mods_see_every_message(caplog):
    script = "import sys; sys.stdin.buffer.read(); sys.exit('patient Miller, glucose 7.3')"
    seen = []

    def mod(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    app = relay_app([sys.executable, "-I", "-S", "-c", script], WORKS, mods=[mod])
    grid = LoopbackGrid(app, CLIENTS)
    method, first = spam_pp(2, step_size=0.5, fresh_weight=0.3), jnp.ones(DIMENSION)
    with pytest.raises(RuntimeError, match="ended with 1") as stopped:
        FedspamStrategy(method, first, min_available_nodes=CLIENTS).start(grid, to_arrays(first), 1, timeout=60)
    assert "Miller" not in str(stopped.value)
    assert set(seen) == {"query.whoami"}
    at_home = [record for record in caplog.records if record.levelname == "ERROR"]
    assert all("Miller, glucose 7.3" in record.getMessage() for record in at_home)
    assert not any("Miller" in record.getMessage() for record in caplog.records if record not in at_home)
    app = relay_app([sys.executable, "-I", "-S", "-c", script], WORKS, privacy=Privacy(1.0, 1.0, 3))
    reply = app(Message(RecordDict(), 1, "train.prox"), Context(1, 1, {}, RecordDict(), {}))
    assert "'train.prox' is neither covered" in reply.content["fedspam"]["refused"]
