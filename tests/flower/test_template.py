"""The starter project: what `fedspam new` makes, and its README's commands as a new user types them."""

import ast
import os
import re
import subprocess
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedspam
import processes
from fedspam import spam_pp
from fedspam.app.cli import main
from fedspam.app.commands import new
from fedspam.clients import Ragged

SCRIPTS = ("certificates", "keys", "superlink", "register", "supernode", "train")


def test_a_new_project_is_complete(tmp_path, capsys):
    folder = tmp_path / "our-trial"
    assert main(["new", str(folder)]) == 0
    assert "README.md" in capsys.readouterr().out
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert made >= {"pyproject.toml", "README.md", ".gitignore"} | {
        f"our_trial/{name}.py" for name in ("__init__", "task", "client_app", "server_app")
    }
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if "@project@" in text or "@package@" in text]
    for path, text in texts.items():
        if path.suffix == ".py":
            ast.parse(text)
    settings = tomllib.loads(texts[folder / "pyproject.toml"])
    assert settings["project"]["name"] == "our-trial"
    # whoever takes the name of a package that no index has yet would run code on every client
    assert not any(need.startswith("fedspam") and "@" not in need for need in settings["project"]["dependencies"])
    assert settings["tool"]["flwr"]["app"]["components"]["serverapp"] == "our_trial.server_app:app"
    for name in SCRIPTS:
        script = folder / "deploy" / f"{name}.sh"
        assert os.access(script, os.X_OK)
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
        assert f"./{name}.sh" in texts[folder / "README.md"]
    # what the code reads of the run configuration is there, and nothing else
    code = "".join(text for path, text in texts.items() if path.suffix == ".py")
    assert set(re.findall(r'config\["([a-z-]+)"\]', code)) == set(settings["tool"]["flwr"]["app"]["config"])


@pytest.mark.parametrize("name", ["My Project", "1st", "class", "fedspam", "a--b", "über"])
def test_names_that_are_no_packages_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="such as my-project"):
        new.create(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "here").mkdir()
    assert main(["new", str(tmp_path / "here")]) == 1
    assert "already exists" in capsys.readouterr().err
    assert not list((tmp_path / "here").iterdir())


def test_certificates_and_keys_are_made_and_kept_from_others(tmp_path):
    folder = tmp_path / "trial"
    new.create(folder)
    deploy, secrets = folder / "deploy", folder / "deploy" / "secrets"
    run = lambda *command: subprocess.run(command, cwd=deploy, check=True, capture_output=True, text=True).stdout
    run("./certificates.sh", "federation.example", "10.0.0.7")
    run("./keys.sh", "2")
    names = run("openssl", "x509", "-in", "secrets/server.pem", "-noout", "-ext", "subjectAltName")
    for name in ("DNS:federation.example", "IP Address:10.0.0.7", "IP Address:127.0.0.1"):
        assert name in names
    assert "OK" in run("openssl", "verify", "-CAfile", "secrets/ca.crt", "secrets/server.pem")
    assert {path.stat().st_mode & 0o077 for path in (secrets, *secrets.iterdir())} == {0}
    before = (secrets / "ca.key").read_bytes(), (secrets / "node0").read_bytes()
    run("./certificates.sh", "elsewhere.example")
    run("./keys.sh", "3")
    assert before == ((secrets / "ca.key").read_bytes(), (secrets / "node0").read_bytes())
    assert {path.name for path in secrets.glob("node?")} == {"node0", "node1", "node2"}


