"""The cache of compiled programs that commands share."""

import contextlib
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from fedspam._internal.program_folder import make_private
from fedspam.app import programs


def test_the_folder_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv(programs.FOLDER_VARIABLE, str(tmp_path / "given"))
    assert programs.folder().parent == tmp_path / "given"
    monkeypatch.delenv(programs.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert programs.folder().parent == tmp_path / "caches" / "fedspam"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert programs.folder().parent == tmp_path / ".cache" / "fedspam"


def test_the_oldest_programs_go_first(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (10**9 - age, 10**9 - age))
    programs.trim(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle"}
    programs.trim(tmp_path, 250)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_others_can_write_is_told_and_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv(programs.FOLDER_VARIABLE, str(tmp_path))
    programs.folder().mkdir(mode=0o700)
    programs.folder().chmod(0o777)
    programs.use()
    told = capsys.readouterr().err
    assert "others can write to it" in told
    assert told.count("\n") == 1
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_folder_that_others_could_replace_is_refused(tmp_path, monkeypatch):
    base = tmp_path / "open"
    base.mkdir()
    base.chmod(0o777)
    (tmp_path / "theirs").mkdir(mode=0o700)
    (base / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match="is a link or a file"):
        make_private(base / "link")
    for place in (base / "programs", base / "between" / "programs"):
        with pytest.raises(ValueError, match=r"others can write to .*open, .* chmod go-w"):
            make_private(place)
    base.chmod(0o1777)  # as /tmp: only the owner can rename what is in it
    make_private(base / "programs")
    (base / "programs" / "program").write_bytes(b"code")
    owner = os.getuid()
    real = os.scandir

    @contextlib.contextmanager
    def of_another(folder):
        state = SimpleNamespace(st_uid=owner + 1)
        with real(folder) as entries:
            yield [SimpleNamespace(path=entry.path, stat=lambda **_: state) for entry in entries]

    monkeypatch.setattr(os, "scandir", of_another)
    with pytest.raises(ValueError, match="program belongs to another user"):
        make_private(base / "programs")


def test_missing_parents_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b" / "programs")
    finally:
        os.umask(before)
    for place in ("a", "a/b", "a/b/programs"):
        assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700


def test_the_cache_is_chosen_without_loading_jax(tmp_path):
    code = (
        "import sys; from fedspam.app import programs; programs.use(); assert 'jax' not in sys.modules; import jax;"
        "print(jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment[programs.FOLDER_VARIABLE] = str(tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, timeout=600, capture_output=True, text=True
    ).stdout.split()
    assert said[0].startswith(str(tmp_path))
    assert float(said[1]) == 0.1


@pytest.mark.slow
def test_a_second_command_has_the_programs_and_the_bits_of_the_first(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    environment |= {programs.FOLDER_VARIABLE: str(tmp_path / "cache"), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    line = "run --data ridge --method sppm --method.step_size 1 --rounds 4 --quiet --out"
    rows = []
    for flags in (["--no-cache"], [], [], []):
        out = tmp_path / str(len(rows))
        command = [sys.executable, "-m", "fedspam.app", *line.split(), str(out), *flags]
        done = subprocess.run(command, check=True, env=environment, timeout=600, capture_output=True, text=True)
        assert "persistent compilation cache" not in done.stderr
        rows.append({name: leaf.tobytes() for name, leaf in load_file(out / "model.safetensors").items()})
        kept = list((tmp_path / "cache").glob("*/*"))
        assert bool(kept) == (len(rows) > 1)
        if len(rows) == 3:  # as if the process had been killed while it wrote them
            for path in kept:
                os.truncate(path, path.stat().st_size // 2)
    (folder,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(row == rows[0] for row in rows)
