"""What can hold SCAFFOLD at chance on NIID-Bench's leader board with 100 parties: controls that begin at random.

`experiments.py` of the bench makes the server's control and those of the parties from a randomly initialized network
(`c_globals = init_nets(...)`, then `net.load_state_dict(c_global_para)` for all `c_nets`). The paper begins with 0.

The correction of a step is c - c_i. If all parties take part in every round, the common start cancels in it. If 10 of
100 do, a party that took part before has lost the start and c still has nine tenths of it, so that random weights are
added to each of its gradients: 80 steps of 0.05 then move the network by four times those weights. Takes a minute:

    python reproductions/scaffold_start.py
"""

import sys
import warnings

import numpy as np

from fedspam import Evaluation, simulate
from fedspam._internal.trees import Key, Params, struct
from fedspam.datasets import synthetic
from fedspam.methods import fedavg, scaffold
from fedspam.methods.scaffold import Scaffold
from fedspam.models import mlp

PARTIES, ROUNDS, STEPS, RATE = 100, 60, 80, 0.05


@struct
class BenchScaffold(Scaffold):
    """SCAFFOLD whose controls begin with the weights of a network, as in the bench."""

    weights: Params = None

    def init(self, params: Params, key: Key, fed):
        return super().init(params, key, fed)._replace(mean=self.weights)

    def client_state(self, params: Params) -> Params:
        return self.weights


def main() -> int:
    warnings.filterwarnings("ignore", message=r"\d+ of \d+ rounds were void")  # the table says so
    data = synthetic(alpha=0.5, beta=0.5, clients=PARTIES)
    model = mlp(60, 10, hidden=(64, 64, 64))
    train, test = data.hold_out_examples(0.2)
    judge, clients = Evaluation.of(test, model.correct), train.population(model.loss, batch=20)
    print(f"accuracy after {ROUNDS} rounds of {STEPS} steps of {RATE}\n")
    print("| clients per round | FedAvg | SCAFFOLD, controls from 0 | SCAFFOLD, controls from random weights |")
    print("|---|---|---|---|")
    for cohort in (PARTIES, PARTIES // 10):
        right = scaffold(cohort, STEPS, RATE)
        fields = {name: getattr(right, name) for name in Scaffold.__dataclass_fields__}
        methods = (fedavg(cohort, STEPS, RATE), right, BenchScaffold(**fields, weights=model.init(1)))
        cells = []
        for method in methods:
            run = simulate(method, clients, model.init(0), rounds=ROUNDS, key=0, probe=judge, every=ROUNDS)
            void = int(np.sum(run.rows["void"]))  # a reply was not finite
            cells.append(f"{run.probes['accuracy'][-1]:.3f}" + (f" ({void} rounds void)" if void else ""))
        print(f"| {cohort} of {PARTIES} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
