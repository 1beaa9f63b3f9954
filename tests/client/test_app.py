"""Clients without JAX answer as clients with JAX do: same golden files, same replies, same codes, same refusals."""

import dataclasses
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")

import safetensors.numpy
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedspam_client
from fedspam import simulate
from fedspam._internal import prng, trees
from fedspam.app.commands import new
from fedspam.federation import wire
from fedspam.federation.codecs import Codecs
from fedspam.federation.codecs.fields import verified
from fedspam.flower import FedspamStrategy, LoopbackGrid, clients_of, export_works, to_arrays
from fedspam.flower.client import export
from fedspam.flower.client.app import client_app
from fedspam.flower.wire import envelope
from fedspam.flower.wire.schema import Schema
from fedspam.methods import METHODS, auto, fedavg, scaffold, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.solvers import (
    LBFGS,
    Accelerated,
    AdaptiveDescent,
    Backtracking,
    Exact,
    GradientDescent,
    NewtonCG,
    SampledSteps,
)  # fmt: skip
from fedspam_client import conformance, numpy_client, operations, program, random, torch_client
from fedspam_client._shared.flower.wire.node import RefusedError
from fedspam_client.privacy import SecureSum
from fedspam_client.works import Works

DIMENSION = 4
ROOT = Path(__file__).parents[2]


def logistic(x, rows):
    """Loss and gradient of the problem of the conformance kit, in NumPy."""
    scores = rows["label"] * (rows["features"] @ x)
    value = np.logaddexp(0, -scores).mean() + 0.05 * x @ x
    weights = -rows["label"] / (1 + np.exp(scores)) / len(scores)
    return value, rows["features"].T @ weights + 0.1 * x


def curvature(x, along, rows):
    scores = rows["label"] * (rows["features"] @ x)
    bend = 1 / (1 + np.exp(scores)) / (1 + np.exp(-scores)) / len(scores)
    return rows["features"].T @ (bend * (rows["features"] @ along)) + 0.1 * along


def rows_of(clients, id, dtype=np.float64):
    begin, end = int(clients.offsets[id]), int(clients.offsets[id + 1])
    return {part: np.asarray(clients.examples[part][begin:end], dtype) for part in ("features", "label")}


def replies(app, cases, context):
    for head, fields, kind in cases:
        records = {envelope.HEADER: ConfigRecord(head)}
        if fields is not None:
            records["arrays"] = envelope.enclose(fields)
        yield app(Message(RecordDict(records), 1, kind), context)


def a_context(id=1, count=3):
    return Context(1, 1, {"partition-id": id, "num-partitions": count}, RecordDict(), {})


def the_methods():
    """Those of the golden files."""
    solver = GradientDescent(steps=3, local_rate=0.2, safeguard=False)
    return {
        "spam_pp": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver),
        "scaffold": scaffold(3, 2, 0.2),
        "fedavg": fedavg(3, 2, 0.2),
        "auto": auto(3, solver=solver),
    }


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    folder = tmp_path_factory.mktemp("works")
    with jax.enable_x64(True):
        for name, method in the_methods().items():
            export_works(folder / f"{name}.works", method, jnp.ones(DIMENSION))
    return folder


def torch_of_the_kit():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fedspam[torch]'")

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.params = torch.nn.Parameter(torch.ones(DIMENSION, dtype=torch.float64))

        def forward(self, features):
            return features @ self.params, self.params

    def loss(predict, features, label):
        scores, x = predict(features)
        return torch.nn.functional.softplus(-label * scores).mean() + 0.05 * (x * x).sum()

    return Linear(), loss


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_golden_replies(works, tmp_path, framework):
    LoopbackGrid(fedspam_client.client_app(None, works / "fedavg.works"), 1)  # ids that Flower's messages need
    conformance.make(tmp_path)
    stored = safetensors.numpy.load_file(tmp_path / "problem.safetensors")
    rows = {part: stored[f"client-1.{part}"] for part in ("features", "label")}
    if framework == "numpy":
        client = numpy_client(logistic, lambda id: rows)
    else:
        client = torch_client(*torch_of_the_kit(), lambda id: tuple(rows.values()))
    for method in the_methods():
        app, context = fedspam_client.client_app(client, works / f"{method}.works"), a_context()
        for case in (name for name in conformance.cases() if name.startswith(method)):
            head = json.loads((tmp_path / case / "message.json").read_text())
            kind, path = head.pop("type"), tmp_path / case / "message.safetensors"
            if case in ("scaffold-04", "scaffold-05", "scaffold-06"):
                context = a_context()  # a client without memory must refuse
            (reply,) = replies(app, [(head, path.read_bytes() if path.exists() else None, kind)], context)
            (tmp_path / case / "reply.json").write_text(json.dumps(dict(reply.content[envelope.HEADER])))
            if reply.content.array_records:
                (tmp_path / case / "reply.safetensors").write_bytes(envelope.enclosed(reply.content))
    assert [finding for finding in conformance.check(tmp_path) if finding.complaint] == []


