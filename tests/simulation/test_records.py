"""Runs on disk: what is kept, what survives, what is refused, and what is said about it."""

import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedspam import Faults, Generated, on_client, simulate, spam, spam_pp
from fedspam._internal import describe, files
from fedspam._internal.trees import struct
from fedspam.methods import auto, scaffold
from fedspam.problems import Quadratics, quadratics
from fedspam.simulation import Watch, keep_programs, records, restore
from fedspam.simulation.records import Keep, RecordError
from fedspam.solvers import Exact
from loading import benchmark

METHOD = spam(0.8, 0.3, solver=Exact(), start="zero")
PEOPLE = quadratics(jax.random.key(0), clients=12, dimension=4, delta=0.2, condition=4.0)
START = jnp.ones(4)


def probe(x):
    return {"norm": jnp.linalg.norm(x), "first": x[0]}


OPTIONS = {"key": 5, "probe": probe, "every": 5, "keep": Keep(every=10)}


def go(rounds=30, **options):
    return simulate(METHOD, PEOPLE, START, rounds=rounds, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def whole():
    """The undisturbed run, in memory alone."""
    return go()


def same_bits(run, other):
    parts = lambda run: (run.params, run.state, run.memory, dict(run.rows), dict(run.probes))
    assert jax.tree.structure(parts(run)) == jax.tree.structure(parts(other))
    for one, two in zip(jax.tree.leaves(parts(run)), jax.tree.leaves(parts(other)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
    return True


@contextlib.contextmanager
def warned(*says):
    """Every one of these is warned of, in this order; more may be."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = iter([str(each.message) for each in caught])
    for text in says:
        assert any(re.search(text, message) for message in messages), f"{text} is not in {[*map(str, caught)]}"


# --- resuming ---


def test_a_run_on_disk_has_the_bits_of_one_in_memory(whole, tmp_path):
    assert same_bits(go(folder=tmp_path / "run"), whole)
    assert same_bits(go(folder=tmp_path / "run", resume=True), whole)  # nothing left to do


@pytest.mark.parametrize("segments", [(5, 10), (10, 20)])
@pytest.mark.slow
def test_the_length_of_segments_changes_no_bit(whole, tmp_path, segments):
    first, second = segments
    go(rounds=15, keep=Keep(every=first), folder=tmp_path)
    assert same_bits(go(keep=Keep(every=second), folder=tmp_path, resume=True), whole)


def test_a_rest_that_is_no_multiple_of_every(whole, tmp_path):
    for rounds in (7, 8, 13, 30):
        run = go(rounds=rounds, folder=tmp_path, resume=True)
        assert run.rounds == rounds
        assert len(run.probes["norm"]) == 1 + rounds // 5
    assert same_bits(run, whole)


def test_death_before_the_first_segment_is_done(whole, tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedspam.simulation.run.Stopwatch.time", die)
        with pytest.raises(KeyboardInterrupt):
            go(folder=tmp_path)
    assert [path.name for path in tmp_path.glob("checkpoint*")] == ["checkpoint-000000000.safetensors"]
    assert same_bits(go(folder=tmp_path, resume=True), whole)


@pytest.mark.parametrize("at", range(1, 12))
def test_death_at_any_write_of_the_run(whole, tmp_path, monkeypatch, at):
    """Every write in turn leaves half of its bytes behind, as a kill does."""
    writes = 0

    def torn(file, data):
        nonlocal writes
        writes += 1
        file.write(bytes(data[: len(data) // 2 if writes == at else len(data)]))
        if writes == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_all", torn)
        with pytest.raises(KeyboardInterrupt):
            go(folder=tmp_path, keep=Keep(best="norm", every=10))
    left = list(tmp_path.glob(".*.partial"))
    assert same_bits(go(folder=tmp_path, resume=True, keep=Keep(best="norm", every=10)), whole)
    assert not list(tmp_path.glob(".*.partial"))
    assert left or at != 1


def test_fewer_rounds_than_there_are_is_refused(tmp_path):
    go(folder=tmp_path)
    with pytest.raises(RecordError, match="already holds 30 rounds"):
        go(rounds=10, folder=tmp_path, resume=True)


def test_resume_needs_a_folder():
    with pytest.raises(ValueError, match="folder"):
        go(resume=True)


# --- damage ---


def damage(path, how):
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif how == "flipped":
        middle = len(data) * 3 // 4
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "removed":
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "removed"])
@pytest.mark.parametrize("which", ["checkpoint-000000030.safetensors", "rows.bin", "manifest.json", "best.safetensors"])
@pytest.mark.slow
def test_the_last_good_state_is_used(whole, tmp_path, which, how):
    go(folder=tmp_path, keep=Keep(best="norm", every=10))
    damage(tmp_path / which, how)
    again = lambda: go(folder=tmp_path, resume=True, keep=Keep(best="norm", every=10))
    if how == "removed" and ("best" in which or "checkpoint" in which):  # nothing shows that it was there
        assert same_bits(again(), whole)
    else:
        with warned(which.split(".")[0]):
            assert same_bits(again(), whole)
    assert same_bits(again(), whole)  # and all is well after that


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_damage_everywhere_begins_again(whole, tmp_path, how):
    go(folder=tmp_path)
    for path in [*tmp_path.glob("checkpoint*"), tmp_path / "rows.bin"]:
        damage(path, how)
    with warned("is damaged", "is damaged", "no good state is left"):
        assert same_bits(go(folder=tmp_path, resume=True), whole)


REPACKED = {
    "shorter": lambda name, column: column[:-1] if name.startswith("row.") else column,
    "longer": lambda name, column: np.append(column, column[-1:]) if name.startswith("row.") else column,
    "two axes": lambda name, column: np.stack([column, column], 1) if name.startswith("row.") else column,
    "a column less": lambda name, column: None if name == "row.void" else column,
    "no rows": lambda name, column: None if name.startswith("row.") else column,
    "a probe less": lambda name, column: None if name == "probe.first" else column,
    "probes of another shape": lambda name, column: np.stack([column] * 3, 1) if name == "probe.norm" else column,
    "fewer probes": lambda name, column: column[:-1] if name.startswith("probe.") else column,
}


@pytest.mark.parametrize("how", REPACKED)
@pytest.mark.parametrize("rounds", [10, 20])
def test_rows_that_others_packed_are_refused(tmp_path, how, rounds):
    """Their hash fits; the rounds that they stand for do not. The first rows have no others to be compared with."""
    go(rounds=rounds, folder=tmp_path)
    path = tmp_path / "rows.bin"
    *before, last = files.frames(path)[0]
    changed = {name: REPACKED[how](name, column) for name, column in last.arrays.items()}
    facts = {name: value for name, value in last.facts.items() if name not in ("format", "sha256")}
    left = {name: column for name, column in changed.items() if column is not None}
    files.append(path, files.pack(left, **facts), before[-1].end)
    with pytest.raises(RecordError, match="not written by fedspam: start in another folder"):
        records.read(tmp_path)
    with pytest.raises(RecordError, match="not written by fedspam: start in another folder"):
        go(folder=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["checkpoint-000000030.safetensors", "best.safetensors"])
def test_a_good_state_of_other_names_is_refused_and_left_alone(tmp_path, name):
    """Another version of a method may keep other things: what the older one wrote is not damaged, nor lost."""
    keep = Keep(best="norm", every=10)
    go(folder=tmp_path, keep=keep)
    path = tmp_path / name
    arrays, facts = files.unpack(path.read_bytes(), path, size=files.FRAME)
    facts = {key: value for key, value in facts.items() if key not in ("format", "sha256")}
    renamed = {key.replace(".g", ".estimate"): array for key, array in arrays.items()}
    assert renamed.keys() != arrays.keys()
    path.write_bytes(files.pack(renamed, **facts))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(RecordError, match=rf"{name} holds .*estimate.* where this version .*g; resume with the"):
        go(folder=tmp_path, resume=True, keep=keep)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_old_damage_does_not_outlive_new_checkpoints(tmp_path):
    """After going back, what is written is newer than the damaged files, whatever their numbers."""
    go(folder=tmp_path)
    for path in tmp_path.glob("checkpoint*"):
        damage(path, "flipped")
    data = (tmp_path / "rows.bin").read_bytes()
    (tmp_path / "rows.bin").write_bytes(data[: len(data) // 2])
    with warned("is damaged"):
        go(rounds=15, folder=tmp_path, resume=True, keep=Keep(every=5))
    assert sorted(path.name for path in tmp_path.glob("checkpoint*"))[-1] == "checkpoint-000000015.safetensors"


def test_nothing_is_known_of_a_folder_without_manifest_and_checkpoint(tmp_path):
    go(folder=tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    for path in tmp_path.glob("checkpoint*"):
        damage(path, "flipped")
    with pytest.raises(RecordError, match="cannot be identified"):
        go(folder=tmp_path, resume=True)


def test_files_of_another_run_are_not_mixed_in(whole, tmp_path):
    go(folder=tmp_path / "one")
    go(folder=tmp_path / "other", key=6)
    name = "checkpoint-000000030.safetensors"
    (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with warned("belongs to another run"):
        assert same_bits(go(folder=tmp_path / "one", resume=True), whole)


def test_a_state_under_the_name_of_another_round_is_not_used(whole, tmp_path):
    """Copied over the newest checkpoint, an older state would do its last rounds twice."""
    go(folder=tmp_path)
    older, newest = (tmp_path / f"checkpoint-{number:09d}.safetensors" for number in (20, 30))
    newest.write_bytes(older.read_bytes())
    with warned(f"{newest.name} holds the state after round 20, not 30; going back to the state before it"):
        assert same_bits(go(folder=tmp_path, resume=True), whole)
    older.unlink()
    newest.rename(older)
    with pytest.raises(RecordError, match="holds the state after round 30, not 20"):
        restore(METHOD, PEOPLE, START, tmp_path)


def test_what_belongs_to_others_is_not_overwritten(tmp_path):
    (tmp_path / "manifest.json").write_text('{"made by": "somebody else"}')
    for resume in (False, True):
        with pytest.raises(RecordError, match=r"(choose|start in) another folder"):
            go(folder=tmp_path, resume=resume)
    assert "somebody else" in (tmp_path / "manifest.json").read_text()
    other = tmp_path / "other"
    other.mkdir()
    for name in ("best.safetensors", ".theirs.partial"):
        (other / name).write_text("precious")
    for resume in (False, True):
        with pytest.raises(RecordError, match=r"best.safetensors does not belong to a run"):
            go(folder=other, resume=resume)
    assert all((other / name).read_text() == "precious" for name in ("best.safetensors", ".theirs.partial"))


def test_another_format_is_refused_and_left_alone(whole, tmp_path, monkeypatch):
    go(folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(records, "FORMAT", 3)
        patch.setattr(files, "FORMAT", 3)
        with pytest.raises(RecordError, match="has format 2, this version of fedspam reads 3"):
            go(folder=tmp_path, resume=True)
        path = tmp_path / "checkpoint-000000030.safetensors"
        with pytest.raises(RecordError, match="has format 2, this version of fedspam reads 3"):
            files.unpack(path.read_bytes(), path, size=10**6)
    assert same_bits(go(folder=tmp_path, resume=True), whole)


# --- disks ---


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk(whole, small_disk):
    (small_disk / "ballast").write_bytes(bytes(256 * 1024 - 11 * 4096))
    with pytest.raises(RecordError, match=r"cannot write .*No space left on device; free space .* then resume"):
        go(folder=small_disk / "run", keep=Keep(10, every=5))
    assert list((small_disk / "run").glob("checkpoint*"))
    assert not list((small_disk / "run").glob(".*.partial"))
    (small_disk / "ballast").unlink()
    assert same_bits(go(folder=small_disk / "run", keep=Keep(every=5), resume=True), whole)


def test_a_disk_that_is_full_from_the_start(small_disk):
    (small_disk / "ballast").write_bytes(bytes(256 * 1024 - 4096))
    with pytest.raises(RecordError, match=r"cannot (write|make).*No space left on device"):
        go(folder=small_disk / "run")


def test_a_read_only_disk(small_disk):
    go(rounds=10, folder=small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RecordError, match=r"cannot write .*Read-only file system"):
        go(folder=small_disk / "run", resume=True)
    with pytest.raises(RecordError, match=r"cannot make the folder .*Read-only file system; choose another"):
        go(folder=small_disk / "other")
    assert restore(METHOD, PEOPLE, START, small_disk / "run")[1] == 10  # reading needs no lock


def test_files_that_may_not_grow(whole, tmp_path):
    """The same where no file system can be mounted: the kernel refuses to let a file grow."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    go(rounds=10, folder=tmp_path)
    limit = (tmp_path / "rows.bin").stat().st_size + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(RecordError, match=r"cannot write .*rows.bin: File too large"):
            go(folder=tmp_path, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "rows.bin").stat().st_size == limit - 100  # the torn frame is gone again
    assert same_bits(go(folder=tmp_path, resume=True), whole)


# --- one writer ---


def test_two_writers_at_once_are_refused(whole, tmp_path):
    with records.Store(tmp_path), pytest.raises(RecordError, match=rf"being written by process {os.getpid()} on "):
        go(folder=tmp_path)
    assert same_bits(go(folder=tmp_path), whole)


def test_a_killed_writer_leaves_no_lock(whole, tmp_path):
    script = "import fcntl, os, sys, signal\nfile = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    script += "fcntl.flock(file, fcntl.LOCK_EX)\nprint('locked', flush=True)\nsignal.pause()"
    holder = subprocess.Popen([sys.executable, "-c", script, tmp_path / ".lock"], stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RecordError, match="being written by another process"):
            go(folder=tmp_path)
        holder.kill()
    assert same_bits(go(folder=tmp_path), whole)


def test_where_locks_are_not_to_be_had_it_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"), records.Store(tmp_path):
        pass


# --- what is kept ---


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    run = go(folder=tmp_path, keep=Keep(3, best="first", every=5))
    rounds = [int(path.stem.split("-")[1]) for path in sorted(tmp_path.glob("checkpoint*"))]
    assert rounds == [20, 25, 30]
    params, done = restore(METHOD, PEOPLE, START, tmp_path)
    assert (params.tobytes(), done) == (run.params.tobytes(), 30)
    params, done = restore(METHOD, PEOPLE, START, tmp_path, best=True)
    assert done == 5 * int(np.argmin(run.probes["first"]))
    assert float(params[0]) == run.probes["first"].min()


def test_the_best_may_be_the_largest(tmp_path):
    run = go(folder=tmp_path, keep=Keep(best="first", largest=True, every=5))
    assert restore(METHOD, PEOPLE, START, tmp_path, best=True)[1] == 5 * int(np.argmax(run.probes["first"]))


def test_only_states_that_were_probed_can_be_best(tmp_path):
    """13 rounds in one segment, a probe every 5: no value belongs to the state after round 13, so the start is kept."""
    go(rounds=13, folder=tmp_path, keep=Keep(best="first", every=1000))
    assert restore(METHOD, PEOPLE, START, tmp_path, best=True)[1] == 0


def test_the_best_of_one_kind_is_not_compared_with_that_of_another(tmp_path):
    """The norm is positive and the first number is not: the old score would win against every new one, or lose."""
    go(rounds=15, folder=tmp_path, keep=Keep(best="first", largest=True, every=5))
    with warned("best.safetensors is the largest first, not the smallest norm"):
        run = go(folder=tmp_path, resume=True, keep=Keep(best="norm", every=5))
    assert restore(METHOD, PEOPLE, START, tmp_path, best=True)[1] == 20 + 5 * int(np.argmin(run.probes["norm"][4:]))


def test_keeping_is_checked(tmp_path):
    with pytest.raises(ValueError, match="last = 0"):
        Keep(0)
    with pytest.raises(ValueError, match="'loss' is not a probe of this run"):
        go(folder=tmp_path, keep=Keep(best="loss", every=10))
    go(folder=tmp_path / "run")
    with pytest.raises(RecordError, match="best"):
        restore(METHOD, PEOPLE, START, tmp_path / "run", best=True)


def test_a_run_can_be_read_by_others(whole, tmp_path):
    import safetensors.numpy

    go(folder=tmp_path)
    facts, rows, probes = records.read(tmp_path)
    assert facts["status"]["kind"] == "completed"
    np.testing.assert_array_equal(rows["bytes_up"], whole.rows["bytes_up"])
    np.testing.assert_array_equal(probes["norm"], whole.probes["norm"])
    arrays = safetensors.numpy.load_file(tmp_path / "checkpoint-000000030.safetensors")
    np.testing.assert_array_equal(arrays["0000 state.x"], whole.params)


def test_keys_and_half_floats_survive(tmp_path):
    carry = {
        "key": jax.random.key(3),
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "none": jnp.zeros((0, 2)),
        "yes": jnp.array(True),
    }
    with records.Store(tmp_path) as store:
        store.begin({"a": 1})
        store.append(0, carry, {}, {"p": np.zeros(1)})
        saved = store.load({"a": 1}, like=lambda: carry)
    assert saved is not None
    for one, two in zip(jax.tree.leaves(saved.carry), jax.tree.leaves(carry), strict=True):
        assert one.dtype == two.dtype
        plain = jax.random.key_data if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else np.asarray
        np.testing.assert_array_equal(plain(one), plain(two))


# --- what decides the bits ---


def people_of(scale, power=2):
    return Generated(
        make=lambda key: scale * jax.random.normal(key, (4,)),
        loss=lambda x, centre: jnp.sum(jnp.abs(x - centre) ** power),
    )


FACTOR = 1.0


def scaled(x):
    return {"norm": FACTOR * jnp.linalg.norm(x)}


def test_functions_are_told_apart_by_what_they_do():
    same = lambda a, b: describe.digest(describe.describe(a)) == describe.digest(describe.describe(b))
    assert same(people_of(2.0), people_of(2.0))
    assert not same(people_of(2.0), people_of(2.5))  # a number in a closure
    assert not same(people_of(np.ones(4)), people_of(np.arange(4.0)))  # an array in a closure
    assert not same(people_of(2.0, 2), people_of(2.0, 3))
    assert not same(lambda x: x + 1, lambda x: x + 2)
    assert not same(lambda x, y=1: x + y, lambda x, y=2: x + y)
    assert not same(lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"})
    assert not same(jax.jit(lambda x: x + 1), jax.jit(lambda x: x - 1))
    assert not same(jax.tree_util.Partial(probe, 1), jax.tree_util.Partial(probe, 2))
    recursive = lambda n: recursive(n - 1)
    assert same(recursive, recursive)


def test_settings_of_a_library_are_told_apart():
    """A run with another rate of an Optax optimizer was resumed without a word."""
    same = lambda a, b: describe.digest(describe.describe(a)) == describe.digest(describe.describe(b))
    for optimizer in (optax.adam, optax.sgd, optax.trace):
        assert same(optimizer(0.1), optimizer(0.1))
        assert not same(optimizer(0.1), optimizer(0.2))
    assert not same(optax.sgd(0.1, momentum=0.8), optax.sgd(0.1, momentum=0.9))
    assert not same(optax.sgd(0.1), optax.adam(0.1))
    assert not same(jax.grad(lambda x: x**2), jax.grad(lambda x: x**3))


def test_functions_reach_their_globals(monkeypatch):
    before = describe.describe(scaled)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert list(describe.changes(before, describe.describe(scaled))) == ["reaches.FACTOR changed from 1.0 to 2.0"]


@pytest.mark.slow
def test_descriptions_are_the_same_in_every_process(tmp_path):
    module = tmp_path / "described.py"
    module.write_text(
        "import jax, jax.numpy as jnp\nfrom fedspam import Generated, spam\nfrom fedspam._internal import describe\n"
        "words = {'alpha', 'beta', 'gamma'}\n"
        "clients = Generated(lambda key: jax.random.normal(key, (4,)), lambda x, c: jnp.sum((x - c) ** len(words)))\n"
        "inside = lambda x: x in {'delta', 'epsilon', 'zeta'}\n"
        "print(describe.digest(describe.describe([clients, spam(0.1, 0.5), inside, object(), float('nan'), words])))\n"
    )
    source = str(Path(records.__file__).parents[2])
    digests = {
        subprocess.run(
            [sys.executable, module], check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": source},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


@pytest.mark.slow
def test_a_changed_run_is_refused_and_says_what_changed(tmp_path):
    method = spam(0.1, 0.5, start="zero")
    run = lambda clients, **options: simulate(
        method, clients, START, rounds=4, folder=tmp_path, key=1, resume=True, **options
    )
    run(people_of(2.0))
    run(people_of(2.0))
    for clients, options, says in [
        (people_of(2.5), {}, r"population\.make\.reaches\.scale changed from 2\.0 to 2\.5"),
        (people_of(2.0), {"quorum": 0.5}, r"layout\.quorum changed from 0\.0 to 0\.5"),
        (people_of(2.0), {"probe": probe}, "probe"),
        (people_of(2.0), {"watch": Watch(growth=2.0)}, r"watch\.growth changed from null to 2\.0"),
    ]:
        with pytest.raises(RecordError, match=says):
            run(clients, **options)


def resealed(path, **changed):
    facts = {**json.loads(path.read_text()), **changed}
    facts.pop("sha256")
    path.write_text(json.dumps({"sha256": describe.digest(facts), **facts}))


def test_another_version_of_jax_is_pointed_out(whole, tmp_path):
    go(rounds=10, folder=tmp_path)
    resealed(tmp_path / "manifest.json", jax="0.0.1")
    with pytest.warns(UserWarning, match=r"jax changed from 0\.0\.1 to .* the last bits of the results may differ"):
        assert same_bits(go(folder=tmp_path, resume=True), whole)


def test_code_is_not_compared_across_versions_of_python(whole, tmp_path):
    go(rounds=10, folder=tmp_path)
    identity = json.loads((tmp_path / "manifest.json").read_text())["identity"]
    identity["probe"]["code"] = "of another compiler"
    resealed(tmp_path / "manifest.json", identity=identity)
    with pytest.raises(RecordError, match=r"probe\.code"):
        go(folder=tmp_path, resume=True)
    resealed(tmp_path / "manifest.json", python="3.99.0")
    with warned("python changed from 3.99.0"):
        assert same_bits(go(folder=tmp_path, resume=True), whole)


# --- numbers that go wrong ---


def poisoned(client, at=np.nan):
    return dataclasses.replace(PEOPLE, linears=PEOPLE.linears.at[client].set(at))


@pytest.mark.slow
def test_a_client_that_replies_nan_is_named(tmp_path):
    """Everyone is asked, so that every round meets the client, and the quorum needs all."""
    method = spam_pp(12, 0.8, 0.3, solver=Exact(), start="zero")
    run = simulate(method, poisoned(7), START, rounds=100, key=0, quorum=1.0, folder=tmp_path)
    assert str(run.status) == (
        "stopped: round 0, exchange 'difference': client 7 replied with infinity or NaN; every round since then "
        "was void, up to round 19. The state before round 0 is kept"
    )
    assert run.rounds == 20
    np.testing.assert_array_equal(run.params, START)
    assert records.read(tmp_path)[0]["status"] == run.status.as_json()
    again = simulate(method, poisoned(7), START, rounds=100, key=0, quorum=1.0, folder=tmp_path, resume=True)
    assert again.status == run.status
    assert same_bits(again, run)


def test_replies_looked_at_one_by_one_leave_it_out():
    method = spam_pp(12, 0.8, 0.3, solver=Exact(), start="zero")
    run = simulate(method, poisoned(7), START, rounds=40, key=0, per_client=True)
    assert run.status.kind == "completed"
    assert (run.rows["difference.accepted"] == 11).all()
    assert np.isfinite(run.params).all()


@pytest.mark.slow
def test_a_start_that_cannot_be_names_the_client():
    method = spam_pp(12, 0.8, 0.3, solver=Exact(), start="cohort")
    with pytest.raises(RuntimeError, match=r"'starting_gradient': client 3 replied with infinity or NaN"):
        simulate(method, poisoned(3, np.inf), START, rounds=4, key=0, quorum=1.0)


@pytest.mark.slow
def test_what_faults_make_void_is_no_divergence():
    """Silence for longer than the patience does not stop a run; a client that computes NaN does, faults or not."""
    faults = Faults(dropout=0.9)
    run = lambda clients: simulate(
        METHOD, clients, START, rounds=200, key=0, faults=faults, keep=Keep(every=50), record=()
    )
    silent = run(PEOPLE)
    assert silent.status.kind == "completed"
    assert "1" * 20 in "".join(str(int(void)) for void in silent.rows["void"])
    broken = run(dataclasses.replace(PEOPLE, linears=PEOPLE.linears * np.nan))
    assert str(broken.status).startswith("stopped: round 0, exchange 'update': client ")
    assert broken.rounds == 20


class DividingState(NamedTuple):
    x: jax.Array
    k: jax.Array


@struct
class Dividing:
    """A server that divides by zero in one round."""

    bad: int = 5

    def init(self, params, key, fed):
        return DividingState(params, jnp.zeros((), jnp.int32))

    def round(self, state, key, fed):
        g = fed.mean(fed.sample(key, 3), self.gradient, x=state.x)
        return DividingState(state.x - 0.1 * g / jnp.where(state.k == self.bad, 0.0, 1.0), state.k + 1), ()

    @on_client(affine=True)
    def gradient(self, oracle, key, *, x):
        return jax.grad(oracle)(x, key)

    def params(self, state):
        return state.x

    def client_state(self, params):
        return ()


@pytest.mark.slow
@pytest.mark.parametrize("segment", [3, 1000])
def test_the_servers_own_step_is_watched_too(segment):
    run = simulate(Dividing(), PEOPLE, START, rounds=60, key=0, keep=Keep(every=segment))
    assert str(run.status).startswith(
        "stopped: round 5, the server's own step made its state infinite or NaN (x); every round"
    )
    assert run.rounds == 25
    assert int(run.state.k) == 5
    np.testing.assert_array_equal(run.params, simulate(Dividing(), PEOPLE, START, rounds=5, key=0).params)


def test_divergence_is_seen_in_the_parameters(tmp_path):
    clients = Quadratics.of([[[-1.0]], [[-1.0]]], [[0.0], [0.0]])  # unbounded below
    method = spam(1.9, 1.0, solver=Exact(), first="update")
    run = simulate(
        method, clients, jnp.ones(1), rounds=200, key=0, keep=Keep(every=4), watch=Watch(growth=1e6), folder=tmp_path
    )
    assert "‖x‖" in run.status.reason
    assert run.status.kind == "diverged"
    assert f"after {int(run.state.k)} rounds is kept" in run.status.reason
    assert float(jnp.abs(run.params[0])) < 1e6
    saved, done = restore(method, clients, jnp.ones(1), tmp_path)
    assert (saved.tobytes(), done) == (run.params.tobytes(), int(run.state.k))
    assert done < run.rounds < done + 5


def test_divergence_is_seen_in_a_probe():
    clients = Quadratics.of([[[-1.0]], [[-1.0]]], [[0.0], [0.0]])
    method = spam(1.9, 1.0, solver=Exact(), first="update")
    loss = lambda x: {"size": jnp.sum(x**2)}
    run = simulate(
        method, clients, jnp.ones(1), rounds=200, key=0, probe=loss, every=2, watch=Watch(growth=100.0, probe="size")
    )
    assert "the probe 'size'" in run.status.reason
    assert run.probes["size"][-1] > 100 >= run.probes["size"][:-1].max()
    with pytest.raises(ValueError, match="'loss' is not a probe"):
        simulate(method, clients, jnp.ones(1), rounds=2, key=0, probe=loss, watch=Watch(growth=10.0, probe="loss"))


@pytest.mark.slow
def test_good_steps_in_a_row_do_not_end_in_infinity():
    """`auto` lengthens its step after each good one; however fast it does, the range of float32 is not left."""
    clients = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PEOPLE)
    method = dataclasses.replace(auto(10, solver=Exact()), speed=1e30)
    run = simulate(method, clients, jnp.ones(4, jnp.float32), rounds=20, key=0)
    assert run.status.kind == "completed"
    assert run.rows["step_size"].dtype == np.float32
    assert 1e18 < run.rows["step_size"].max() < np.inf


@pytest.mark.parametrize("wrong", [{"growth": 0.5}, {"patience": 0}, {"probe": "loss"}])
def test_an_impossible_watch_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Watch(**wrong)


# --- the same draws ---


class DrawsInfo(NamedTuple):
    total: jax.Array
    mixed: jax.Array


@struct
class Draws:
    """Gradient descent that also reports whom it asked."""

    def init(self, params, key, fed):
        return DividingState(params, jnp.zeros((), jnp.int32))

    def round(self, state, key, fed):
        cohort = fed.sample(key, 11)
        g = fed.mean(cohort, self.gradient, x=state.x)
        mixed = jnp.sum(cohort.ids * (1 + jnp.arange(11, dtype=jnp.uint32)))
        return DividingState(state.x - 0.1 * g, state.k + 1), DrawsInfo(jnp.sum(cohort.ids), mixed)

    @on_client
    def gradient(self, oracle, key, *, x):
        return jax.grad(oracle)(x + 1e-3 * jax.random.normal(key, x.shape), key)

    def params(self, state):
        return state.x

    def client_state(self, params):
        return ()


@pytest.mark.slow
def test_chunks_change_no_draw():
    runs = [
        simulate(Draws(), PEOPLE, START, rounds=20, key=3, chunk=chunk, keep=Keep(every=20)) for chunk in (1, 7, 11)
    ]
    for run in runs[1:]:
        for name in ("total", "mixed"):
            np.testing.assert_array_equal(run.rows[name], runs[0].rows[name])
        np.testing.assert_allclose(run.params, runs[0].params, rtol=1e-6, atol=1e-6)  # in float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        spam_pp(11, 0.8, 0.3, solver=Exact()),
        scaffold(11, local_steps=2, local_rate=0.1),
        auto(11, solver=Exact()),
    ],
    ids=["spam_pp", "scaffold", "auto"],
)
def test_chunks_change_rounding_alone(method):
    """Chunks of 1, of 7 with a rest of 4, and the whole cohort: the same iterates, and the same memories of clients.

    What `auto` measures besides, quotients of differences that vanish, feels the rounding of sums more.
    """
    run = lambda chunk: simulate(
        method, PEOPLE, START, rounds=20, key=3, chunk=chunk, keep=Keep(every=20), per_client=True
    )
    first = run(1)
    for chunk in (7, 11):
        other = run(chunk)
        parts = lambda run: jax.tree.leaves((run.params, run.memory))
        for one, two in zip(parts(first), parts(other), strict=True):
            # 20 rounds in float32; the memories of scaffold are differences divided by a rate of 0.1
            np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


# --- killed for real ---


@pytest.fixture(scope="module")
def soak():
    return benchmark("soak")


@pytest.mark.slow
def test_the_soak_takes_only_one_line_for_a_refusal(soak, tmp_path):
    folder, cache = tmp_path / "run", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    (folder / ".lock").symlink_to(tmp_path / "elsewhere")
    assert soak.refused(soak.start("spam", folder, 4, cache), cache, "stderr", "end")
    for code, said, errors in (
        (1, "", "Traceback (most recent call last):\nRecordError: no"),  # as Python ends
        (3, "refused: no\nand more\n", ""),
        (3, "refused: no\n", "Traceback (most recent call last):"),
        (3, "", "refused: no"),
        (0, "refused: no\n", ""),
    ):
        (cache / "stderr").write_text(errors)
        process = SimpleNamespace(returncode=code, communicate=lambda timeout, said=said: (said, None))
        with pytest.raises(soak.WrongError, match=f"ended with {code}"):
            soak.refused(process, cache, "stderr", "end")


@pytest.mark.slow
def test_a_slice_of_the_soak(soak, tmp_path):
    """Processes killed with SIGKILL at random moments, files damaged in between: `make soak` does it 200 times."""
    counts = soak.soak(tmp_path, 3, ("spam",), damage=0.3, intruders=0.0, rounds=40, say=lambda line: None)
    assert counts["kills of spam"] == 3
    assert counts["runs that ended with the undisturbed bits"] >= 1


LOSSES = {
    "a function of a module": "import own_helper\nloss = lambda x, c: own_helper.scaled(x) * c",
    "a number of a module": "import own_helper\nloss = lambda x, c: own_helper.NUMBER * x * c",
    "a callable object": "class Loss:\n    def __call__(self, x, c):\n        return VALUE * x * c\nloss = Loss()",
    "the state of a callable object": (
        "class Loss:\n    def __init__(self, scale):\n        self.scale = scale\n"
        "    def __call__(self, x, c):\n        return self.scale * x * c\nloss = Loss(VALUE)"
    ),
    "a static method": (
        "class Loss:\n    @staticmethod\n    def scaled(x):\n        return VALUE * x\n"
        "loss = lambda x, c: Loss.scaled(x) * c"
    ),
    "a class method": (
        "class Loss:\n    @classmethod\n    def scaled(cls, x):\n        return VALUE * x\n"
        "loss = lambda x, c: Loss.scaled(x) * c"
    ),
    "a class attribute": "class Loss:\n    scale = VALUE\nloss = lambda x, c: Loss.scale * x * c",
    "a base class": (
        "class Base:\n    def __call__(self, x, c):\n        return VALUE * x * c\n"
        "class Loss(Base):\n    pass\nloss = Loss()"
    ),
    "a method of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Loss:\n    scale: float = 1.0\n"
        "    def __call__(self, x, c):\n        return VALUE * self.scale * x * c\nloss = Loss()"
    ),
    "a bound method": ("class Loss:\n    def value(self, x, c):\n        return VALUE * x * c\nloss = Loss().value"),
    "a default": "def loss(x, c, scale=VALUE):\n    return scale * x * c",
    "a function of a submodule": "import own_package.part\nloss = lambda x, c: own_package.part.scaled(x) * c",
    "a number of a submodule": "import own_package.part\nloss = lambda x, c: own_package.part.NUMBER * x * c",
    "an import inside": "def loss(x, c):\n    from own_helper import scaled\n    return scaled(x) * c\nloss(1.0, 1.0)",
    "a submodule imported inside": (
        "def loss(x, c):\n    import own_package.part as own\n    return own.NUMBER * x * c\nloss(1.0, 1.0)"
    ),
    "a module as default": "import own_helper\ndef loss(x, c, helper=own_helper):\n    return helper.scaled(x) * c",
    "a module in a dictionary": "import own_helper\nuse = {1: own_helper}\nloss = lambda x, c: use[1].NUMBER * x * c",
    "a module as argument": (
        "import functools, own_helper\nloss = functools.partial(lambda use, x, c: use.NUMBER * x * c, own_helper)"
    ),
    "a module as attribute": (
        "import own_helper\nclass Loss:\n    use = own_helper\n    def __call__(self, x, c):\n"
        "        return self.use.NUMBER * x * c\nloss = Loss()"
    ),
    "slots": (
        "class Loss:\n    __slots__ = ('__scale', 'empty')\n"
        "    def __init__(self, scale):\n        self.__scale = scale\n"
        "    def __call__(self, x, c):\n        return self.__scale * x * c\nloss = Loss(VALUE)"
    ),
    "a callable tuple": (
        "from typing import NamedTuple\nclass Loss(NamedTuple):\n    power: int = 1\n    def __call__(self, x, c):\n"
        "        return VALUE * x * c\nloss = Loss()"
    ),
    "a number of a callable tuple": (
        "from typing import NamedTuple\nclass Loss(NamedTuple):\n    scale: float\n    def __call__(self, x, c):\n"
        "        return self.scale * x * c\nloss = Loss(VALUE)"
    ),
    "a callable dictionary": (
        "class Loss(dict):\n    def __call__(self, x, c):\n        return VALUE * x * c\nloss = Loss(a=1)"
    ),
    "a callable number": (
        "class Loss(float):\n    def __call__(self, x, c):\n        return self * x * c\nloss = Loss(VALUE)"
    ),
    "a rule of custom_vjp": (
        "import jax\n@jax.jit\n@jax.custom_vjp\ndef loss(x, c):\n    return x * c\n"
        "loss.__wrapped__.defvjp(lambda x, c: (x * c, c), lambda c, up: (VALUE * c * up, None))"
    ),
    "a rule of custom_jvp": (
        "import jax\n@jax.custom_jvp\ndef loss(x, c):\n    return x * c\n"
        "@loss.defjvp\ndef rule(at, along):\n    return at[0] * at[1], VALUE * along[0] * at[1]"
    ),
    "rules of custom_jvp by argument": (
        "import jax\n@jax.custom_jvp\ndef loss(x, c):\n    return x * c\n"
        "loss.defjvps(lambda along, out, x, c: VALUE * along * c, None)"
    ),
    "a namespace": ("import types\nuse = types.SimpleNamespace(scale=VALUE)\nloss = lambda x, c: use.scale * x * c"),
    "a deque": "import collections\nuse = collections.deque([VALUE])\nloss = lambda x, c: use[0] * x * c",
    "a complex number": "use = VALUE * 1j\nloss = lambda x, c: abs(use) * x * c",
    "an array of objects": (
        "import numpy as np\nuse = np.array([VALUE, None], dtype=object)\nloss = lambda x, c: use[0] * x * c"
    ),
    "every attribute": (
        "class Loss:\n    def __getattribute__(self, name):\n        return lambda *_: VALUE\n"
        "    def __call__(self, x, c):\n        return self.scale() * x * c\nloss = Loss()"
    ),
    "a closure": "def make(scale):\n    return lambda x, c: scale * x * c\nloss = make(VALUE)",
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_description_notices_every_kind_of_change_to_a_loss(kind, tmp_path):
    """Two losses that differ in one number have different descriptions; the same loss twice has the same."""

    def described(value, folder):
        folder.mkdir()
        (folder / "own_helper.py").write_text(f"NUMBER = {value}\ndef scaled(x):\n    return {value} * x\n")
        (folder / "own_package").mkdir()
        (folder / "own_package" / "__init__.py").write_text("")
        (folder / "own_package" / "part.py").write_text((folder / "own_helper.py").read_text())
        (folder / "own_loss.py").write_text(LOSSES[kind].replace("VALUE", str(value)) + "\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            for name in ("own_loss", "own_helper", "own_package", "own_package.part"):
                patch.delitem(sys.modules, name, raising=False)
            return describe.describe(importlib.import_module("own_loss").loss)

    first, again, other = (described(value, tmp_path / str(i)) for i, value in enumerate((2.0, 2.0, 3.0)))
    assert first == again
    assert first != other


WRITTEN = (".lock", "rows.bin", ".manifest.json.partial", ".checkpoint-000000000.safetensors.partial")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("name", [*WRITTEN, ".model.safetensors.partial"])
def test_no_link_is_followed(name, link, tmp_path):
    """A link in the run folder must not lead to another file being overwritten."""
    treasure, folder = tmp_path / "treasure", tmp_path / "run"
    treasure.write_text("precious")
    folder.mkdir()
    link(folder / name, treasure)
    with contextlib.suppress(records.RecordError):  # refused, or the stale link itself is removed
        go(rounds=5, folder=folder)
    assert treasure.read_text() == "precious"


@pytest.mark.parametrize("name", [*WRITTEN, ".model.safetensors.partial"])
def test_no_pipe_is_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with contextlib.suppress(records.RecordError):  # refused, or the pipe itself is removed
        go(rounds=5, folder=tmp_path)


def test_a_pipe_or_a_link_in_place_of_rows_is_told(tmp_path):
    rows = tmp_path / "run" / "rows.bin"
    go(rounds=5, folder=rows.parent)
    (tmp_path / "backup").hardlink_to(rows)
    saved = rows.read_bytes()
    with pytest.raises(RecordError, match=r"rows\.bin: it is a hard link, .* put a copy in its place"):
        go(rounds=10, folder=rows.parent, resume=True)
    rows.unlink()
    rows.symlink_to(tmp_path / "backup")
    with pytest.raises(RecordError, match=r"rows\.bin: it is a link, and links are not followed; remove it"):
        go(rounds=10, folder=rows.parent, resume=True)
    assert (tmp_path / "backup").read_bytes() == saved
    rows.unlink()
    os.mkfifo(rows)
    with warned("not a regular file; going back", "no good state is left"):
        assert go(rounds=10, folder=rows.parent, resume=True).rounds == 10  # it is replaced


def test_a_single_name_is_a_record():
    run = go(rounds=5, record="step_size")
    assert "step_size" in run.rows
    assert go(rounds=5, record=["step_size"]).rows.keys() == run.rows.keys()


def test_another_number_of_cores_is_reported(tmp_path, monkeypatch):
    """The last bits of some models depend on it."""
    identity = {"method": "spam"}
    with records.Store(tmp_path) as store:
        store.begin(identity)
    now = records.manifest()
    assert now["cores"] >= 1
    assert now["devices"] >= 1
    monkeypatch.setattr(records, "manifest", lambda **facts: {**now, "cores": now["cores"] + 1})
    with (
        records.Store(tmp_path) as store,
        pytest.warns(UserWarning, match=r"cores changed from \d+ to \d+: the last bits"),
    ):
        store.load(identity, like=lambda: ())


def test_a_probe_that_other_cores_computed_is_the_same_probe(tmp_path, monkeypatch):
    """Sums over clients differ in their last bits; the clients themselves are compared, too."""
    mean = lambda seal, unit: {"shape": [4], "dtype": "float64", "sha256": seal, "unit": unit}
    identity = lambda seal, unit=1.0, **more: {"method": "spam", "probe": mean(seal, unit), **more}
    with records.Store(tmp_path) as store:
        store.begin(identity("a"))
        with pytest.raises(RecordError, match=r"probe\.sha256 changed"):
            store.load(identity("b"), like=lambda: ())
        now = records.manifest()
        monkeypatch.setattr(records, "manifest", lambda **facts: {**now, "cores": now["cores"] + 1})
        with pytest.warns(UserWarning, match=r"cores changed from \d+ to \d+: the last bits"):
            store.load(identity("b", 1.0000001), like=lambda: ())
        for other in (identity("b", 2.0), identity("a", method="sppm"), identity("a", every=3)):
            with pytest.raises(RecordError, match=r"another run: .* Also, cores changed from \d+ to \d+, which may"):
                store.load(other, like=lambda: ())


def test_programs_are_kept_only_where_nobody_else_writes(tmp_path, monkeypatch):
    set_to = {}
    monkeypatch.setattr(jax.config, "update", set_to.__setitem__)
    keep_programs(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o077 == 0
    assert set_to["jax_compilation_cache_dir"] == str(tmp_path / "new" / "cache")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ValueError, match=r"others can write to it.*chmod go-w"):
        keep_programs(tmp_path / "open")


def test_the_commit_is_that_of_fedspam_alone(tmp_path, monkeypatch):
    """Neither the repository that the process stands in nor one that variables name."""
    own = describe._commit.__wrapped__()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    foreign = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True).strip()
    monkeypatch.chdir(tmp_path)
    assert describe._commit.__wrapped__() == own != foreign
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert describe._commit.__wrapped__() == own
