"""How clients are asked: the protocol a method talks to, its handles, the wire, aggregation rules, and the ledger.

A method's round calls a handle, `fed`, wherever the pseudocode says that the clients send something. The handles are
`Traced` (inside a compiled simulation), `Loopback` (over real bytes in one process), `Witness` (client by client, to
name a reply that is not finite), `Null` (shapes only, for the ledger), and the one of `fedspam.flower`.
"""

from fedspam.clients.faults import Faults as Faults
from fedspam.federation.protocol import WORK_NAMES as WORK_NAMES
from fedspam.federation.protocol import Cohort as Cohort
from fedspam.federation.protocol import Contacts as Contacts
from fedspam.federation.protocol import Draws as Draws
from fedspam.federation.protocol import Federation as Federation
from fedspam.federation.protocol import Program as Program
from fedspam.federation.protocol import Replay as Replay
from fedspam.federation.protocol import Work as Work
from fedspam.federation.protocol import WorkTerms as WorkTerms
from fedspam.federation.protocol import answer as answer
from fedspam.federation.protocol import check_replay as check_replay
from fedspam.federation.protocol import on_client as on_client
from fedspam.federation.protocol import sound as sound
from fedspam.federation.protocol import take_branch as take_branch
from fedspam.federation.protocol import terms_of as terms_of
from fedspam.federation.protocol import works_of as works_of
