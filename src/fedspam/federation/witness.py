"""Repeat one round client by client, to find the reply that is not finite."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedspam._internal import prng, trees
from fedspam.clients import Population
from fedspam.federation.aggregation import Mean, Rule
from fedspam.federation.codecs import NO_CODECS, Codecs
from fedspam.federation.cohorts import Cohort, Draws, Replay
from fedspam.federation.program import Program, take_branch
from fedspam.federation.void import sound
from fedspam.federation.works import Work, answer, terms_of


class Trouble(NamedTuple):
    """What is not finite: parts of a client's reply, of the aggregate of replies, or of the server's state."""

    exchange: str | None  # None: the server's own computation
    client: int | None  # None: all replies were finite, their aggregate is not
    parts: tuple[str, ...]

    def __str__(self) -> str:
        names = f" ({', '.join(self.parts)})" if any(self.parts) else ""
        if self.exchange is None:
            return f"the server's own step made its state infinite or NaN{names}"
        if self.client is None:
            return f"exchange {self.exchange!r}: every reply is finite, their aggregate is not{names}"
        return f"exchange {self.exchange!r}: client {self.client} replied with infinity or NaN{names}"


@dataclass(eq=False, repr=False)
class Witness(Draws):
    """The handle that runs one client at a time, outside compiled code, and notes every reply that is not finite."""

    population: Population
    memory: PyTree = ()
    _: KW_ONLY
    replay: Replay | None = None
    round: int = 0
    aggregate: Rule | None = None
    codecs: Codecs = NO_CODECS

    def __post_init__(self) -> None:
        super().__init__(self.population, self.replay, self.round)
        self._rule = self.aggregate or Mean()
        self.program = Program()
        self.accepted = 0
        self.troubles: list[Trouble] = []

    def troubles_of(self, step: Callable[["Witness"], Any]) -> list[Trouble]:
        """What is not finite in the first exchange of a step that has such a reply, or in the state that it returns."""
        parts = infinite_parts(step(self))
        return self.troubles or ([Trouble(None, None, parts)] if parts else [])

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        replies, accepted, label = self._ask(cohort, work, message)
        reply = jax.tree.map(lambda leaf: leaf[0], replies) if cohort.size == 1 else self._rule(replies, accepted)
        if not self.troubles and not bool(sound(reply)):
            self.troubles.append(Trouble(label, None, infinite_parts(reply)))
        return reply

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        return self._ask(cohort, work, message)[:2]

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return take_branch(self, predicate, yes, no)

    def _ask(self, cohort: Cohort, work: Work, message: Mapping[str, Any]) -> tuple[Any, Bool[Array, " cohort"], str]:
        label, key = self.program.label(work), prng.fold_name(cohort.key, work.__name__)
        stateful = terms_of(work).stateful
        message = self.program.deliver(cohort, message, self.codecs.arriving(key, message))[1]

        @jax.jit
        def one(id: Any, memory: Any, message: Any) -> tuple[Any, Any]:
            before = jax.tree.map(lambda leaf: leaf[id], memory) if stateful else ()
            reply, memory = answer(self.population, work, key, id, before, message, self.codecs)
            return self.codecs.replied(jax.random.fold_in(key, id), work.__name__, reply, message), memory

        replies, accepted, found = [], [], []
        for id in cohort.ids:
            reply, memory = one(id, self.memory, dict(message))
            accepted.append(bool(sound(reply)))
            replies.append(reply)
            if not accepted[-1]:
                found.append(Trouble(label, int(id), infinite_parts(reply)))
            elif stateful:
                self.memory = jax.tree.map(lambda all, row: all.at[id].set(row), self.memory, memory)
        if not self.troubles:  # later troubles follow from the first
            self.troubles = found
        self.accepted = sum(accepted)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *replies), jnp.array(accepted), label


def infinite_parts(tree: PyTree) -> tuple[str, ...]:
    """The names of the arrays in a tree that are not finite, or whose squares are not."""
    named = zip(trees.names(tree), jax.tree.leaves(tree), strict=True)
    return tuple(name for name, leaf in named if not bool(trees.finite(leaf)))
