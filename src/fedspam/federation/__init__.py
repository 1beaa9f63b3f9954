"""How clients are asked: cohorts, works, the handles a method talks to, the wire, aggregation rules, and the ledger.

A method's round calls a handle, `fed`, wherever the pseudocode says that the clients send something. The handles are
`Traced` (inside a compiled simulation), `Loopback` (over real bytes in one process), `Witness` (client by client, to
name a reply that is not finite), `Null` (shapes only, for the ledger), and the one of `fedspam.flower`.
"""

from fedspam.federation.cohorts import Cohort as Cohort, Draws as Draws, Replay as Replay, check_replay as check_replay
from fedspam.federation.handle import Federation as Federation, NetworkFederation as NetworkFederation, fitted as fitted
from fedspam.federation.program import Program as Program, take_branch as take_branch
from fedspam.federation.void import Contacts as Contacts, least_accepted as least_accepted, sound as sound
from fedspam.federation.works import (
    WORK_NAMES as WORK_NAMES,
    Work as Work,
    WorkTerms as WorkTerms,
    on_client as on_client,
    perform as perform,
    terms_of as terms_of,
    works_of as works_of,
)