def test_keys_that_are_registered_already_do_not_keep_others_from_it(tmp_path):
    """With Flower's answers: one key is new, one is known, and one cannot be registered, which is an error."""
    folder, programs = tmp_path / "trial", tmp_path / "bin"
    new.create(folder)
    programs.mkdir()
    (programs / "flwr").write_text(
        '#!/bin/sh\ncase "$3" in\n*known*) echo "[code: 23] Public key already in use." >&2; exit 1 ;;\n'
        '*bad*) echo "no key" >&2; exit 1 ;;\n*) echo registered ;;\nesac\n'
    )
    (programs / "flwr").chmod(0o755)
    register = lambda *keys: subprocess.run(
        [folder / "deploy" / "register.sh", *keys], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip
    found = register("known.pub", "new.pub")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == ["known.pub is registered already", "new.pub: registered"]
    found = register("bad.pub", "new.pub")
    assert (found.returncode, found.stderr, found.stdout) == (1, "no key\n", "")


@pytest.mark.slow
def test_the_template_trains_what_the_simulator_trains(tmp_path, monkeypatch):
    """Equal losses and gradients for the template's oracle and for a `Ragged` population that pads the same rows."""
    pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
    new.create(tmp_path / "trial-project")
    monkeypatch.syspath_prepend(tmp_path / "trial-project")
    from trial_project import client_app, task

    from fedspam.flower import FedspamStrategy, LoopbackGrid, to_arrays, to_params

    double = jax.tree.map(lambda *parts: jnp.concatenate(parts), task.rows_of(2), task.rows_of(3))
    population = Ragged.of([task.rows_of(0), task.rows_of(1), double], task.loss)
    assert population.capacity == 400  # clients 0 and 1 have 200 rows
    grid = LoopbackGrid(client_app.app, clients=2)
    params = jax.tree.map(lambda leaf: leaf + 0.1, task.first_params())
    for client, context in enumerate(grid.contexts.values()):
        padded, own = population.client(jnp.uint32(client)), client_app.oracle(context)
        assert float(own.weight) == float(padded.weight) == 200
        for a, b in zip(*(jax.tree.leaves(jax.value_and_grad(each)(params)) for each in (padded, own)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert client_app.metrics(own, params)["accuracy"] == task.measure(params, task.rows_of(client))["accuracy"]

    # the code of the README, and the same rounds over Flower's messages
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "trial-project" / "README.md").read_text(), re.DOTALL)
    (tmp_path / "simulated.py").write_text(code.replace("rounds=10", "rounds=2"))
    monkeypatch.syspath_prepend(tmp_path)
    import simulated

    grid = LoopbackGrid(client_app.app, clients=10, run_config={"step-size": 1.0, "fresh-weight": 0.3})
    method, first = spam_pp(2, step_size=1.0, fresh_weight=0.3), task.first_params()
    strategy = FedspamStrategy(method, first, fraction_train=0.5, min_train_nodes=2)
    result = strategy.start(grid, to_arrays(first), num_rounds=2, timeout=60)
    for name, leaf in simulated.run.params.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), leaf, rtol=1e-4, atol=1e-5)
        assert np.abs(leaf).max() > 0.01

    # the server keeps the result in a file that needs no project to predict
    from trial_project import server_app

    path = server_app.keep(to_params(result.arrays, first), tmp_path / "models")
    rows = task.test_rows()
    found = fedspam.load(path).predict(np.asarray(rows["features"]))
    numbers = [task.CLASSES.index(name) for name in found]
    accuracy = np.mean(np.asarray(numbers) == np.asarray(rows["label"]))
    assert accuracy == pytest.approx(float(task.measure(to_params(result.arrays, first), rows)["accuracy"]))
    assert accuracy > 0.8


