"""The exchanges of a round in their order, and which fields each cohort already holds."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal import prng
from fedspam.federation.codecs.fields import in_order
from fedspam.federation.cohorts import Cohort
from fedspam.federation.works import Work


class Program:
    """The exchanges of one round in program order: their labels, and the fields that each cohort already holds.

    A field that was sent to a cohort earlier in the round is not sent again. So SPAM-PP's prox client, a member of the
    cohort, receives g_k alone.
    """

    def __init__(self, scope: str = "") -> None:
        self._scope = scope  # the branches entered so far: '', '@yes', '@no', ...
        self._calls: dict[str, int] = {}
        self._conditions = 0
        self._held: dict[object, dict[str, tuple[list[Any], Any]]] = {}  # the arrays as sent, and as they arrived
        self._met: set[object] = set()  # origins of the cohorts that had an exchange

    def label(self, work: Work) -> str:
        """The name of this exchange within the round."""
        name = work.__name__
        self._calls[name] = self._calls.get(name, 0) + 1
        return name + (f".{self._calls[name]}" if self._calls[name] > 1 else "") + self._scope

    def branches(self) -> tuple["Program", "Program"]:
        """The programs inside the two branches of a condition. Fields sent inside are not held after it."""
        self._conditions += 1
        number = str(self._conditions) if self._conditions > 1 else ""
        return self._inside(f"@yes{number}"), self._inside(f"@no{number}")

    def fresh(self) -> "Program":
        """The same program, about to begin."""
        return self._inside("")

    def _inside(self, branch: str) -> "Program":
        program = Program(self._scope + branch)
        program._held = {origin: dict(fields) for origin, fields in self._held.items()}
        program._met = set(self._met)
        return program

    def seconds(self, cohort: Cohort, label: str, delay: Callable[..., Any]) -> Any:
        """How long an exchange waits for its slowest client. The draw of a cohort has timed its first exchange."""
        seconds, key = cohort.seconds, prng.fold_name(cohort.key, f"delay of {label}")
        if seconds is None or cohort.origin in self._met:
            seconds = jax.vmap(lambda id: delay(jax.random.fold_in(key, id), id))(cohort.ids)
        self._met.add(cohort.origin)
        return jnp.max(seconds)

    def deliver(
        self, cohort: Cohort, message: Mapping[str, Any], send: Callable[[str, dict[str, Any]], Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields that the cohort does not hold yet, and all fields as they arrived when they were sent.

        ``send(name, arrived)`` returns how a field arrives, beside those that have arrived. It is called only
        for fields that are sent now: of the others, clients keep what they have.
        """
        held = self._held.setdefault(cohort.origin, {})
        fresh, arrived = {}, {}
        for name in in_order(message):
            leaves = jax.tree.leaves(message[name])
            if name not in held or not same_objects(held[name][0], leaves):
                fresh[name] = message[name]
                held[name] = (leaves, send(name, arrived))
            arrived[name] = held[name][1]
        return {name: fresh[name] for name in message if name in fresh}, {name: arrived[name] for name in message}


def same_objects(known: list[Any] | None, leaves: list[Any]) -> bool:
    """Whether a field holds the very arrays that were sent before."""
    return known is not None and len(known) == len(leaves) and all(map(operator.is_, known, leaves))


def take_branch(fed: Any, predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`cond` outside compiled code: only the branch that is taken runs."""
    program, taken = fed.program, bool(predicate)
    fed.program = program.branches()[0 if taken else 1]
    try:
        return yes() if taken else no()
    finally:
        fed.program = program
