"""The configuration: what is written is what is read, flags go before the file, and errors say what was meant."""

import inspect
import string
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import msgspec
import pytest
from hypothesis import given, strategies as st

from fedspam import solvers
from fedspam._internal import describe
from fedspam._internal.nearest import nearest
from fedspam.app import config
from fedspam.app.config import ConfigError, decode, methods, parse, read, schema, text as words, to_toml
from fedspam.app.experiment import build
from fedspam.methods import METHODS, Adam, Epochs, fedopt

SMALL = {"data": "ridge", "method": {"name": "spam", "step_size": 0.5, "fresh_weight": 0.2}}


def with_(**sections: Any) -> dict[str, Any]:
    return {**SMALL, **sections}


def test_the_example_is_read_and_written_back() -> None:
    found = decode(tomllib.loads(config.EXAMPLE))
    assert schema.name_of(found.data) == "synthetic"
    assert decode(tomllib.loads(to_toml(found, "a head\nof two lines"))) == found
    assert to_toml(found, "a head").startswith("# a head\n")


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)


@given(st.dictionaries(st.text(string.printable), st.dictionaries(st.text(), values, max_size=4), max_size=4))
@pytest.mark.slow
def test_toml_reads_what_was_written(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


# numbers that these arguments may have whatever the method
VALUES = {
    "step_size": 0.5,
    "fresh_weight": 0.25,
    "local_steps": 2,
    "many": 8,
    "period": 4,
    "pull": 0.4,
    "probability": 0.3,
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_made_from_its_section(name: str) -> None:
    """A section made of the registry's example gives the very struct that the example gives, and survives TOML."""
    row = METHODS[name]
    plain = {key: value for key, value in row.example.items() if isinstance(value, bool | int | float | str)}
    plain |= {key: VALUES[key] for key in row.example if key in VALUES and key not in plain}  # schedules
    if "base" in row.example:
        plain["base"] = words.tables_of(methods.base_section(row.example["base"]))
    solved = {"prox": "exact"} if methods.takes_prox(name) else {}
    found = decode(with_(method={"name": name, **plain}, **solved))
    assert decode(tomllib.loads(to_toml(found))) == found
    objects = {"base": row.example["base"]} if "base" in row.example else {}
    objects |= {"solver": solvers.Exact()} if solved else {}
    objects |= {key: None for key, value in row.example.items() if value is None}  # left out of the file
    made = build.build_method(found.method, found.prox)
    assert describe.describe(made) == describe.describe(row.build(**(plain | objects)))


def test_rows_of_one_constructor_begin_with_their_own_option() -> None:
    """What is left out is what Python leaves out, but for names that stand for an option."""
    base = {"name": "mime", "cohort_size": 2, "local_steps": 1, "local_rate": 1.0}
    made = {name: decode(with_(method=base | {"name": name})).method for name in ("mime", "mime_adam", "mime_lite")}
    assert made["mime"].base is None  # type: ignore[attr-defined]
    assert made["mime_lite"].base is None  # type: ignore[attr-defined]
    assert isinstance(made["mime_adam"].base, methods.BASES[Adam])  # type: ignore[attr-defined]
    option = [decode(with_(method=base | {"name": name})).method for name in ("scaffold", "scaffold_gradient")]
    assert [section.option for section in option] == ["steps", "gradient"]  # type: ignore[attr-defined]


def test_schedules() -> None:
    power = {"schedule": "power", "value": 2.0, "exponent": 0.5}
    asked = {
        "name": "spam_pp",
        "cohort_size": 2,
        "step_size": power,
        "fresh_weight": {"schedule": "theorem", "delta": 0.1},
    }
    made = build.build_method(decode(with_(method=asked)).method, None, 5)
    gamma = float(made.step_size(3))
    assert gamma == pytest.approx(1.0)
    effective = 2 * 4 / 3  # B (n - 1) / (n - B)
    squared = 96 * (0.1 * gamma) ** 2
    assert float(made.fresh_weight(3)) == pytest.approx(squared / (squared + effective))
    two = {"method": SMALL["method"] | {"step_size": [0.5, 0.25]}, "run": SMALL.get("run", {}) | {"rounds": 2}}
    listed = build.build_method(decode(with_(**two)).method, None)
    assert [float(listed.step_size(k)) for k in range(3)] == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("name", methods.PROX)
def test_every_solver_is_made_from_its_section(name: str) -> None:
    found = decode(with_(prox=name)).prox
    assert isinstance(found, methods.PROX[name])
    solver = build.build_solver(found)
    assert callable(solver)
    if "steps" in found.__struct_fields__:
        assert build.build_solver(decode(with_(prox={"name": name, "steps": 7})).prox).steps == 7  # type: ignore[union-attr]


def test_tolerances() -> None:
    stop = lambda **asked: build.build_solver(decode(with_(prox={"name": "lbfgs", **asked})).prox).stop  # type: ignore[union-attr]
    assert isinstance(stop(), solvers.Relative)
    assert stop(theta=0.1).theta == 0.1
    assert stop(epsilon=1e-6).epsilon == 1e-6


def write(folder: Path, text: str, name: str = "experiment.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, config.EXAMPLE)
    assert read(path).run.rounds == 100
    flags = [
        ("method.cohort_size", "20"),
        ("run.rounds", "200"),
        ("evaluate.stop", "true"),
        ("track.name", "7"),  # text, though it looks like a number
        ("run.record", '["void"]'),
        ("track.to", "tensorboard, wandb"),  # a list with commas
        ("method.step_size.schedule", "power"),
        ("method.step_size.value", "1"),
        ("method.step_size.exponent", "0.5"),
    ]
    with pytest.raises(ConfigError, match="the file has a value here, not a table"):
        read(path, flags)  # step_size is a number in the file
    path = write(tmp_path, config.EXAMPLE.replace("step_size = 0.2", "# "))
    found = read(path, flags)
    assert (found.method.cohort_size, found.run.rounds) == (20, 200)  # type: ignore[attr-defined]
    assert (found.evaluate.stop, found.track.name, found.run.record) == (True, "7", ["void"])
    assert found.track.to == ["tensorboard", "wandb"]
    assert found.method.step_size == methods.PowerSetting(value=1.0, exponent=0.5)  # type: ignore[attr-defined]


def test_epochs_and_the_optimizer_of_clients() -> None:
    plain = {"name": "fedavg", "cohort_size": 2, "local_rate": 0.1}
    momentum = {"name": "momentum", "momentum": 0.5, "weight_decay": 0.01}
    found = decode(with_(method={**plain, "local_steps": {"epochs": 3, "stragglers": 0.5}, "optimizer": momentum}))
    assert decode(tomllib.loads(to_toml(found))) == found
    made = build.build_method(found.method, None)
    assert made.training.local_steps == Epochs(3, stragglers=0.5)
    update, _ = made.training.optimizer.update(1.0, made.training.optimizer.init(2.0), 2.0)
    assert float(update) == pytest.approx(1.02)
    found = decode(with_(method={**plain, "local_steps": 3, "optimizer": {"name": "adam"}}))
    assert build.build_method(found.method, None).training.optimizer is not None
    half = decode(with_(method={**plain, "local_steps": {"epochs": 0.5}}))
    assert build.build_method(half.method, None).training.local_steps == Epochs(0.5)
    with pytest.raises(ConfigError, match="local_steps"):
        decode(with_(method={**plain, "local_steps": {"epochs": 0}}))
    with pytest.raises(ConfigError, match="local_steps"):  # a method that only takes a number of steps
        decode(with_(method={**plain, "name": "ditto", "local_steps": {"epochs": 1}}))


def test_the_optimizer_of_the_server() -> None:
    plain = {"name": "fedopt", "cohort_size": 2, "local_rate": 0.1, "local_steps": 3}
    for name, (make, defaults) in methods.SERVER_OPTIMIZERS.items():
        table = {"name": name, "learning_rate": 0.5, **defaults}
        found = decode(with_(method={**plain, "server_optimizer": table}))
        assert decode(tomllib.loads(to_toml(found))) == found
        made = build.build_method(found.method, None)
        assert describe.describe(made) == describe.describe(fedopt(2, 3, 0.1, make(0.5, **defaults)))
    with pytest.raises(ConfigError, match=r"server_optimizer = .* must be 'adagrad'"):
        decode(with_(method={**plain, "server_optimizer": {"name": "adam", "learning_rate": -1.0}}))
    with pytest.raises(ConfigError, match=r"did you mean 'adam'"):
        decode(with_(method={**plain, "server_optimizer": "adm"}))


def test_a_word_replaces_a_section(tmp_path: Path) -> None:
    path = write(tmp_path, config.EXAMPLE)
    flags = [
        ("method", "fedavg"),
        ("method.cohort_size", "3"),
        ("method.local_steps", "2"),
        ("method.local_rate", "0.1"),
    ]
    with pytest.raises(ConfigError, match="fedavg solves no prox; remove the section"):
        read(path, flags)
    found = read(None, [("data", "ridge"), *flags])
    assert (found.data.name, schema.name_of(found.method)) == ("ridge", "fedavg")
    assert read(None, [("data", "digits"), ("model", "softmax"), *flags]).data == schema.Digits()


def test_paths_of_a_file_are_seen_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(tmp_path)
    text = 'model = "../my.py:loss"\n[data]\nkind = "csv"\npath = "a.csv"\nlabel = "y"\nclient = "c"\n'
    path = write(inner, text + '[method]\nname = "sppm"\nstep_size = 1\n')
    found = read(path)
    assert found.data.path == str(inner / "a.csv")
    assert found.model.function == str(tmp_path / "my.py") + ":loss"
    # those of flags from here; a run folder that keeps them is resumed from anywhere
    assert read(path, [("data.path", "7")]).data.path == str(tmp_path / "7")
    assert read(path, [("model", "my.py:loss")]).model.function == str(tmp_path / "my.py") + ":loss"


def test_a_table_is_data_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [("data.label", "ill"), ("model", "softmax"), ("method", "sppm"), ("method.step_size", "1")]
    for name in ("visits.csv", "visits.CSV.gz", "visits.parquet"):
        found = read(None, [("data", name), *flags]).data
        assert (schema.name_of(found), found.path, found.label) == ("table", str(tmp_path / name), "ill")
    with pytest.raises(ConfigError, match=r"data\.label is missing"):
        read(None, [("data", "visits.csv"), *flags[1:]])


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"run": {"round": 3}}, "run.round = 3 is not a setting of run, which has rounds, .*; did you mean 'rounds'?"),
        ({"model": {"name": "mlp", "batch": 20}}, "model.batch = 20 is not .*; did you mean 'clients.batch'?"),
        ({"model": {"name": "mlp", "seed": 3}}, "model.seed = 3 is .*; did you mean 'clients.seed or run.seed'?"),
        ({"run": {"rounds": "many"}}, "run.rounds = 'many' must be a whole number of at least 1"),
        ({"run": {"rounds": 1.5}}, "run.rounds = 1.5 must be a whole number of at least 1"),
        ({"watch": {"growth": float("nan")}}, "watch.growth = nan must be a number of at least 0"),
        ({"method": {"name": "sppm", "step_size": [1.0, float("inf")]}}, r"step_size = \[1.0, inf\] must be"),
        ({"run": {"rounds": True}}, "run.rounds = True must be a whole number"),
        ({"run": {"precision": "float23"}}, "'float32' or 'float64'; did you mean 'float32'?"),
        ({"run": 3}, r"run = 3 must be a section: \[run\]"),
        ({"rnu": {}}, r"there is no section \[rnu\]; .*; did you mean \[run\]?"),
        ({"rounds": 3}, r"there is no section \[rounds\]; .*rounds belongs into \[run\]"),
        ({"run": {"growth": 5}}, "run.growth = 5 is not a setting of run, .*; did you mean 'watch.growth'?"),
        ({"every": 5}, r"there is no section \[every\]; .*; every belongs into \[keep\] or \[evaluate\]"),
        ({"data": {"kind": "cvs"}}, "data.kind = 'cvs' is unknown; did you mean 'csv'?"),
        ({"data": {}}, "data.kind is missing; it must be one of csv"),
        ({"model": "softmaxx", "data": "digits"}, "model.name = 'softmaxx' is unknown; did you mean 'softmax'?"),
        ({"data": "digits"}, "model is missing; name one of logistic"),
        ({"model": "softmax"}, "data of kind 'problem' has its own loss"),
        ({"method": {"name": "spam"}}, "method.step_size is missing: method of name 'spam' needs it"),
        ({"method": {"name": "spam", "step_size": "x", "fresh_weight": 1}},
         r"a number or a table \{schedule = 'power'"),
        ({"track": {"to": ["tensorbord"]}}, "'tensorboard'"),
        ({"clients": {"split": "iid"}}, "data of kind 'problem' has its own clients; remove the setting"),
        ({"evaluate": {"metric": "loss"}}, "evaluate.target is missing: give the loss to reach"),
    ],
)  # fmt: skip
def test_errors_say_what_was_meant(tree: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        decode(with_(**tree))


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        decode(with_(run={"rounds": 0, "sede": 1}, evaluate={"every": -1}))
    assert len(caught.value.findings) == 3
    many = {f"key{i}": 0 for i in range(20)}
    with pytest.raises(ConfigError, match=r"\.\.\. and 14 more") as caught:
        decode(with_(run=many))
    assert str(caught.value).count("\n") < 10


@pytest.mark.parametrize("text", ["rounds = ", "[run\n", "\x00", 'a = "\ud800"', "a = 1\na = 2", "[" * 5000])
def test_what_is_no_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match="is not TOML"):
        read(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, "", "experiment.toml")
    with pytest.raises(ConfigError, match=r"there is no file .*; did you mean .*experiment.toml\?"):
        read(tmp_path / "experimnet.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "long.toml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "long.toml")


