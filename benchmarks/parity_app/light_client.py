"""Clients in NumPy without JAX, from the files of works that lie beside this one."""

from pathlib import Path

from fedspam_client import client_app, numpy_client
from parity_app.data import loss_and_gradient, rows

client = numpy_client(loss_and_gradient, rows, constants={"smoothness": 4.0})
app = client_app(client, sorted(Path(__file__).parent.glob("*.json")))
