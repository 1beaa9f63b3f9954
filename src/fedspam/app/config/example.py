"""An example of a configuration, and the list of all settings."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from fedspam.app.config import schema
from fedspam.app.config.methods import METHODS, PROX, algorithm_section
from fedspam.app.config.parse import PLAIN
from fedspam.app.config.type_text import about, choices, rule
from fedspam.app.config.write import value_text

EXAMPLE = """\
# An experiment of fedspam. Run it:      fedspam run experiment.toml
# Change a setting for one run:          fedspam run experiment.toml --algorithm.cohort_size 20 --rounds 200
# Every setting with its default:        fedspam run --settings

[data]
kind = "synthetic"        # csv, npz, libsvm, leaf, femnist, digits, synthetic, quadratics, random_ridge, problem
clients = 30
alpha = 0.5               # how much the clients' models differ
beta = 0.5                # how much their features differ
test = 0.2                # share of every client's rows that is held out

# A table of your own instead:
# kind = "csv"
# path = "visits.csv"     # relative to the folder of this file
# client = "hospital"     # the column that names the client of a row
# label = "ill"           # the column to predict

[model]
name = "softmax"          # logistic, softmax, linear, mlp, femnist_cnn, leaf_cnn
regularization = 0.001

# A loss of your own instead:
# function = "my_model.py:loss"

[algorithm]
name = "spam_pp"          # a key of `fedspam methods`; below it the arguments of that method
cohort_size = 10          # clients per round
step_size = 0.2           # a number, a list with one per round, or { schedule = "power", value = 1.0, exponent = 0.33 }
fresh_weight = 0.3

[prox]
name = "lbfgs"            # lbfgs, newton, gradient, backtracking, accelerated, adaptive, adam, exact
steps = 20

[run]
rounds = 100
seed = 0
segment = 25              # rounds between two checkpoints

[evaluate]
every = 5                 # rounds between two evaluations of loss and accuracy
target = 0.8              # accuracy to reach; the summary says in which round and at what cost

[track]
to = []                   # "tensorboard", "mlflow", "wandb", "trackio"
"""


def sections() -> Iterator[tuple[str, str, type[Struct]]]:
    """Every section except `[algorithm]`: its heading, its name, and the struct with its settings."""
    yield from ((f"[data] kind = {name}", "data", kind) for name, kind in schema.DATA.items())
    yield "[clients]", "clients", schema.Clients
    yield "[model]", "model", schema.Function
    yield from ((f"[model] name = {name}", "model", kind) for name, kind in schema.MODELS.items())
    yield from ((f"[prox] name = {name}", "prox", kind) for name, kind in PROX.items())
    yield from ((f"[{name}]", name, PLAIN[name]) for name in ("run", "evaluate", "track"))


def settings_table() -> str:
    """Every setting, section by section, as text."""
    lines = []
    for heading, _, kind in sections():
        lines.append(heading)
        for field in msgspec.structs.fields(kind):
            setting = f"  {field.name} = {_default(field) or '...'}".ljust(34)
            lines.append(f"{setting}  # {about(field.type)} ({rule(field.type)})")
        lines.append("")
    lines.append("[algorithm] name = one of `fedspam methods`, and its arguments:")
    for name in METHODS:
        fields = msgspec.structs.fields(algorithm_section(name))
        settings = ", ".join(each.name if each.required else f"{each.name} = {_default(each)}" for each in fields)
        lines.append(f"  {name}: {settings}")
    return "\n".join(lines) + "\n"


def setting_choices() -> dict[str, list[str]]:
    """Every setting by its dotted name, with the words that it accepts, if it accepts any."""
    found: dict[str, list[str]] = {}
    structs = [(name, kind) for _, name, kind in sections()]
    structs += [("algorithm", algorithm_section(name)) for name in METHODS]
    for name, kind in structs:
        for field in msgspec.structs.fields(kind):
            words = found.setdefault(f"{name}.{field.name}", [])
            words += [word for word in choices(field.type) if word not in words]
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value: Any = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return str(value.__struct_config__.tag) if isinstance(value, Struct) else value_text(value)
