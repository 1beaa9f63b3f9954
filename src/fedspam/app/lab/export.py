"""A setting of the lab as a Python program, or as a configuration for `fedspam run`."""

from typing import Any

from fedspam.app.config import to_toml
from fedspam.app.lab.runs import CLIENTS, DIMENSION, PROX, RACERS, ROUNDS, SOLVERS, LabSetting, numbers
from fedspam.app.named_problems import Problem


def as_python(setting: LabSetting, problem: Problem) -> str:
    """A program that runs the first seed of the curves."""
    given = [f"{name}={value!r}" for name, value in numbers(setting, problem).items()]
    imports = [f"from fedspam.methods import {setting.method}", "from fedspam.problems import ridge"]
    if RACERS[setting.method] == PROX:
        solver = SOLVERS[setting.solver].__name__
        given.append(f"solver={solver}({setting.steps if setting.solver == 'gradient' else ''})")
        imports.append(f"from fedspam.solvers import {solver}")
    lines = [
        "import jax",
        "import jax.numpy as jnp",
        "from fedspam import simulate",
        *imports,
        "",
        'jax.config.update("jax_enable_x64", True)',
        f"clients, start = ridge({setting.seed}, clients={CLIENTS}, dimension={DIMENSION}, scale={setting.scale!r})",
        f"# delta = {problem.delta:.4g}, L = {problem.smoothness:.4g}",
        f"method = {setting.method}({', '.join(given)})",
        'error = lambda x: {"gradient": jnp.linalg.norm(clients.gradient(x))}',
        f"run = simulate(method, clients, jnp.asarray(start), rounds={ROUNDS}, key={setting.seed}, probe=error)",
        'print(run.probes["gradient"][-1] / run.probes["gradient"][0])',
    ]
    return "\n".join(lines) + "\n"


def as_toml(setting: LabSetting, problem: Problem) -> str:
    """The same as a configuration: ``fedspam run experiment.toml``."""
    sizes = {"clients": CLIENTS, "dimension": DIMENSION, "scale": setting.scale, "seed": setting.seed}
    sections: dict[str, dict[str, Any]] = {
        "data": {"kind": "random_ridge", **sizes},
        "method": {"name": setting.method, **numbers(setting, problem)},
    }
    if RACERS[setting.method] == PROX:
        steps = {"steps": setting.steps} if setting.solver == "gradient" else {}
        sections["prox"] = {"name": setting.solver, **steps}
    sections["run"] = {"rounds": ROUNDS, "seed": setting.seed, "precision": "float64"}
    head = f"From fedspam lab: delta = {problem.delta:.4g}, L = {problem.smoothness:.4g}\nfedspam run experiment.toml"
    return to_toml(sections, head)
