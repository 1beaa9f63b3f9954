"""How clients are asked: the protocol a method talks to, its handles, the wire, aggregation rules, and the ledger.

A method's round calls a handle, `fed`, wherever the pseudocode says that the clients send something. The handles are
`Traced` (inside a compiled simulation), `Loopback` (over real bytes in one process), `Witness` (client by client, to
name a reply that is not finite), `Null` (shapes only, for the ledger), and the one of `fedspam.flower`.
"""

from fedspam.clients.faults import Faults
from fedspam.federation.protocol import (
    WORK_NAMES,
    Cohort,
    Contacts,
    Federation,
    Program,
    Replay,
    Work,
    WorkTerms,
    cohort_of,
    default_chunk,
    everyone_of,
    is_dynamic,
    on_client,
    replayed,
    sound,
    terms_of,
    works_of,
)

__all__ = [
    "WORK_NAMES",
    "Cohort",
    "Contacts",
    "Faults",
    "Federation",
    "Program",
    "Replay",
    "Work",
    "WorkTerms",
    "cohort_of",
    "default_chunk",
    "everyone_of",
    "is_dynamic",
    "on_client",
    "replayed",
    "sound",
    "terms_of",
    "works_of",
]
