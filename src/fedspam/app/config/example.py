"""An example of a configuration, and the list of all settings."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from fedspam.app.config import schema
from fedspam.app.config.parse import PLAIN
from fedspam.app.config.type_text import about, rule

EXAMPLE = """\
# An experiment of fedspam. Run it:      fedspam run experiment.toml
# Change a setting for once:             fedspam run experiment.toml --algorithm.cohort_size 20 --rounds 200
# Every setting with its default:        fedspam run --settings

[data]
kind = "synthetic"        # csv, npz, libsvm, leaf, femnist, digits, synthetic, quadratics, random_ridge, problem
clients = 30
alpha = 0.5               # how much the clients' models differ
beta = 0.5                # how much their features differ
test = 0.2                # share of every client's rows that is held out

# A table of your own instead:
# kind = "csv"
# path = "visits.csv"     # seen from the folder of this file
# client = "hospital"     # the column that tells whose row it is
# label = "ill"           # the column to predict

[model]
name = "softmax"          # logistic, softmax, linear, mlp, femnist_cnn, leaf_cnn
regularization = 0.001

# A loss of your own instead:
# function = "my_model.py:loss"

[algorithm]
name = "spam_pp"          # a key of `fedspam methods`; below it what that method takes
cohort_size = 10               # clients asked in a round
step_size = 0.2           # a number, a list with one a round, or { schedule = "power", value = 1.0, exponent = 0.33 }
fresh_weight = 0.3

[prox]
name = "lbfgs"            # lbfgs, newton, gradient, backtracking, accelerated, adaptive, adam, exact
steps = 20

[run]
rounds = 100
seed = 0
segment = 25              # rounds between two checkpoints

[evaluate]
every = 5                 # rounds between two looks at loss and accuracy
target = 0.8              # accuracy; what was paid until it was reached is told

[track]
to = []                   # "tensorboard", "mlflow", "wandb", "trackio"
"""


def settings() -> Iterator[tuple[str, str, str, str, str]]:
    """Every setting of the fixed sections: section and kind, key, rule, default, what it is."""
    for name, kind in schema.DATA.items():
        yield from _of(f"[data] kind = {name}", kind)
    yield from _of("[clients]", schema.Clients)
    yield from _of("[model]", schema.Function)
    for name, kind in schema.MODELS.items():
        yield from _of(f"[model] name = {name}", kind)
    from fedspam.app.config.methods import PROX

    for name, kind in PROX.items():
        yield from _of(f"[prox] name = {name}", kind)
    for name in ("run", "evaluate", "track"):
        yield from _of(f"[{name}]", PLAIN[name])


def settings_table() -> str:
    """Every setting, section by section, as text."""
    lines, last = [], ""
    for section, key, what, default, words in settings():
        if section != last:
            lines += ["", section] if lines else [section]
            last = section
        lines.append(f"  {key} = {default or '...'}".ljust(34) + f"  # {words} ({what})")
    lines += ["", "[algorithm] name = one of `fedspam methods`, and its arguments:"]
    from fedspam.app.config.methods import METHODS, algorithm_section

    for name in METHODS:
        found = msgspec.structs.fields(algorithm_section(name))
        told = ", ".join(field.name if field.required else f"{field.name} = {_default(field)}" for field in found)
        lines.append(f"  {name}: {told}")
    return "\n".join(lines) + "\n"


def _of(section: str, kind: type[Struct]) -> Iterator[tuple[str, str, str, str, str]]:
    for field in msgspec.structs.fields(kind):
        yield section, field.name, rule(field.type), _default(field), about(field.type)


def _default(field: msgspec.structs.FieldInfo) -> str:
    from fedspam.app.config.write import toml_value

    if field.default_factory is not msgspec.NODEFAULT:
        return toml_value(field.default_factory())
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        return ""
    if isinstance(value, Struct):
        return str(value.__struct_config__.tag)
    return "none" if value is None else toml_value(value)