def opened(reply, exchange):
    """The reply with its codes decoded; the server checks names, shapes, dtypes and checksum in the same way."""
    fields = verified(wire.decode(envelope.enclosed(reply.content), exchange.answer))
    facts = [int(fields["@client"]), int(fields["@round"])]
    return facts, exchange.codecs.accepted(exchange.work, fields["reply"], exchange.reply, {})


def compared(method, folder, *, clients, dtype, shape=None, codecs=None, batch=None, rounds=2, tolerance=1e-5):
    """Run a method on clients with JAX, and let a client without it answer the same messages."""
    first = jnp.ones(shape or clients.examples["features"].shape[1], dtype)
    flat = lambda x, rows: (lambda value, gradient: (value, gradient.reshape(x.shape)))(*logistic(x.reshape(-1), rows))
    own = clients.loss
    clients = dataclasses.replace(clients, loss=lambda x, rows: own(x.reshape(-1), rows))
    export_works(folder / "a.works", method, first, codecs=codecs, batch=batch)
    client = numpy_client(
        flat, lambda id: rows_of(clients, id, dtype), batch=batch, hessian_product=curvature,
        constants={"smoothness": 2.0},
    )  # fmt: skip
    schema = Schema.of(method, first, Codecs.of(codecs))
    other, contexts, compared = fedspam_client.client_app(client, folder / "a.works"), {}, []

    def twist(id, message, answer):
        reply = answer()
        assert not reply.has_error(), reply.error
        context = contexts.setdefault(id, a_context(id, clients.size))
        mine = other(Message(message.content, 1, message.metadata.message_type), context)
        heads = [dict(found.content[envelope.HEADER]) for found in (reply, mine)]
        assert heads[0] == heads[1]
        if reply.content.array_records:
            head = message.content[envelope.HEADER]
            exchange = schema.exchange(head["phase"], head["exchange"])
            due, found = (opened(one, exchange) for one in (reply, mine))
            for name, a, b in zip(trees.names(due), jax.tree.leaves(found), jax.tree.leaves(due), strict=True):
                np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=name)
            compared.append(message.metadata.message_type)
        return [reply]

    grid = LoopbackGrid(client_app(clients_of(clients), method, first, codecs=codecs), clients.size, twist=twist)
    strategy = FedspamStrategy(method, first, seed=3, min_available_nodes=clients.size, codecs=codecs)
    strategy.start(grid, to_arrays(first), num_rounds=rounds, timeout=60)
    return compared


def doubled(clients):
    return jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, clients)


@pytest.fixture(scope="module")
def clients():
    return synthetic_logistic(0, clients=4, dimension=DIMENSION, rows=(4, 7), regularization=0.1)


@pytest.mark.slow
def test_a_secure_federation_of_light_clients_ends_where_the_simulation_does(works):
    secure = SecureSum(in_clear=("train.prox",))
    with jax.enable_x64(True):
        clients = synthetic_logistic(0, clients=3, dimension=DIMENSION, rows=(4, 6), regularization=0.1)
        client = numpy_client(logistic, lambda id: rows_of(clients, id))
        app, method, first = (
            fedspam_client.client_app(client, [works / "fedavg.works", works / "spam_pp.works"], secure=secure),
            the_methods()["spam_pp"],
            jnp.ones(DIMENSION),
        )
        strategy = FedspamStrategy(method, first, seed=7, min_available_nodes=3, secure=secure, fraction_evaluate=0.0)
        result = strategy.start(LoopbackGrid(app, 3), to_arrays(first), num_rounds=2, timeout=60)
        run = simulate(method, clients, first, rounds=2, key=7)
        np.testing.assert_allclose(result.arrays["params"].numpy(), run.params, 1e-8, 1e-8)  # masks have 32 bits