@pytest.mark.slow
def test_a_pytorch_project_ends_in_a_file_that_plain_pytorch_loads(tmp_path, monkeypatch):
    """`fedspam new --pytorch`: two rounds over Flower's messages, and the scores of the saved file in PyTorch alone."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    from safetensors.torch import load_file

    assert main(["new", str(tmp_path / "torch-project"), "--pytorch"]) == 0
    monkeypatch.syspath_prepend(tmp_path / "torch-project")
    from torch_project import client_app, model, server_app, task

    from fedspam.flower import FedspamStrategy, LoopbackGrid, to_arrays, to_params

    grid = LoopbackGrid(client_app.app, clients=4, run_config={"step-size": 1.0, "fresh-weight": 0.3})
    first = task.first_params()
    strategy = FedspamStrategy(spam_pp(2, step_size=1.0, fresh_weight=0.3), first, fraction_train=0.5)
    result = strategy.start(grid, to_arrays(first), num_rounds=2, timeout=60)
    path = server_app.keep(to_params(result.arrays, first), tmp_path / "models")
    module, rows = model.module(), task.test_rows()
    module.load_state_dict(load_file(path))
    with torch.no_grad():
        classes = module(torch.from_numpy(np.array(rows["features"]))).argmax(1).numpy()
    assert np.mean(classes == np.asarray(rows["label"])) > 0.8
    np.testing.assert_array_equal(
        fedspam.load(path, model=model.MODEL).predict(np.asarray(rows["features"])), np.asarray(model.CLASSES)[classes]
    )


def commands(readme: str, title: str) -> list[str]:
    """The commands of a section, block by block."""
    section = readme.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.mark.thorough
def test_the_readme_of_a_fresh_project_holds_what_it_says(tmp_path):
    """Its simulation, as typed: two shell blocks, the second with a run folder and a report. Then with a secure sum,
    whose records and memories so travel through Flower's own encoding."""
    pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
    pytest.importorskip("ray", reason="needs Flower's simulation: pip install 'fedspam[flower]'")
    with processes.closing(processes.Processes(tmp_path)) as running:
        running.run("new", ["sh", "-c", f"{processes.sys.executable} -m fedspam.app new my-project"], tmp_path, 60)
        folder = tmp_path / "my-project"
        blocks = commands((folder / "README.md").read_text(), "In simulation")
        assert len(blocks) == 2
        # the second run alone: it is the first with a folder; in one shell, where the first line still holds
        setting, plain = blocks[0].strip().splitlines()
        kept, report = blocks[1].strip().splitlines()
        assert kept.startswith(plain)
        typed = "\n".join(
            ["set -e", setting, kept, report.replace("fedspam ", f"{processes.sys.executable} -m fedspam.app ")]
        )
        log = running.run("readme", ["sh", "-c", typed], folder, 170)
        accuracies = [float(found) for found in re.findall(r"'accuracy': '([0-9.e+-]+)'", log)]
        assert accuracies[-1] > 0.9  # of three classes; before training it is near one third
        assert "10: {'accuracy'" in log
        assert (folder / "report.html").stat().st_size > 10_000
        assert (folder / "runs" / "first" / "manifest.json").exists()
        (kept_model,) = (running.home / "my-project-models").glob("*.safetensors")
        assert fedspam.load(kept_model).classes == ("first", "second", "third")

        task = folder / "my_project" / "task.py"
        named = [line.removeprefix("#   ") for line in task.read_text().splitlines() if line.startswith("#   ")]
        task.write_text(task.read_text().replace("SECURE = None\n", "\n".join(named) + "\n", 1))
        typed = f"{setting}\n{plain} --run-config num-rounds=2"
        log = running.run("secure", ["sh", "-c", typed], folder, 120)
        assert "difference 2: unmask: 5 of 5" in log
        secure_accuracies = [float(found) for found in re.findall(r"'accuracy': '([0-9.e+-]+)'", log)]
        assert secure_accuracies[-3:] == pytest.approx(
            accuracies[-11:-8], abs=1e-3
        )  # the same rounds, up to the rounding of sums


@pytest.mark.thorough
def test_a_pytorch_project_trains_by_flwr_run(tmp_path):
    """Typed by a person with a PyTorch module; plain PyTorch loads the file at the end."""
    pytest.importorskip("ray", reason="needs Flower's simulation: pip install 'fedspam[flower]'")
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    from safetensors.torch import load_file

    with processes.closing(processes.Processes(tmp_path)) as running:
        new.create(tmp_path / "my-project", pytorch=True)
        folder = tmp_path / "my-project"
        blocks = commands((folder / "README.md").read_text(), "In simulation")
        typed = f"set -e\n{blocks[0].strip()} --run-config num-rounds=3"
        log = running.run("pytorch", ["sh", "-c", typed], folder, 300)
        accuracies = [float(found) for found in re.findall(r"'accuracy': '([0-9.e+-]+)'", log)]
        assert accuracies[-1] > 0.8
        (kept,) = (running.home / "my-project-models").glob("*.safetensors")
    layers = torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    torch.nn.Sequential(*layers).load_state_dict(load_file(kept))
