"""Makes the golden files of the conformance kit: all messages to one client and its replies, in runs with faults.

python tests/recording.py client/src/fedspam_client/golden
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedspam._internal import files
from fedspam.flower.client.app import client_app, clients_of
from fedspam.flower.server.replies import Replies
from fedspam.flower.server.strategy import FedspamStrategy
from fedspam.flower.testing.grid import LoopbackGrid
from fedspam.flower.wire import arrays, envelope
from fedspam.methods import auto, fedavg, scaffold, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.solvers import GradientDescent

CLIENTS, CLIENT, DIMENSION = 3, 1, 4
STEP = 0.2
SEED = 6  # with it client 1 is the prox client of the first and the last round
PROBLEM = (
    "Client i has rows a_j (features) and labels y_j in {-1, 1}. Its loss is f_i(x) = mean_j log(1 + exp(-y_j <a_j, "
    "x>)) + 0.05 |x|^2 with x in R^4, float64. The client under test is client 1. @key is not used: every gradient "
    "is over all rows. A reply holds @client and @round of its message, and its parts under 'reply'. Fields that the "
    "work needs and the message does not hold are those of an earlier message of the same run and @round."
)
PROX = (
    "3 gradient steps y <- y - 0.2 grad phi(y) from y = x, where grad phi(y) = grad f(y) - grad f(x) + g + (y - "
    "x)/step_size. reply.x is y; reply.certificate holds decrease = phi(y) - phi(x) for phi(y) = f(y) + <g - "
    "grad f(x), y - x> + |y - x|^2/(2 step_size), stationarity = |grad phi(y)|, distance = |y - x|, step_size, steps "
    "= 3, gradients = 4, and certified = 1 if decrease <= 0 and stationarity <= sqrt(3)/4 * distance/step_size, else "
    "0"
)
WORKS = {
    "starting_gradient": "reply = grad f(x)",
    "difference": "reply = grad f(x) - (1 - fresh_weight) grad f(x_prev)",
    "prox": PROX,
}
SCAFFOLD = (
    "train: the memory of a client is c, at first 0. From y = x do twice y <- y - local_rate (grad f(y) - c + "
    "control); reply.moved = y - x; the new memory is c - control - (y - x)/(2 local_rate). The header holds the "
    "version of the memory to start from ('memory': the exchange that left it, 0 for the first), the version of the "
    "new memory ('becomes'), and the older version that must be kept too ('settled'); a client that has lost its "
    "memory refuses"
)
FEDAVG = "train: from y = x do twice y <- y - local_rate grad f(y); reply.moved = y - x"
SKETCH = (
    "S(v) has 16 entries: entry j is the sum of s_i v_i over all i with i mod 16 = j, where s_i = 1 if the lowest bit "
    "of word i is 1, else -1. Word i is a ^ b for (a, b) = threefry2x32 of the key 'seed' and the counter (0, i), with "
    "20 rounds. The moments of S(v) are S(v) as 'first' and its entries squared as 'second'"
)
AUTO = {
    "sketch": SKETCH,
    "begin": "reply.g = grad f(x); reply.fresh = moments of S(grad f(x)); reply.sampled = 0",
    "difference": (
        "with a = grad f(x), b = grad f(x_prev), p = fresh_weight: reply.c = a - (1 - p) b; reply.fresh, reply.change "
        "and reply.sent = moments of S(a), S(a) - S(b) and S(a) - (1 - p) S(b); reply.slope = <b, x - x_prev>; "
        "reply.bend = f(x) - f(x_prev) - slope, or <a - b, x - x_prev>/2 if the first is below eps^(2/3) (|f(x)| + "
        "|f(x_prev)|) in size, with the eps of the dtype. If bend or |a|^2 is not finite, bend is the largest number "
        "of the dtype to the power 0.4, and a is b in all other parts"
    ),
    "prox": (
        "from x, or from x_prev if back: reply.x and reply.certificate as for the prox of spam_pp; reply.promise = "
        "decrease - distance^2/(2 step_size); reply.rate = log(rate)"
    ),
}
HEADER = (
    "The header of a reply repeats schema and exchange. The reply to query.whoami holds partition-id, num-partitions, "
    "the version of the client's software as 'fedspam', the version of the wire as 'wire' (1 if it is left out; "
    "another one is refused by the server), and the schema. A client has the schema of the method that it was written "
    "for (the server logs it). It refuses messages with another schema, and exchanges that the method does "
    "not have, by a header 'refused' that holds the reason, and without fields. If the header of a message holds "
    "'assigned', the id of the client is the @client of the message instead of its partition id, also in its reply and "
    "its key, and the header of the reply holds partition-id, num-partitions and 'fedspam' as well."
)


def record(folder: str | Path) -> None:
    """Write the kit, replies included."""
    folder = Path(folder)
    with jax.enable_x64(True):
        clients = synthetic_logistic(0, clients=CLIENTS, dimension=DIMENSION, rows=(4, 6), regularization=0.1)
        solver = GradientDescent(steps=3, local_rate=STEP, safeguard=False)
        methods = {
            "spam_pp": spam_pp(CLIENTS, step_size=0.5, fresh_weight=0.3, solver=solver),
            "scaffold": scaffold(CLIENTS, 2, STEP),
            "fedavg": fedavg(CLIENTS, 2, STEP),
            "auto": auto(CLIENTS, solver=solver),
        }
        recorded = {name: _recorded(clients, method) for name, method in methods.items()}
        recorded["scaffold"] += _refused(recorded["scaffold"][-1][0], clients, methods["scaffold"])
    cases = []
    for name, exchanges in recorded.items():
        for number, (message, reply) in enumerate(exchanges):
            case = f"{name}-{number:02d}"
            cases.append({"name": case, "method": name, "type": message.metadata.message_type})
            _write(folder / case, "message", message)
            _write(folder / case, "reply", reply)
    rows = {}
    for id in range(CLIENTS):
        begin, end = int(clients.offsets[id]), int(clients.offsets[id + 1])
        rows |= {f"client-{id}.{part}": np.array(clients.examples[part][begin:end]) for part in ("features", "label")}
    files.write(folder / "problem.safetensors", safetensors.numpy.save(rows))
    works = {"spam_pp": WORKS, "scaffold": SCAFFOLD, "fedavg": FEDAVG, "auto": AUTO}
    kit = {"problem": PROBLEM, "header": HEADER, "works": works, "client": CLIENT, "cases": cases}
    files.write(folder / "kit.json", json.dumps(kit, indent=1).encode())


def _recorded(clients: Any, method: Any) -> list[tuple[Message, Message]]:
    """All messages to the client with its replies, in a run in which some replies are lost."""
    first, exchanges = jnp.ones(DIMENSION), []

    def twist(client: int, message: Message, answer: Any) -> list[Message]:
        kind, reply = message.metadata.message_type, answer()
        if client == CLIENT and not reply.has_error():
            exchanges.append((message, reply))
        second = not kind.startswith("query") and message.content["config"].get("server-round") == 2
        if second and (client == CLIENT) == (kind != "train.prox"):
            return [Message(Error(code=0, reason="lost on its way"), reply_to=message)]
        return [reply]

    grid = LoopbackGrid(client_app(clients_of(clients), method, first), CLIENTS, twist=twist)
    replies = Replies(quorum=0.5, retries=3)
    strategy = FedspamStrategy(method, first, seed=SEED, min_available_nodes=CLIENTS, replies=replies)
    strategy.start(grid, arrays.to_arrays(first), num_rounds=3, timeout=60)
    return exchanges


def _refused(last: Message, clients: Any, method: Any) -> list[tuple[Message, Message]]:
    """The last message, changed so that a client must refuse it."""
    app = client_app(clients_of(clients), method, jnp.ones(DIMENSION))
    changed = []
    for change in ({"schema": "0" * 32}, {"exchange": "nothing"}, {"memory": 77}):
        head = ConfigRecord({**last.content.config_records[envelope.HEADER], **change})
        message = Message(RecordDict({**last.content, envelope.HEADER: head}), 1, last.metadata.message_type)
        grid = LoopbackGrid(app, [{"partition-id": CLIENT, "num-partitions": CLIENTS}])
        changed.append((message, app(message, next(iter(grid.contexts.values())))))
    return changed


def _write(folder: Path, name: str, message: Message) -> None:
    """Write the header as JSON, with Flower's type of the message, and the encoded fields."""
    folder.mkdir(parents=True, exist_ok=True)
    head = dict(message.content[envelope.HEADER])
    head.pop("description", None)
    if name == "message":
        head["type"] = message.metadata.message_type
    files.write(folder / f"{name}.json", json.dumps(head, indent=1).encode())
    if message.content.array_records:
        files.write(folder / f"{name}.safetensors", envelope.enclosed(message.content))


if __name__ == "__main__":
    record(sys.argv[1])
