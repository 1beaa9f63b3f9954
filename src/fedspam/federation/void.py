"""When a round is void: which replies are accepted, and how many of them an exchange needs.

A reply is accepted if it came in time and is `sound`. An exchange needs `least_accepted` of them. Otherwise its round
is void: it leaves the server and the memories of the clients unchanged.
"""

import math
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from fedspam._internal import trees
from fedspam.clients import Faults
from fedspam.federation.works import WorkTerms


def least_accepted(quorum: float, count: int) -> int:
    """How many replies of so many clients must be accepted: the share `quorum`, and always one.

    >>> least_accepted(0.7, 10), least_accepted(0.0, 10)
    (7, 1)
    """
    return max(1, math.ceil(quorum * count - 1e-9))  # in floats 0.7 x 10 is slightly above 7


def sound(reply: PyTree) -> Any:
    """Whether a reply is finite in everything that can reach the server's state.

    Parts whose type says ``report = True``, such as certificates, are only recorded. They are not checked, so that a
    simulation that does not record them need not compute them.
    """
    parts = jax.tree.leaves(reply, is_leaf=trees.is_report)
    return trees.finite([part for part in parts if not trees.is_report(part)])


class Contacts(NamedTuple):
    """How an exchange went: clients asked, replies that came back, replies that were accepted."""

    asked: Any
    replied: Any
    accepted: Any


def is_dynamic(conditional: bool, faults: Faults | None, per_client: bool, terms: WorkTerms, count: int) -> bool:
    """Whether the contacts of an exchange must be counted as it runs. Otherwise every client replies."""
    on_mean_client = terms.affine and not per_client
    return conditional or faults is not None or (count > 1 and not on_mean_client)
