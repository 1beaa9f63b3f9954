"""Clients in JAX."""

from flwr.app import Context

from fedspam.flower import client_app, clients_with
from parity_app.data import rows
from parity_app.task import first, loss, served


def method(context: Context) -> object:
    return served(str(context.run_config["kind"]), str(context.run_config["method"]))


app = client_app(clients_with(loss, rows), method, first())
