"""Programs: the works of a method as data, and the loop that runs them with NumPy.

A program is what JAX makes of a work when it traces it: a list of operations on numbered arrays, without any Python.
The client's loss and gradient are the only operations that are not arithmetic: the client itself answers them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedspam_client._shared._internal import strict
from fedspam_client.operations import OPERATIONS

Arrays = list[np.ndarray]
MOST_STEPS = 10_000_000  # of a loop: a damaged program must end too


class LightClient(Protocol):
    """What a program asks of a client. Parameters are lists of arrays in the order of the model's names."""

    def loss(self, params: Arrays, key: Any, number: Any) -> Any:
        """The mean loss over all rows; over a minibatch that the key draws; or over minibatch `number` of a pass."""
        ...

    def gradient(self, params: Arrays, key: Any, number: Any) -> tuple[Any, Arrays]:
        """The same loss, and its gradient."""
        ...

    def hessian(self, params: Arrays, along: Arrays, key: Any, number: Any) -> Arrays:
        """The product of its Hessian with a direction."""
        ...

    def solve(self, g: Arrays, step_size: Any) -> Arrays:
        """(H + I/step_size)^-1 g, for clients whose loss is quadratic."""
        ...

    def fact(self, name: str) -> Any:
        """Its weight, its number of minibatches, or a constant of its loss."""
        ...


class Step:
    """One operation of a program: which arrays it takes and makes, and which nobody needs after it."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.name, self.takes, self.makes = str(entry["do"]), list(entry["in"]), list(entry["out"])
        self.dtypes = [strict.dtype_of(dtype) for dtype in entry["dtypes"]]
        self.settings = dict(entry.get("with", {}))
        self.programs = {name: WorkProgram(part) for name, part in entry.get("programs", {}).items()}
        self.frees: list[int] = []
        if self.name not in OPERATIONS and self.name not in ("scan", "while", "cond") and self.name not in ASKED:
            raise ValueError(f"the operation {self.name!r} is not known to this client; update it, or use one with JAX")


class WorkProgram:
    """A list of steps. Arrays are numbered from the inputs on; constants have names."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.inputs, self.outputs = int(text["inputs"]), list(text["outputs"])
        self.steps = [Step(entry) for entry in text["steps"]]
        last: dict[int, Step] = {}
        for step in self.steps:
            last |= {place: step for place in (*step.takes, *step.makes) if isinstance(place, int)}
        for place, step in last.items():
            if place not in self.outputs:
                step.frees.append(place)

    def __call__(self, constants: Mapping[str, Any], client: LightClient, inputs: Sequence[Any]) -> Arrays:
        if len(inputs) != self.inputs:
            raise ValueError(f"the program takes {self.inputs} arrays, {len(inputs)} were given")
        found: dict[int, Any] = dict(enumerate(inputs))
        value = lambda place: found[place] if isinstance(place, int) else constants[place]
        for step in self.steps:
            results = _done(step, constants, client, [value(place) for place in step.takes])
            for place, dtype, result in zip(step.makes, step.dtypes, results, strict=True):
                found[place] = np.asarray(result, dtype)
            for place in step.frees:
                found.pop(place, None)
        return [value(place) for place in self.outputs]


def _done(step: Step, constants: Mapping[str, Any], client: LightClient, arguments: Arrays) -> Sequence[Any]:
    if step.name in OPERATIONS:
        result = OPERATIONS[step.name](step.settings, *arguments)
        return result if isinstance(result, list) else [result]
    if step.name in ASKED:
        return ASKED[step.name](client, step.settings, arguments)
    run = {name: lambda inputs, part=part: part(constants, client, inputs) for name, part in step.programs.items()}
    return LOOPS[step.name](step.settings, run, arguments)


def _while(settings: Mapping[str, Any], run: Mapping[str, Any], arguments: Arrays) -> Arrays:
    of_test, of_body = settings["test_consts"], settings["body_consts"]
    fixed, carry = arguments[: of_test + of_body], arguments[of_test + of_body :]
    for _ in range(MOST_STEPS):
        if not run["test"]([*fixed[:of_test], *carry])[0]:
            return carry
        carry = run["body"]([*fixed[of_test:], *carry])
    raise ValueError(f"a loop of the work did not end after {MOST_STEPS} steps")


def _scan(settings: Mapping[str, Any], run: Mapping[str, Any], arguments: Arrays) -> Arrays:
    consts, carried, length = settings["consts"], settings["carry"], settings["length"]
    fixed, carry, rows = arguments[:consts], arguments[consts : consts + carried], arguments[consts + carried :]
    order = range(length - 1, -1, -1) if settings["reverse"] else range(length)
    stacked: list[Arrays] = []
    for place in order:
        results = run["body"]([*fixed, *carry, *(row[place] for row in rows)])
        carry = results[:carried]
        stacked.append(results[carried:])
    if settings["reverse"]:
        stacked.reverse()
    return [*carry, *(np.stack(parts) for parts in zip(*stacked, strict=True))]


def _cond(settings: Mapping[str, Any], run: Mapping[str, Any], arguments: Arrays) -> Arrays:
    which = int(np.clip(int(arguments[0]), 0, len(run) - 1))
    return run[str(which)](arguments[1:])


LOOPS = {"while": _while, "scan": _scan, "cond": _cond}


def _parts(settings: Mapping[str, Any], arguments: Arrays) -> tuple[Arrays, Any, Any]:
    """Parameters, the key of the minibatch, and the number of the minibatch; None where the loss is over all rows."""
    count = len(arguments) - settings["seeded"] - settings["numbered"]
    key, number = (*arguments[count:], None, None)[:2]
    return arguments[:count], key, number


def _hessian(client: LightClient, settings: Mapping[str, Any], arguments: Arrays) -> Arrays:
    both, key, number = _parts(settings, arguments)
    return client.hessian(both[: len(both) // 2], both[len(both) // 2 :], key, number)


def _gradient(client: LightClient, settings: Mapping[str, Any], arguments: Arrays) -> Arrays:
    value, gradient = client.gradient(*_parts(settings, arguments))
    return [value, *gradient]


ASKED = {
    "client_loss": lambda client, settings, arguments: [client.loss(*_parts(settings, arguments))],
    "client_gradient": _gradient,
    "client_hessian": _hessian,
    "client_solve": lambda client, settings, arguments: client.solve(arguments[:-1], arguments[-1]),
    "client_fact": lambda client, settings, arguments: [client.fact(settings["name"])],
}
