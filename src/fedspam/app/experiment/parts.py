"""`[data] kind = "parts"`: clients whose rows lie on several devices or hosts, each of which reads only its own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as Spread

from fedspam import datasets
from fedspam._internal import hosts, trees
from fedspam._internal.trees import Params, Scalar, struct
from fedspam.app.config import Config, schema
from fedspam.app.experiment.data import LoadedExamples, existing
from fedspam.app.experiment.model import Learner, learner
from fedspam.app.experiment.probes import evaluation, loss_and_gradient
from fedspam.clients import Sharded
from fedspam.datasets import FederatedData
from fedspam.datasets.mapped import INDEX
from fedspam.federation.spreading import sum_over_devices
from fedspam.simulation.evaluation import Evaluation

COLUMNS = ("features", "label")


@struct
class ShardedProbe:
    r"""f and :math:`\|\nabla f(x)\|/\|\nabla f(x_0)\|` over the rows of all devices, and the metrics of a test set."""

    clients: Sharded
    unit: Scalar
    test: Evaluation | None

    def __call__(self, params: Params) -> dict[str, Scalar]:
        def on_device(clients: Sharded, params: Params) -> Any:
            rows, shares = jax.tree.map(lambda leaf: leaf[0], (clients.examples, clients.shares))
            return sum_over_devices(loss_and_gradient(clients.loss, rows, shares, params))

        spread = jax.shard_map(
            on_device,
            mesh=self.clients.mesh,
            in_specs=(self.clients.placement, Spread()),
            out_specs=Spread(),
            check_vma=False,
        )
        value, gradient = jax.jit(spread)(self.clients, params)
        metrics = {"loss": value, "gradient": trees.norm(gradient) / self.unit}
        return metrics if self.test is None else {**metrics, **self.test(params)}


def read_parts(config: Config) -> tuple[Sharded, Learner, ShardedProbe, LoadedExamples]:
    """The clients of a folder of parts, the model, what is measured, and what this process knows of the examples."""
    data: schema.Parts = config.data
    parts = part_folders(existing(f"data.path = {data.path!r}", data.path, folder=True))
    devices = jax.devices() if jax.process_count() > 1 else jax.devices()[: len(parts)]
    options = {"batch": config.clients.batch, "weighted": config.clients.weighted}
    # the model is made below, for as many classes as the rows of all hosts have
    clients = Sharded.of(parts, _opened, lambda params, rows: rows["label"], devices=devices, **options)
    classes = _classes(clients) if data.task == "classes" else 0
    test = None
    if data.test_path is not None:
        test = _opened(existing(f"data.test_path = {data.test_path!r}", data.test_path, folder=True))
        if classes and not 0 <= test.examples["label"].min() <= test.examples["label"].max() < classes:
            raise ValueError(f"labels of {data.test_path} are not those of the parts, 0 to {classes - 1}")
    shapes = {name: (column.shape[2:], column.dtype) for name, column in clients.examples.items()}
    blank = {name: np.zeros((2, *shape), kind) for name, (shape, kind) in shapes.items()}
    known = LoadedExamples(FederatedData.of([("a client", blank)]), test, tuple(map(str, range(classes))))
    if getattr(config.model, "class_weights", None) == "balanced":
        raise ValueError("model.class_weights = 'balanced' needs all rows in one process; give a weight for each class")
    model = learner(config.model, known, seed=config.run.seed, precision=config.run.precision)
    clients = dataclasses.replace(clients, loss=model.loss)
    scores = evaluation(known, model, config.evaluate)
    unit = ShardedProbe(clients, jnp.ones(()), None)(model.start)["gradient"]
    return clients, model, ShardedProbe(clients, jnp.where(unit > 0, unit, 1), scores), known


def part_folders(folder: Path) -> list[Path]:
    """The parts of a folder in the order of their names, which must be the same for all hosts; or the folder itself."""
    if (folder / INDEX).is_file():
        return [folder]
    parts = sorted(path for path in folder.iterdir() if (path / INDEX).is_file())
    if not parts:
        raise ValueError(f"{folder} holds no parts; write some with fedspam.datasets.write_mapped")
    names = json.dumps([path.name for path in parts]).encode()
    for number, other in enumerate(hosts.all_bytes(names)):
        if other != names:
            raise ValueError(
                f"process {number} sees other parts in {folder} than process {jax.process_index()}; give all hosts "
                "the same folder"
            )
    return parts


def _opened(folder: Path) -> FederatedData:
    data = datasets.open_mapped(folder)
    missing = [name for name in COLUMNS if name not in data.examples]
    if missing:
        raise ValueError(f"{folder} has no column {missing[0]!r}; it has {', '.join(data.examples)}")
    return FederatedData(data.clients, {name: data.examples[name] for name in COLUMNS}, data.sizes)


def _classes(clients: Sharded) -> int:
    """One more than the largest label on any host."""
    own = [np.asarray(piece.data) for piece in clients.examples["label"].addressable_shards]
    ends = [int(min(part.min() for part in own)), int(max(part.max() for part in own))]
    told = [json.loads(each) for each in hosts.all_bytes(json.dumps(ends).encode())]
    least, most = min(low for low, _ in told), max(high for _, high in told)
    if least < 0 or most < 1 or not np.issubdtype(clients.examples["label"].dtype, np.integer):
        raise ValueError(
            f"labels run from {least} to {most}; classes must be whole numbers from 0 on: number them before they are "
            "written, or set task = 'numbers'"
        )
    return most + 1
