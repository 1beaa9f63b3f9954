"""`fedspam registry`: versions of a model with their origins, promoted and taken back."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam._internal import files
from fedspam._internal.model_file import FILE, parameters_hash, read_model, write_model
from fedspam.app.cli import main
from fedspam.app.registry import CURRENT, HISTORY, Registry


def a_run(folder, value, metrics=None):
    """The folder of a run over Flower whose parameters are this value."""
    params = {"dense": {"bias": jnp.full(2, value)}}
    facts = {"loss": None, "run": "ab" * 32, "method": "scaffold", "rounds": 7, "sites": {"0": "Lyon", "1": "Köln"}}
    folder.mkdir(exist_ok=True)
    write_model(folder / FILE, params, facts)
    measured = {"server": {"loss": 0.5}, "clients": {"accuracy": 0.75, "per class": [1, 2]}} | (metrics or {})
    lines = [
        {"event": "round", "parameters": "0", "evaluation": {"server": {"loss": 9.0}}},
        {"event": "round", "parameters": parameters_hash(params), "evaluation": measured},
        {"event": "end"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def used(folder):
    return float(read_model(folder / CURRENT / FILE)[0]["dense.bias"][0])


def asked(capsys, *words):
    assert main(["registry", *map(str, words)]) == 0
    return capsys.readouterr().out.strip()


def test_versions_are_added_promoted_and_taken_back(tmp_path, capsys):
    place = tmp_path / "models"
    versions = [asked(capsys, place, "add", a_run(tmp_path / f"run{value}", value)) for value in (1.0, 2.0, 3.0)]
    assert len(set(versions)) == 3
    assert asked(capsys, place, "add", tmp_path / "run1.0") == versions[0]  # once more
    assert len(asked(capsys, place).splitlines()) == 4
    assert Registry(place).in_use() is None

    for version, value in zip(versions, (1.0, 2.0, 3.0), strict=True):
        assert asked(capsys, place, "promote", version[:8]) == version
        assert used(place) == value
    assert asked(capsys, place, "back") == versions[1]
    assert asked(capsys, place, "back") == versions[0]  # and not to the third again
    assert used(place) == 1.0
    with pytest.raises(SystemExit):
        main(["registry", str(place), "back"])
    assert "has no version that was in use before" in capsys.readouterr().err
    assert used(place) == 1.0
    asked(capsys, place, "promote", versions[2])
    assert used(place) == 3.0


def test_the_list_says_where_a_version_comes_from(tmp_path, capsys):
    place = tmp_path / "models"
    version = asked(capsys, place, "add", a_run(tmp_path / "run", 1.0))
    asked(capsys, place, "promote", version)
    heading, row = asked(capsys, place).splitlines()
    assert heading.split() == ["version", "method", "rounds", "sites", "metrics", "added"]
    assert row.startswith(f"{version}  in use  scaffold  7       2      clients accuracy 0.75, server loss 0.5")
    facts = Registry(place).versions()[version]
    assert facts["parameters"].startswith(version)
    assert facts["sites"] == {"0": "Lyon", "1": "Köln"}
    assert facts["run"] == "ab" * 32


def test_a_crash_leaves_the_version_in_use_whole(tmp_path, capsys, monkeypatch):
    place = tmp_path / "models"
    first, second = (Registry(place).add(a_run(tmp_path / f"run{value}", value)) for value in (1.0, 2.0))
    Registry(place).promote(first)
    real = files._write_all

    def half(file, data):
        real(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_all", half)
    with pytest.raises(files.RecordError, match="No space left"):
        Registry(place).promote(second)
    monkeypatch.undo()
    assert used(place) == 1.0
    assert Registry(place).in_use() == first
    assert Registry(place).promoted() == [first]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("promote", "x"), "version = 'x' must be the beginning of one version; there are "),
        (("promote", ""), "must be the beginning of one version"),
        (("promote",), "promote needs a version"),
        (("add",), "add needs a run folder"),
        (("add", "nowhere"), "there is no trained model"),
        (("back", "x"), "back takes no further argument, such as 'x'"),
        (("list", "x"), "list takes no further argument"),
    ],
)
def test_wrong_use_is_named(words, reason, tmp_path, capsys):
    place = tmp_path / "models"
    Registry(place).add(a_run(tmp_path / "run", 1.0))
    with pytest.raises(SystemExit) as error:
        main(["registry", str(place), *words])
    assert error.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [("nonsense", "line 1"), ("[]", "line 1"), ('{"event": "x", "version": "y"}', "does not hold the events")],
)
def test_a_damaged_history_is_refused(text, reason, tmp_path, capsys):
    (tmp_path / HISTORY).write_text(text)
    with pytest.raises(SystemExit):
        main(["registry", str(tmp_path)])
    assert reason in capsys.readouterr().err


def test_a_version_that_was_changed_is_not_promoted(tmp_path, capsys):
    place = tmp_path / "models"
    version = Registry(place).add(a_run(tmp_path / "run", 1.0))
    write_model(place / version / FILE, {"dense": {"bias": np.zeros(2)}}, {})
    with pytest.raises(SystemExit):
        main(["registry", str(place), "promote", version])
    assert f"is not version {version}" in capsys.readouterr().err
    assert not (place / CURRENT / FILE).exists()