def test_evaluation_and_metrics(works):
    rows = {"features": np.eye(DIMENSION), "label": np.ones(DIMENSION)}
    client = numpy_client(logistic, lambda id: rows)
    measure = lambda client, params: {"size": params["params"].size}
    app = fedspam_client.client_app(client, works / "fedavg.works", metrics=measure)
    message = Message(RecordDict({"arrays": to_arrays(jnp.ones(DIMENSION))}), 1, "evaluate")
    found = dict(app(message, a_context()).content["metrics"])
    value = logistic(np.ones(DIMENSION), rows)[0]
    assert found == {"loss": pytest.approx(value), "size": DIMENSION, "num-examples": DIMENSION}


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("newton", {}, "hessian_product="),
        ("accelerated", {}, "constants={'smoothness': ...}"),
    ],
)
def test_a_work_that_asks_too_much_of_a_client_is_refused(tmp_path, name, options, complaint):
    solver = {"newton": NewtonCG(), "accelerated": Accelerated(3)}[name]
    export_works(tmp_path / "a.works", spam_pp(1, step_size=0.5, fresh_weight=0.3, solver=solver), jnp.ones(2))
    works = Works.read(tmp_path / "a.works")
    rows = {"features": np.eye(2, dtype=np.float32), "label": np.ones(2, np.float32)}
    client = numpy_client(logistic, lambda id: rows, **options)(a_context())
    exchange = works.exchanges["round prox"]
    inputs = [np.uint32(1), np.zeros(2, np.uint32), *(np.ones(e.shape, e.dtype) for e in exchange.message.values())]
    with pytest.raises(RefusedError, match=re.escape(complaint)):
        exchange.answer(works.constants, client, inputs)


@pytest.mark.parametrize("name", ["a.works", "a.json"])
@pytest.mark.parametrize("data", [b"nonsense", b'{"safetensors": 1}', b'{"safetensors": "*"}', b"{}", b"{" * 9])
def test_a_file_that_holds_no_works_is_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name} is not a file of works .*export_works"):
        Works.read(tmp_path / name)


def test_flower_sends_the_works_along_with_an_app(tmp_path):
    """Of data files, Flower bundles those that end in .json; they hold the same works."""
    from flwr.common.constant import FAB_INCLUDE_PATTERNS

    assert "**/*.json" in FAB_INCLUDE_PATTERNS
    for name in ("spam_pp.json", "spam_pp.works"):
        export_works(tmp_path / name, the_methods()["spam_pp"], jnp.ones(DIMENSION))
    assert json.loads((tmp_path / "spam_pp.json").read_text()).keys() == {"safetensors"}
    one, other = Works.read(tmp_path / "spam_pp.json"), Works.read(tmp_path / "spam_pp.works")
    assert (one.schema, one.description, one.exchanges.keys()) == (
        other.schema,
        other.description,
        other.exchanges.keys(),
    )


def test_a_gradient_of_another_shape_is_an_error():
    client = numpy_client(lambda x, rows: (0.0, np.ones(3)), lambda id: np.ones((4, 2)))(a_context())
    with pytest.raises(ValueError, match=r"the gradient of params has shape \(3,\), expected \(2,\)"):
        client.gradient([np.ones(2)])


@pytest.mark.slow
def test_auto_in_single_precision(clients, tmp_path):
    kinds = compared(auto(3, solver=LBFGS()), tmp_path, clients=clients, dtype=np.float32)
    assert set(kinds) == {"train.begin", "train.difference", "train.prox"}


@pytest.mark.slow
def test_the_local_steps_of_auto(clients, tmp_path):
    """They reply with several numbers in one array, which takes an operation of its own."""
    assert compared(METHODS["auto_steps"].make(), tmp_path, clients=clients, dtype=np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method(tmp_path, name):
    clients = synthetic_logistic(0, clients=8, dimension=DIMENSION, rows=(4, 7), regularization=0.1)
    method = METHODS[name]
    options = dict(method.example)
    if isinstance(options.get("solver"), Exact | GradientDescent):  # these clients know no constants of their loss
        options["solver"] = LBFGS()
    with jax.enable_x64(True):
        assert compared(method.build(**options), tmp_path, clients=doubled(clients), dtype=np.float64, tolerance=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "solver",
    [
        Accelerated(5, smoothness=2.0), AdaptiveDescent(5), Backtracking(5), LBFGS(), NewtonCG(), SampledSteps(),
        GradientDescent(3, smoothness=2.0), GradientDescent(3, local_rate=0.2, minibatch=True),
    ],
    ids=lambda solver: type(solver).__name__,
)  # fmt: skip
@pytest.mark.parametrize("batch", [None, 3])
def test_every_solver(clients, tmp_path, solver, batch):
    some = dataclasses.replace(clients, batch=batch)
    method = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver)
    # at the minimum, rounding decides which of its many trials SampledSteps takes
    tolerance = 1e-7 if isinstance(solver, SampledSteps) else 1e-9
    with jax.enable_x64(True):
        assert compared(method, tmp_path, clients=doubled(some), dtype=np.float64, batch=batch, tolerance=tolerance)


