"""Populations of clients: the distribution D of the paper, and the loss of each client.

Four kinds of population serve the same protocol:

- `Generated`: endless. A client's id is 32 random bits, and its data is made from them on demand.
- `Ragged`: finite, on the device. The examples of all clients are concatenated into one array.
- `Sharded`: finite, on several devices or hosts, each of which holds the rows of its own clients.
- `Hosted`: finite, computed outside JAX by Python code of any framework.

All of them are pytrees, so that their data enters a compiled function as an argument.
"""

from fedspam._internal.prng import draw as draw
from fedspam.clients.delays import (
    Delay as Delay,
    FixedDelay as FixedDelay,
    MeasuredDelay as MeasuredDelay,
    ParetoDelay as ParetoDelay,
    RandomDelay as RandomDelay,
)
from fedspam.clients.faults import Faults as Faults
from fedspam.clients.generated import DataOracle as DataOracle, Generated as Generated
from fedspam.clients.hosted import Hosted as Hosted, HostedOracle as HostedOracle
from fedspam.clients.mean import MeanOracle as MeanOracle
from fedspam.clients.over_selection import OverSelected as OverSelected
from fedspam.clients.protocol import (
    BatchLoss as BatchLoss,
    BatchOracle as BatchOracle,
    Ids as Ids,
    Loss as Loss,
    MinibatchOracle as MinibatchOracle,
    Oracle as Oracle,
    PlacedPopulation as PlacedPopulation,
    Population as Population,
    QuadraticLoss as QuadraticLoss,
    RowsOracle as RowsOracle,
    ScaledOracle as ScaledOracle,
    SmoothOracle as SmoothOracle,
    SteppingOracle as SteppingOracle,
    TimedPopulation as TimedPopulation,
    TrainedOracle as TrainedOracle,
    repeats as repeats,
)
from fedspam.clients.ragged import (
    Ragged as Ragged,
    RaggedOracle as RaggedOracle,
    with_several_capacities as with_several_capacities,
)
from fedspam.clients.sharded import Sharded as Sharded
from fedspam.clients.statistics import joined as joined, parted as parted
