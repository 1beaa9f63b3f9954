"""Flower's ``Strategy`` for every method of this package."""

import io
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedspam._internal import checks, describe, prng
from fedspam._internal.trees import Params
from fedspam.federation.aggregation import Rule
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.flower.server import exchange
from fedspam.flower.server.handle import ExchangeLimits, Flower
from fedspam.flower.server.journal import Journal
from fedspam.flower.server.nodes import Directory
from fedspam.flower.server.run import Course, Step
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Nodes, Schema
from fedspam.simulation import records

__all__ = ["FedspamStrategy"]

LOG = logging.getLogger("flwr")
PATIENCE = 3  # void rounds in a row; each has asked others already
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedspamStrategy(Strategy):
    """A method of this package as a Flower strategy: FedAvg's arguments, `start` and `Result`.

    Its clients run the ClientApp of `fedspam.flower.client_app` with the same method. The draws are those of
    `fedspam.simulate` with ``key=seed``, and so are the iterates, up to the rounding of sums.

    Arguments:
        algorithm: the method, such as ``spam_pp(cohort_size=10, step_size=1.0, fresh_weight=0.2)``.
        params: a pytree of the structure that the clients use; None where that is a dictionary of arrays by name.
        seed: the randomness of the run.
        fraction_train: the cohort as a share of all clients, in place of the method's own cohort size.
        fraction_evaluate: the share of the clients that evaluate after each round; 0 saves that exchange.
        min_train_nodes: the smallest cohort that `fraction_train` may give.
        min_evaluate_nodes: likewise for the evaluation.
        min_available_nodes: how many nodes to wait for before the start.
        quorum: the share of a cohort whose replies must count.
        retries: how often other clients are asked in place of those that failed; then the round is void: charged,
            and without effect.
        patience: void rounds in a row after which the run ends with an error.
        aggregate: a rule of `fedspam.federation.aggregation` instead of the mean over several clients.
        secure: sums under masks, as the clients have it: see `fedspam.flower.privacy.secure_client.SecureSum`.
        folder: where rows and checkpoints go, as from `fedspam.simulate`; None keeps nothing.
        resume: continue the run of that folder, to the bits of a run that was never interrupted.
        arrayrecord_key, configrecord_key: the names of the records in a message.

    >>> from fedspam import spam_pp
    >>> strategy = FedspamStrategy(spam_pp(cohort_size=3, step_size=1.0, fresh_weight=0.2), min_available_nodes=3)
    """

    def __init__(
        self,
        algorithm: Any,
        params: Params | None = None,
        *,
        seed: int = 0,
        fraction_train: float | None = None,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 1,
        min_evaluate_nodes: int = 1,
        min_available_nodes: int = 2,
        quorum: float = 1.0,
        retries: int = 2,
        patience: int = PATIENCE,
        aggregate: Rule | None = None,
        secure: SecureSum | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        checks.whole("seed", seed, 0)
        checks.whole("min_train_nodes", min_train_nodes, 1)
        checks.whole("min_evaluate_nodes", min_evaluate_nodes, 1)
        checks.whole("min_available_nodes", min_available_nodes, 1)
        checks.whole("retries", retries, 0)
        checks.whole("patience", patience, 1)
        checks.between("quorum", quorum, 0, 1)
        checks.between("fraction_evaluate", fraction_evaluate, 0, 1)
        if fraction_train is not None:
            checks.between("fraction_train", fraction_train, 0, 1, open_low=True)
        if secure is not None and aggregate is not None:
            raise ValueError("aggregate looks at single replies, which secure hides; give one of the two")
        if resume and folder is None:
            raise ValueError("resume = True needs the folder of the run")
        if arrays.HEADER in (arrayrecord_key, configrecord_key) or arrayrecord_key == configrecord_key:
            raise ValueError(
                f"arrayrecord_key = {arrayrecord_key!r} and configrecord_key = {configrecord_key!r} must differ from "
                f"each other and from {arrays.HEADER!r}"
            )
        self.algorithm, self.params, self.seed = algorithm, params, seed
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.quorum, self.retries, self.patience, self.aggregate = quorum, retries, patience, aggregate
        self.secure = secure
        self.folder, self.resume = None if folder is None else Path(folder), resume
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self._directory: Directory | None = None

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        cohort = f"fraction {self.fraction_train:.2f}" if self.fraction_train is not None else "the method's own cohort"
        LOG.info("\t├──> Method: %s", type(self.algorithm).__name__)
        LOG.info("\t├──> Sampling:")
        LOG.info("\t│\t├──Train: %s | evaluate: fraction %.2f", cohort, self.fraction_evaluate)
        LOG.info("\t│\t├──Seed: %d", self.seed)
        LOG.info("\t│\t└──Minimum available nodes: %d", self.min_available_nodes)
        LOG.info("\t├──> Exchanges: quorum %.2f | retries %d", self.quorum, self.retries)
        LOG.info("\t├──> Folder: %s", self.folder or "(none: nothing is kept)")
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the method for `num_rounds` rounds.

        Arguments:
            grid: Flower's grid.
            initial_arrays: where it starts; `fedspam.flower.to_arrays` makes them of any pytree.
            num_rounds: how many rounds.
            timeout: seconds that clients have for one exchange.
            train_config, evaluate_config: what goes along with the messages.
            evaluate_fn: (round, arrays) -> metrics, on the server, before the first round and after each.
        """
        checks.whole("num_rounds", num_rounds, 1)
        checks.positive("timeout", timeout)
        began = time.monotonic()
        LOG.info("Starting %s strategy:", type(self).__name__)
        LOG.info("\t├── Number of rounds: %d", num_rounds)
        LOG.info("\t├── ArrayRecord (%.2f MB)", sum(len(array.data) for array in initial_arrays.values()) / 2**20)
        self.summary()
        LOG.info("")

        params, key = arrays.to_params(initial_arrays, self.params), jax.random.key(self.seed)
        schema = Schema.of(self.algorithm, params)
        LOG.info("schema: %s", schema.digest)
        directory = self._directory = Directory(grid, schema, timeout)
        directory.gather(self.min_available_nodes)
        clients = Nodes(directory.clients)
        algorithm = self.algorithm
        if self.fraction_train is not None:
            count = max(math.floor(clients.size * self.fraction_train), self.min_train_nodes)
            algorithm = with_cohort(algorithm, min(count, clients.size))
        identity = records.identity(
            algorithm, clients, params, key, world="flower", quorum=self.quorum, retries=self.retries,
            aggregate=self.aggregate,
        )  # fmt: skip
        run = describe.digest(identity)
        terms = ExchangeLimits(timeout, self.quorum, self.retries, self.arrayrecord_key, self.configrecord_key)
        journal = Journal(self.folder, run)
        fed = Flower(
            grid, directory, schema, terms, journal, run[:16], config=train_config, aggregate=self.aggregate,
            secure=self.secure,
        )  # fmt: skip
        course = Course(algorithm, fed, clients, schema.plan, params, key, self.patience)

        result = Result(arrays=initial_arrays)
        look = lambda done, params: _numbers(evaluate_fn(done, arrays.to_arrays(params)) if evaluate_fn else None)
        config = ConfigRecord() if evaluate_config is None else evaluate_config
        with records.Store(self.folder) if self.folder is not None else nullcontext() as store:
            for step in course.run(num_rounds, store, journal, identity, self.resume, look):
                self._tell(step, result)
                if step.fresh and step.done and self.fraction_evaluate > 0:
                    self._evaluate(step, result, config, grid, timeout)
        LOG.info("")
        LOG.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        LOG.info("")
        LOG.info("Final results:")
        for line in io.StringIO(str(result)):
            LOG.info("\t%s", line.strip("\n"))
        return result

    def _tell(self, step: Step, result: Result) -> None:
        result.arrays = arrays.to_arrays(step.params)
        if step.seen:
            result.evaluate_metrics_serverapp[step.done] = MetricRecord(_plain(step.seen))
            if step.fresh:
                LOG.info("\t└──> Global evaluation: %s", result.evaluate_metrics_serverapp[step.done])
        if step.done:
            result.train_metrics_clientapp[step.done] = MetricRecord(_plain(step.row))
        if step.fresh and step.done:
            row = step.row
            LOG.info(
                "\t└──> %.3f s in exchanges | %d B down, %d B up (with Flower's records: %d, %d)",
                row["seconds"], row["bytes_down"], row["bytes_up"], row["flower_down"], row["flower_up"],
            )  # fmt: skip

    def _evaluate(self, step: Step, result: Result, config: ConfigRecord, grid: Grid, timeout: float) -> None:
        messages = dict(enumerate(self.configure_evaluate(step.done, result.arrays, config, grid)))
        for message in messages.values():
            message.metadata.ttl = timeout
        trip = exchange.round_trip(grid, messages, _measured, timeout)
        LOG.info("evaluate: Received %d results and %d failures", len(trip.values), len(trip.failures))
        metrics = self.aggregate_evaluate(step.done, [trip.values[slot] for slot in sorted(trip.values)])
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[step.done] = metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a part of the clients, drawn anew each round, to evaluate the model."""
        assert self._directory is not None, "start() comes first"
        clients = Nodes(self._directory.clients)
        count = min(clients.size, max(math.floor(clients.size * self.fraction_evaluate), self.min_evaluate_nodes))
        key = prng.fold_name(jax.random.fold_in(jax.random.key(self.seed), server_round), "evaluate")
        nodes = [self._directory.node(int(id)) for id in clients.sample(key, count)]
        record = RecordDict({
            self.arrayrecord_key: arrays,
            self.configrecord_key: ConfigRecord({**config, "server-round": server_round}),
        })  # fmt: skip
        return [Message(record, node, "evaluate", group_id=str(server_round)) for node in nodes if node is not None]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' metrics, weighted by their numbers of examples."""
        found = [dict(next(iter(reply.content.metric_records.values()))) for reply in replies]
        if not found:
            return None
        weights = np.array([float(str(metrics.pop("num-examples"))) for metrics in found])
        names = set.intersection(*(set(metrics) for metrics in found))
        means = {name: np.average([float(str(metrics[name])) for metrics in found], weights=weights) for name in names}
        return MetricRecord({name: float(means[name]) for name in sorted(means)})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not for this strategy: a round may hold several exchanges, so `start` runs it whole."""
        raise NotImplementedError("a round of this strategy may hold several exchanges; use start()")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not for this strategy: a round may hold several exchanges, so `start` runs it whole."""
        raise NotImplementedError("a round of this strategy may hold several exchanges; use start()")


def with_cohort(algorithm: Any, count: int) -> Any:
    """The same method with another cohort size, in its start as well."""
    size = getattr(algorithm, "cohort_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"fraction_train was given, and {type(algorithm).__name__} has no cohort size: it asks one client or all; "
            "leave fraction_train out"
        )

    def resized(part: Any) -> Any:
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {field.name: resized(getattr(part, field.name)) for field in fields(part)}
        if changed.get("cohort_size") == size:
            changed["cohort_size"] = count
        return replace(part, **changed)

    return resized(algorithm)


def _measured(slot: Any, reply: Message) -> Message:
    found = list(reply.content.metric_records.values())
    if len(found) != 1 or "num-examples" not in found[0]:
        raise exchange.RejectedError("an evaluation is one MetricRecord with 'num-examples'")
    if any(not isinstance(value, int | float) or not math.isfinite(value) for value in found[0].values()):
        raise exchange.RejectedError("its metrics are not finite numbers")
    return reply


def _numbers(metrics: MetricRecord | None) -> dict[str, float]:
    return {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Flower's records take Python's own numbers only."""
    return {name: int(value) if np.asarray(value).dtype.kind in "iub" else float(value) for name, value in row.items()}
