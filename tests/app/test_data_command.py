"""`fedspam data`: what is known about data sets, the check of their files, and their download."""

import functools
import gzip
import hashlib
import http.server
import threading

import pytest

from fedspam.app import data
from fedspam.app.cli import main
from fedspam.datasets import FOLDER_VARIABLE, KNOWN, DataFile, KnownData

PUBLISHED = b"1 1:2\n" * 100


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, and a server of one good and one wrong file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "rows.gz").write_bytes(gzip.compress(PUBLISHED))
    (tmp_path / "served" / "other").write_bytes(b"a page that says: moved")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        """A handler without a log."""

        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "served")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    sha256 = hashlib.sha256(PUBLISHED).hexdigest()
    about = lambda *files: KnownData("none", "100 rows", "read_libsvm", "a test", "none", files)
    monkeypatch.setitem(KNOWN, "good", about(DataFile("set/rows.gz", sha256, url + "rows.gz")))
    monkeypatch.setitem(KNOWN, "wrong", about(DataFile("set/wrong", sha256, url + "other")))
    monkeypatch.setitem(KNOWN, "absent", about(DataFile("set/absent", sha256, url + "absent")))
    monkeypatch.setitem(KNOWN, "made", about(DataFile("set/made", sha256)))
    yield tmp_path
    server.shutdown()
    server.server_close()


def test_all_are_listed(here, capsys):
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split(" ", 1)[0] for line in lines} >= set(KNOWN)
    assert next(line for line in lines if line.startswith("heart")).rstrip().endswith("come with fedspam")
    assert next(line for line in lines if line.startswith("a9a")).rstrip().endswith("missing")
    for wrong, words in ((["data", "a9"], "did you mean 'a9a'?"), (["data", "--download"], "needs the name")):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert words in capsys.readouterr().err


def test_what_comes_with_fedspam_is_as_published(here, capsys):
    assert main(["data", "heart"]) == 0
    told = capsys.readouterr().out
    assert "CC BY 4.0" in told
    assert told.count("as published") == 4


def test_a_download_is_checked(here, capsys, monkeypatch):
    assert main(["data", "good"]) == 1
    assert "fedspam data good --download" in capsys.readouterr().out
    assert main(["data", "good", "--download"]) == 0
    assert gzip.decompress((here / "data" / "set" / "rows.gz").read_bytes()) == PUBLISHED
    (here / "data" / "set" / "rows.gz").write_bytes(gzip.compress(PUBLISHED, 1))  # packed otherwise: the same bytes
    assert main(["data", "good"]) == 0
    (here / "data" / "set" / "rows.gz").write_bytes(gzip.compress(b"x"))
    capsys.readouterr()
    assert main(["data", "good"]) == 1
    assert "DIFFERS" in capsys.readouterr().out
    (here / "data" / "set" / "rows.gz").unlink()
    for name, words in (("wrong", "not the published file"), ("absent", "404"), ("made", "cannot be downloaded")):
        assert main(["data", name, "--download"]) == 1
        assert words in capsys.readouterr().err
    monkeypatch.setattr(data, "MOST_BYTES", 10)
    assert main(["data", "wrong", "--download"]) == 1
    assert "more than 10 bytes" in capsys.readouterr().err
    assert not list((here / "data" / "set").iterdir())