CODECS = (
    "quantize-4", "quantize-2", "terngrad", "natural", "float16", "bfloat16", "randk-0.2", "topk-0.1", "lowrank-1",
    "float32",
)  # fmt: skip


@pytest.mark.slow
def test_quantized_messages_and_replies(tmp_path):
    """Codes, their checksum, differences from fields that the client holds, and feedback with its memory."""
    some = synthetic_logistic(1, clients=3, dimension=80, rows=(4, 7), regularization=0.1)
    solver = GradientDescent(steps=3, local_rate=0.2, safeguard=False)
    method = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver)
    codecs = {"up": "quantize-8", "down": "quantize-8"}
    with jax.enable_x64(True):  # in single precision a rounding may turn a code into the next one
        kinds = compared(method, tmp_path, clients=doubled(some), dtype=np.float64, codecs=codecs)
    assert "train.prox" in kinds


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [*CODECS, "feedback-topk-0.1"])
def test_every_codec(tmp_path, codec):
    some = synthetic_logistic(1, clients=3, dimension=80, rows=(4, 7), regularization=0.1)
    down = {} if codec.startswith("feedback") else {"down": codec}
    with jax.enable_x64(True):
        options = {"dtype": np.float64, "codecs": {"up": codec, **down}, "shape": (10, 8)}
        assert compared(scaffold(3, 2, 0.2), tmp_path, clients=doubled(some), **options)


WITHOUT = """
import sys, types
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fedspam", "jax", "jaxlib", "jaxtyping", "optax", "ml_dtypes", "msgspec"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
def test_rows_are_drawn_as_jax_draws_them():
    for count in (1, 2, 3, 5, 8, 16, 17, 64, 65, 1000):
        for seed in range(3):
            key, position = jax.random.key(seed), np.arange(min(count, 30))
            due = prng.permuted(key, jnp.asarray(position, jnp.uint32), count)
            found = random.permuted(random.wrap(jax.random.key_data(key)), position, count)
            assert (found.tolist(), found.dtype) == (due.tolist(), np.uint32)


def test_every_module_imports_without_jax():
    home = ROOT / "client" / "src"
    paths = [path.relative_to(home).with_suffix("") for path in sorted((home / "fedspam_client").rglob("*.py"))]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    assert "fedspam_client.app" in modules
    script = WITHOUT + "".join(f"import {name}\n" for name in modules)
    environment = {**os.environ, "PYTHONPATH": str(home)}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr


def test_it_knows_the_operations_that_are_exported():
    assert {*operations.OPERATIONS, *program.ASKED} == export.OPERATIONS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["wire.md", "light.md"])
def test_python_on_a_page_runs(page, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'fedspam[torch]'")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    text, *project = text.split("## The starter project without JAX")
    (tmp_path / "page.py").write_text("\n".join(code_of(text, "python")))
    runpy.run_path(str(tmp_path / "page.py"))
    said = capsys.readouterr().out
    assert ("round prox ['g', 'step_size']" if page == "wire.md" else "[") in said
    if project:
        assert_like_the_starter_project(
            *code_of(project[0], "python"), *code_of(project[0], "sh"), tmp_path, monkeypatch
        )


def code_of(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def assert_like_the_starter_project(client, export, folder, monkeypatch):
    """The client of the page and its works, put into the starter project, end where the project's own client does."""
    new.create(folder / "my-project")
    monkeypatch.chdir(folder / "my-project")
    monkeypatch.syspath_prepend(folder / "my-project")
    from my_project import client_app as own
    from my_project.task import first_params, method

    (code,) = re.findall(r"<<END\n(.*)END\n", export, re.DOTALL)
    exec(code, {})  # noqa: S102 the page's own
    (folder / "my-project" / "my_project" / "light.py").write_text(client)
    from my_project import light as other

    config, found = {"step-size": 1.0, "fresh-weight": 0.3}, []
    for app in (own.app, other.app):
        grid = LoopbackGrid(app, 3, run_config=config)
        first = first_params()
        strategy = FedspamStrategy(method(grid.contexts[1000]), first, min_available_nodes=3)
        found.append(strategy.start(grid, to_arrays(first), num_rounds=3, timeout=60).arrays["kernel"].numpy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    assert np.abs(found[0]).max() > 0.1
