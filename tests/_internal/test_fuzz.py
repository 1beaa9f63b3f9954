"""No bytes make a decoder fail but in its own clear way: seeds, what fuzzing found, and mutations of both."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings, strategies as st

from fedspam._internal import files, strict
from fedspam.federation import wire
from loading import load

FUZZ = Path(__file__).parents[2] / "fuzz"
targets = load(FUZZ / "targets.py")

every_target = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not target.is_possible, reason=f"{target.needs} is not installed"))
        for name, target in targets.TARGETS.items()
    ],
)


def corpus(name):
    return [path.read_bytes() for path in sorted((FUZZ / "corpus" / name).iterdir())]


@every_target
def test_the_corpus_is_kept(name):
    """What the targets make first is good, and what the corpus holds was never a finding, or is none any more."""
    assert targets.TARGETS[name](next(targets.TARGETS[name].seeds()))
    for data in corpus(name):
        targets.TARGETS[name](data)


@st.composite
def mutated(draw, seeds):
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "number"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[place] = draw(st.integers(0, 255))
            case "cut":
                del data[place:]
            case "insert":
                data[place:place] = draw(st.binary(max_size=8))
            case "repeat":
                data[place:place] = data[place : place + 20]
            case "number":  # lengths, counts and offsets
                data[place : place + 8] = draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
            case _:
                pass
    return bytes(data)


@every_target
@pytest.mark.slow
def test_mutations_are_accepted_or_refused_clearly(name):
    seeds = [*targets.TARGETS[name].seeds(), *corpus(name)]
    examples = 15 if name == "tff" else 150  # which is read in a process of its own

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(st.one_of(mutated(seeds), st.binary(max_size=200)))
    def run(data):
        targets.TARGETS[name](data)

    run()


# --- limits, one by one ---


def header(text, body=b""):
    data = text.encode()
    return len(data).to_bytes(8, "little") + data + body


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "too few"),
        ((2**63).to_bytes(8, "little"), "a header of 9223372036854775808 bytes, at most"),
        ((100).to_bytes(8, "little") + b"{}", "a header of 100 bytes in 10 bytes"),
        (header("[]"), "an object is expected"),
        (header('{"a": 1}'), "exactly dtype, shape and data_offsets"),
        (header('{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}}', bytes(4)), "exactly dtype"),
        (header('{"a":{"dtype":"O","shape":[],"data_offsets":[0,4]}}', bytes(4)), "unknown dtype 'O'"),
        (header('{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(4)), "not a list of"),
        (header('{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4)), "not a list of"),
        (header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', bytes(4)), "does not fill"),
        (header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)), "lies at 4 to 8, after 0"),
        (header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(8)), "4 bytes after the last"),
        (header('{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}', b"\2"), "neither 0 nor 1"),
        (header('{"a":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}'), "'a': "),
        (header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', bytes(4)), "a name twice"),
        (header('{"a":{"dtype":"F32","shape":[[[1]]],"data_offsets":[0,4]}}', bytes(4)), "nested deeper"),
        (header('{"a":' + "[" * 20_000 + "]" * 20_000 + "}"), "nested deeper"),
        (header('{"__metadata__":{"a":1}}'), "object of strings"),
        (header('{"a":NaN}'), "NaN"),
        (header('{"a":1e999}'), "too large"),
        (header('{"a":' + "9" * 5000 + "}"), "not JSON"),
        (header('{"\udcff'.encode("utf-8", "surrogateescape").decode("latin-1") + '":1}'), "exactly dtype"),
    ],
)
def test_wrong_arrays_are_refused(data, says):
    with pytest.raises(strict.MalformedError, match=says):
        strict.arrays(data, size=10**6, header=10**5)


def test_sizes_are_limited():
    good = safetensors.numpy.save({"a": np.zeros(1000)})
    assert strict.arrays(good, size=len(good), header=1000)[0]["a"].shape == (1000,)
    with pytest.raises(strict.MalformedError, match="bytes, at most"):
        strict.arrays(good, size=len(good) - 1, header=1000)
    with pytest.raises(strict.MalformedError, match="at most 10 are read"):
        strict.json_object(b'{"a": 12345}', size=10, depth=3)


def test_a_message_larger_than_its_schema_is_not_looked_at():
    message = wire.encode({"x": np.zeros(10_000)})
    with pytest.raises(ValueError, match=r"is not readable: .* bytes, at most"):
        wire.decode(message, {"x": np.zeros(10)})


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"x": np.zeros(3), "y": np.zeros(1)}, r"has unknown \['y'\]"),
        ({"y": np.zeros(3)}, r"lacks \['x'\] and has unknown \['y'\]"),
        ({"x": np.zeros((3, 1))}, r"x arrived as float64\[3, 1\], expected float64\[3\]"),
        ({"x": np.zeros(6, np.float32)}, r"x arrived as float32\[6\], expected float64\[3\]"),
    ],
)
def test_messages_follow_their_schema(sent, says):
    with pytest.raises(ValueError, match=says):
        wire.decode(wire.encode(sent), {"x": np.zeros(3)})


def test_half_floats_travel():
    import jax.numpy as jnp

    sent = {"x": jnp.arange(3, dtype=jnp.bfloat16)}
    came = wire.decode(wire.encode(sent), sent)["x"]
    assert came.dtype == jnp.bfloat16
    np.testing.assert_array_equal(came, sent["x"])


def test_only_regular_files_of_some_size_are_read(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(files.DamagedError, match="not a regular file"):
        files.read(tmp_path / "pipe", size=10)
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(files.DamagedError, match="11 bytes, at most 10 are read"):
        files.read(tmp_path / "large", size=10)
    with pytest.raises(files.DamagedError, match="No such file"):
        files.read(tmp_path / "none", size=10)
