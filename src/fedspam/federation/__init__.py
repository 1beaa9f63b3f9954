"""How clients are asked: the protocol a method talks to, its handles, the wire, aggregation rules, and the ledger.

A method's round calls a handle, `fed`, wherever the pseudocode says that the clients send something. The handles are
`Traced` (inside a compiled simulation), `Loopback` (over real bytes in one process), `Witness` (client by client, to
name a reply that is not finite), `Null` (shapes only, for the ledger), and the one of `fedspam.flower`.
"""

from fedspam.clients.faults import Faults as Faults
from fedspam.federation.protocol import (
    WORK_NAMES as WORK_NAMES,
    Cohort as Cohort,
    Contacts as Contacts,
    Draws as Draws,
    Federation as Federation,
    Program as Program,
    Replay as Replay,
    Work as Work,
    WorkTerms as WorkTerms,
    answer as answer,
    check_replay as check_replay,
    fitted as fitted,
    on_client as on_client,
    sound as sound,
    take_branch as take_branch,
    terms_of as terms_of,
    works_of as works_of,
)
