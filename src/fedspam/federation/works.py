"""What runs on a client: the works of a method, what they declare, and how one client does a work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import PyTree

from fedspam._internal.trees import Key
from fedspam.clients import Population
from fedspam.federation.codecs.feedback import WithLeftovers
from fedspam.federation.codecs.fields import NO_CODECS, Codecs

Work = Callable[..., Any]


@dataclass(frozen=True)
class WorkTerms:
    """What `@on_client` declares about a work."""

    affine: bool = False
    stateful: bool = False
    echo: bool = False


WORK_NAMES: set[str] = set()  # of every work that has been marked so far


def on_client(function: Any = None, *, affine: bool = False, stateful: bool = False, echo: bool = False) -> Any:
    """Mark a method as work that runs on a client: ``work(self, oracle, key, **message) -> reply``.

    Arguments:
        affine: the reply is affine in the oracle's gradients, and all of them are taken with `key` itself. The mean of
            such replies is the reply of the mean client, which costs one central gradient.
        stateful: the client keeps a memory: ``work(self, oracle, key, memory, **message) -> (reply, memory)``.
        echo: the new memory depends on the reply as the server decodes it: the work returns ``(reply, remember)``, and
            the memory is ``remember(arrived)``. So a method can correct for a codec that it does not know.
    """
    if echo and not stateful:
        raise ValueError("echo=True needs stateful=True: what arrived is for the client's memory")

    def mark(function: Any) -> Any:
        function.terms = WorkTerms(affine, stateful, echo)
        WORK_NAMES.add(function.__name__)
        return function

    return mark if function is None else mark(function)


def terms_of(work: Work) -> WorkTerms:
    """What `@on_client` declared about a work."""
    terms = getattr(work, "terms", None)
    if terms is None:
        raise ValueError(f"{getattr(work, '__qualname__', work)} is not a client work; decorate it with @on_client")
    return terms


def works_of(part: Any) -> dict[str, Work]:
    """Every client work of a method and of the parts it is made of, by name."""
    found: dict[str, Work] = {}
    for name in dir(type(part)):
        if isinstance(getattr(getattr(type(part), name, None), "terms", None), WorkTerms):
            found[name] = getattr(part, name)
    for name in getattr(type(part), "__dataclass_fields__", {}):
        for work_name, work in works_of(getattr(part, name)).items():
            if work_name in found:
                raise ValueError(f"two client works are called {work_name!r}, which names them on the wire: rename one")
            found[work_name] = work
    return found


def answer(
    population: Population, work: Work, key: Key, id: Any, memory: PyTree, message: Mapping[str, Any],
    codecs: Codecs = NO_CODECS,
) -> tuple[Any, PyTree]:  # fmt: skip
    """One client does its work: its reply, and its memory after it."""
    return perform(work, population.client(id), jax.random.fold_in(key, id), memory, message, codecs)


def perform(
    work: Work, oracle: Any, own_key: Key, memory: PyTree, message: Mapping[str, Any], codecs: Codecs
) -> tuple[Any, PyTree]:
    """The work of a client on its oracle, with its own key; with error feedback, the reply that is to arrive."""
    terms = terms_of(work)
    if not terms.stateful:
        return work(oracle, own_key, **message), memory
    own, errors = memory if isinstance(memory, WithLeftovers) else (memory, None)
    reply, own = work(oracle, own_key, own, **message)
    if errors is not None:
        reply, errors = codecs.corrected(own_key, work.__name__, reply, errors, message)
    if terms.echo:
        own = own(codecs.replied(own_key, work.__name__, reply, message))
    return reply, own if errors is None else WithLeftovers(own, errors)
