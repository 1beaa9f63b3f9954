"""A SuperNode with a pinned app: it runs that app, and loads nothing of another."""

import hashlib
import json
import sys

import pytest

from processes import closing, free_port
from world import CLIENTS, World

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam.flower.privacy import pinned

MARK = """
import os, pathlib
pathlib.Path(os.environ["MARK"]).touch()
"""


class PinnedWorld(World):
    """Of three SuperNodes one pins another app than that of the run."""

    def built(self) -> str:
        """The hash of the app, as a site finds it from the files that it has read."""
        self.run("build", ["flwr", "build", "--app", str(self.folder / "app")], self.folder, 60)
        (app,) = self.folder.glob("*.fab")
        return hashlib.sha256(app.read_bytes()).hexdigest()

    def supernode_of(self, id: int, app: str) -> None:
        node = [sys.executable, "-m", "fedspam.flower.privacy.pinned", "--app", app, "--insecure"]
        node += ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        node += ["--node-config", f"partition-id={id} num-partitions={CLIENTS}"]
        self.start(f"supernode{id}", node, self.folder, {"MARK": str(self.folder / f"loaded-{id}")})


@pytest.mark.thorough
def test_a_site_runs_no_app_but_the_one_that_it_pinned(tmp_path):
    with closing(PinnedWorld(tmp_path)) as world:
        client = tmp_path / "app" / "trial" / "client.py"
        client.write_text(MARK + client.read_text())
        good = world.built()
        world.superlink()
        for id in range(CLIENTS):
            world.supernode_of(id, good if id else "0" * 64)
        world.begin("run", nodes=CLIENTS - 1, rounds=1)
        world.end()
        events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (refused,) = [line for line in events if line["event"] == "node" and line["outcome"] != "accepted"][:1]
    assert "FAB" in refused["reason"]
    assert [(tmp_path / f"loaded-{id}").exists() for id in range(CLIENTS)] == [False, True, True]


def test_a_hash_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        pinned.main(["--app", "latest"])
    assert "'latest' must have 64 hexadecimal digits" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        pinned.main(["--superlink", "127.0.0.1:9092"])
    assert "the following arguments are required: --app" in capsys.readouterr().err
