r"""Error feedback for messages: the server remembers what a codec left out of a field, and adds it when it sends again.

.. math:: \text{sent} = C(x_k + e_k), \qquad e_{k+1} = x_k + e_k - C(x_k + e_k), \qquad e_0 = 0

Over many rounds, the mean of what clients received is the mean of what the method wanted to send. Clients need no
memory. The errors are part of the server's state, so that checkpoints hold them and void rounds undo them.

`with_feedback` wraps a method whose messages have such a codec. Neither the method nor the handle know of it: the
wrapper computes what arrives by the keys of the exchange, as the handle does.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, PyTree

from fedspam._internal import prng
from fedspam._internal.trees import Key, Params, struct
from fedspam.federation.codecs.fields import Codecs
from fedspam.federation.cohorts import Cohort
from fedspam.federation.handle import Federation
from fedspam.federation.ledger import Plan
from fedspam.federation.program import Program
from fedspam.federation.works import Work

Errors = dict[str, dict[str, Any]]  # work -> array of a field -> what the codec has left out so far


class WithErrors(NamedTuple):
    """The state of a server with feedback: that of the method, and the errors of its messages."""

    own: PyTree
    errors: Errors


class Broadcast(NamedTuple):
    """A field as it is given to the handle, and as clients decode it."""

    sent: PyTree
    arrived: PyTree


@struct
class WithFeedback:
    """A method whose messages have error feedback. Use `with_feedback` to build it."""

    inner: Any
    codecs: Codecs
    first: Errors  # zeros

    def init(self, params: Params, key: Key, fed: Federation) -> WithErrors:
        corrected = Corrected(fed, self.codecs, self.first)
        state = self.inner.init(params, key, corrected)
        return WithErrors(state, corrected.errors)

    def round(self, state: WithErrors, key: Key, fed: Federation) -> tuple[WithErrors, Any]:
        corrected = Corrected(fed, self.codecs, state.errors)
        own, info = self.inner.round(state.own, key, corrected)
        return WithErrors(own, corrected.errors), info

    def params(self, state: WithErrors) -> Params:
        return self.inner.params(state.own)

    def client_state(self, params: Params) -> PyTree:
        return self.inner.client_state(params)


def with_feedback(method: Any, codecs: Codecs, plan: Plan) -> Any:
    """The method with feedback for its messages, or the method itself if no field of a message has `Feedback`."""
    errors = codecs.first_broadcast_errors(plan)
    return WithFeedback(method, codecs, errors) if errors else method


def own_state(state: Any) -> Any:
    """The state of the method itself."""
    return state.own if isinstance(state, WithErrors) else state


class Corrected:
    """A handle that adds the errors of earlier messages to each message, and notes those of this one."""

    def __init__(self, fed: Federation, codecs: Codecs, errors: Errors) -> None:
        self.sample, self.everyone, self.client = fed.sample, fed.everyone, fed.client
        self._fed, self._codecs = fed, codecs
        self._program = Program()
        self.errors = errors

    @property
    def accepted(self) -> Any:
        return self._fed.accepted

    @property
    def population_size(self) -> int | None:
        return self._fed.population_size

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        return self._fed.mean(cohort, work, **self._correct(cohort, work, message))

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        return self._fed.collect(cohort, work, **self._correct(cohort, work, message))

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        outside, programs = (self._program, self.errors), self._program.branches()

        def branch(which: int) -> Callable[[], Any]:
            def body() -> tuple[Any, Errors]:
                self._program = programs[which].fresh()
                try:
                    result = (yes, no)[which]()
                    return result, self.errors
                finally:  # a handle may try a branch more than once
                    self._program, self.errors = outside

            return body

        result, self.errors = self._fed.cond(predicate, branch(0), branch(1))
        return result

    def _correct(self, cohort: Cohort, work: Work, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with the errors of earlier ones. A field that the cohort holds stays as it was sent."""
        key = prng.fold_name(cohort.key, work.__name__)
        errors = dict(self.errors.get(work.__name__, {}))

        def send(name: str, known: Mapping[str, Broadcast]) -> Broadcast:
            arrived = {other: field.arrived for other, field in known.items()}
            sent = {**message, **{other: field.sent for other, field in known.items()}}
            wished = self._codecs.of_field(name, message, arrived).leaves({name: message[name]})[0]
            leaves, structure = self._codecs.of_field(name, sent, arrived).leaves({name: message[name]})

            corrected = []
            for (path, leaf, _, near), (_, _, _, plain) in zip(leaves, wished, strict=True):
                if near is not None and plain is not None:
                    leaf = leaf + (near[0] - plain[0])  # it moves with its neighbor, so that their difference stays
                corrected.append(leaf + errors[path] if path in errors else leaf)
            field = jax.tree.unflatten(structure, corrected)
            found = self._codecs.arriving(key, {**sent, **field})(name, arrived)

            for leaf, came, (path, _, _, near) in zip(corrected, jax.tree.leaves(found), leaves, strict=True):
                if path in errors:
                    errors[path] = leaf - came if near is None else (leaf - near[0]) - (came - near[1])
            return Broadcast(field[name], found)

        fields = self._program.deliver(cohort, message, send)[1]
        if errors:
            self.errors = {**self.errors, work.__name__: errors}
        return {name: field.sent for name, field in fields.items()}
