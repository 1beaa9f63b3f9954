"""The server of all kinds."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspam.flower import FedspamStrategy, to_arrays
from parity_app.data import CLIENTS
from parity_app.task import SEED, first, served

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    method = served(str(config["kind"]), str(config["method"]))
    folder = str(config["folder"])
    strategy = FedspamStrategy(method, first(), seed=SEED, min_available_nodes=CLIENTS, folder=folder)
    strategy.start(grid, to_arrays(first()), num_rounds=int(config["rounds"]), timeout=float(config["timeout"]))
