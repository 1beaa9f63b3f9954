"""An app as users of Flower write it, which does not know fedspam: gradient steps in NumPy."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from parity_app.data import RATE, ROWS, STEPS, loss_and_gradient, rows

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    own = rows(int(context.node_config["partition-id"]))
    params = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    for _ in range(STEPS):
        _, gradient = loss_and_gradient(params, own)
        params = {name: value - np.float32(RATE) * gradient[name] for name, value in params.items()}
    arrays = ArrayRecord({name: Array(value) for name, value in params.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": ROWS})}), reply_to=message)
