"""Recorders: what TensorBoard, MLflow, W&B and trackio hold afterwards is what the run folder holds."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedspam.app import config, experiment, tracking
from fedspam.app.cli import main
from fedspam.app.tracking import RunInfo, TrackedPoint
from fedspam.simulation import records
from fedspam.simulation.status import COMPLETED, Status

TINY = {
    "data": {"kind": "quadratics", "clients": 5, "dimension": 2},
    "method": {"name": "spam_pp", "cohort_size": 2, "step_size": 1.0, "fresh_weight": 0.3},
    "prox": "exact",
    "run": {"rounds": 6},
    "keep": {"every": 4},
    "evaluate": {"every": 2},
}


@dataclass
class Memory:
    """A recorder that remembers what it was told."""

    told: list[object] = field(default_factory=list)

    def start(self, info: RunInfo) -> None:
        self.told.append(info)

    def write(self, points: Sequence[TrackedPoint]) -> None:
        self.told += points

    def finish(self, status: Status) -> None:
        self.told.append(status)


@pytest.mark.slow
def test_every_look_becomes_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr(tracking, "RECORDERS", {"tensorboard": (lambda: memory, "numpy")})
    asked = config.decode(TINY | {"track": {"to": ["tensorboard"], "project": "p"}})
    experiment.run(asked, tmp_path / "run")
    info, *points, status = memory.told
    assert isinstance(info, RunInfo)
    assert (info.name, info.project, status) == ("run", "p", COMPLETED)
    assert info.settings["method.cohort_size"] == 2
    _, rows, probes = records.read(tmp_path / "run")
    assert [point.round for point in points] == [0, 2, 4, 6]  # type: ignore[attr-defined]
    assert [point.values["loss"] for point in points] == probes["loss"].tolist()  # type: ignore[attr-defined]
    sent = np.cumsum(rows["bytes_up"])[[1, 3, 5]].tolist()
    assert [point.values["total.bytes_up"] for point in points[1:]] == sent  # type: ignore[attr-defined]
    # a run that is continued tells only what is new, and counts from where it was
    memory.told.clear()
    experiment.run(config.read(tmp_path / "run" / "config.toml", [("run.rounds", "8")]), tmp_path / "run", resume=True)
    again, point, _ = memory.told
    assert again.identity == info.identity  # type: ignore[attr-defined]
    total = records.read(tmp_path / "run")[1]["bytes_up"].sum()
    assert (point.round, point.values["total.bytes_up"]) == (8, total)  # type: ignore[attr-defined]


def test_recorders_are_finished_whatever_happens() -> None:
    first, second = Memory(), Memory()
    info = RunInfo("n", "p", Path(), {}, None, "i")

    def fail() -> None:
        with tracking.tracked([first, second], info) as run:
            run.write([TrackedPoint(1, {"loss": 1.0})])
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert first.told == second.told == [info, TrackedPoint(1, {"loss": 1.0}), Status("failed")]


def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (make, _) in tracking.RECORDERS.items():
        missing = {name: (make, f"no_module_for_{name}")}
        with monkeypatch.context() as patch:
            patch.setattr(tracking, "RECORDERS", missing)
            with pytest.raises(ImportError, match=f"pip install no_module_for_{name}"):
                tracking.check([name])
            line = "run --data ridge --method sppm --method.step_size 1 --out"
            with pytest.raises(SystemExit, match="2"):
                main([*line.split(), str(tmp_path / "run"), "--track.to", f'["{name}"]'])
            assert f"pip install no_module_for_{name}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def play(name: str, folder: Path) -> None:
    """A run of three points, continued by three more; one value is not finite."""
    info = RunInfo("one", "project", folder, {"run.rounds": 3, "method.name": "spam"}, None, f"identity{name}")
    for part in (range(3), range(3, 6)):
        with tracking.tracked([tracking.RECORDERS[name][0]()], info) as run:
            run.write(
                [TrackedPoint(k, {"loss": 1 / (k + 1), "accuracy.q10": 0.1 * k, "bad": float("nan")}) for k in part]
            )
            run.status = COMPLETED


LOSSES = [(k, pytest.approx(1 / (k + 1))) for k in range(6)]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    play("tensorboard", tmp_path)
    found: dict[str, list[tuple[int, float]]] = {}
    texts = []
    for path in sorted(tmp_path.glob("events.out.tfevents.*")):
        for event in events(path.read_bytes()):
            for value in Event.FromString(event).summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((Event.FromString(event).step, value.simple_value))
                else:
                    texts.append(value.tag)
    assert sorted(found["loss"]) == LOSSES
    assert sorted(found) == ["accuracy/q10", "loss"]
    assert any("configuration" in tag for tag in texts)


def events(data: bytes) -> list[bytes]:
    """The records of an event file: length, its checksum, the bytes, their checksum."""
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


@pytest.mark.slow
def test_tensorboard_of_a_whole_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    experiment.run(config.decode(TINY | {"track": {"to": ["tensorboard"]}}), tmp_path / "run")
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    assert records.read(tmp_path / "run")[0]["status"]["kind"] == "completed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    play("mlflow", tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment_id = client.get_experiment_by_name("project").experiment_id
    (run,) = client.search_runs([experiment_id])
    assert run.data.params == {"run.rounds": "3", "method.name": "spam"}
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")] == LOSSES
    assert run.info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    play("wandb", tmp_path)
    files = list(tmp_path.glob("wandb/offline-run-*-identitywandb/run-identitywandb.wandb"))
    assert files
    assert b"accuracy.q10" in b"".join(path.read_bytes() for path in files)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import sqlite3

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio")
    play("trackio", tmp_path)
    assert capsys.readouterr().out == ""  # what it says goes to the other stream
    rows = (
        sqlite3.connect(tmp_path / "project.db").execute("select step, metrics from metrics order by step").fetchall()
    )
    assert [(step, json.loads(metrics)["loss"]) for step, metrics in rows] == LOSSES
