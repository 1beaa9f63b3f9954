"""Who there is to ask: the distribution D of the paper, and what one client can answer.

Three kinds of population serve the same protocol:

- `Generated`: endless. A client's id is 32 random bits and its data is made from them on demand.
- `Ragged`: finite, on the device. The examples of all clients lie end to end in one array.
- `Hosted`: finite, computed by Python code of any framework outside JAX.

All of them are pytrees, so that their data enters a compiled function as an argument.
"""

from fedspam.clients.faults import Faults
from fedspam.clients.generated import DataOracle, Generated
from fedspam.clients.hosted import Hosted, HostedOracle
from fedspam.clients.mean import MeanOracle
from fedspam.clients.protocol import Ids, Loss, Oracle, Population, draw
from fedspam.clients.ragged import Ragged, RaggedOracle, of_unequal_sizes

__all__ = [
    "DataOracle",
    "Faults",
    "Generated",
    "Hosted",
    "HostedOracle",
    "Ids",
    "Loss",
    "MeanOracle",
    "Oracle",
    "Population",
    "Ragged",
    "RaggedOracle",
    "draw",
    "of_unequal_sizes",
]