def test_differences() -> None:
    one, other = decode(SMALL), decode(with_(run={"rounds": 5, "seed": 3}))
    assert config.differences(one, other, frozenset({"run.rounds"})) == ["run.seed changed from 0 to 3"]
    assert config.differences(one, other, frozenset({"run"})) == []


def test_rules_in_words() -> None:
    assert words.rule(Annotated[float, msgspec.Meta(ge=0, lt=1)]) == "a number of at least 0 and less than 1"
    assert words.rule(bool) == "true or false"
    assert words.rule(Literal["a"] | None) == "'a'"
    assert nearest("zzz", ["rounds"]) is None


def test_the_list_of_settings_names_every_setting() -> None:
    table = config.settings_table()
    kinds = [*schema.DATA.values(), *schema.MODELS.values(), *methods.PROX.values()]
    for kind in [*kinds, *parse.PLAIN.values(), schema.Function]:
        for field in msgspec.structs.fields(kind):
            assert f"  {field.name} = " in table
            assert words.about(field.type), f"{kind.__name__}.{field.name} has no line about it"
    for name, row in METHODS.items():
        (line,) = (line for line in table.splitlines() if line.startswith(f"  {name}: "))
        for argument in inspect.signature(row.build).parameters:
            assert argument in ("solver", "optimizer") or argument in line


def test_float_settings_take_whole_numbers() -> None:
    found = decode(with_(method={"name": "spam", "step_size": 1, "fresh_weight": 1}))
    assert isinstance(found.method.step_size, float)  # type: ignore[attr-defined]
    assert jax.tree.leaves(build.build_method(found.method, None))
