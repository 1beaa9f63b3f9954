"""Flower's ``Strategy`` for every method of this package."""

import io
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedspam._internal import checks, describe
from fedspam._internal.model_file import FILE, parameters_hash, write_model
from fedspam._internal.trees import Params
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.downlink import with_feedback
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.flower.server import evaluation
from fedspam.flower.server.events import RunEvents, parsed, served
from fedspam.flower.server.exchange import Trip
from fedspam.flower.server.handle import Flower
from fedspam.flower.server.introductions import Nodes
from fedspam.flower.server.journal import Journal
from fedspam.flower.server.nodes import AssignedNodes, gathered
from fedspam.flower.server.plain import PlainApps, method_name, training_of, with_cohort
from fedspam.flower.server.replies import Replies
from fedspam.flower.server.request import MessageForm
from fedspam.flower.server.run import FlowerRun, RunStep, StoppedError, model_of, report, status_of
from fedspam.flower.server.stop import FILE as STOP, StopRequestedError, stoppable
from fedspam.flower.wire import arrays, envelope
from fedspam.flower.wire.schema import NodePopulation, Schema
from fedspam.methods import Buffered
from fedspam.simulation import records
from fedspam.simulation.status import COMPLETED

LOG = logging.getLogger("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class StartArguments(NamedTuple):
    """What `FedspamStrategy.start` is given, and what it has made of it."""

    grid: Grid
    initial: ArrayRecord
    rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Evaluate | None
    folder: Path | None
    events: RunEvents


@dataclass(eq=False)
class FedspamStrategy(Strategy):
    """A method of this package as a Flower strategy, with the arguments, `start` and `Result` of Flower's FedAvg.

    The clients run the ClientApp of `fedspam.flower.client_app` with the same method. The random draws are those of
    `fedspam.simulate` with ``key=seed``, and the iterates are equal up to the rounding of sums.

    Arguments:
        method: the method, such as ``spam_pp(cohort_size=10, step_size=1.0, fresh_weight=0.2)``.
        params: a pytree with the structure that the clients use; None if that is a dictionary of arrays by name.
        seed: the seed of all random draws.
        fraction_train: the cohort as a share of all clients, instead of the method's own cohort size.
        fraction_evaluate: the share of the clients that evaluate the model after each round; 0 saves that exchange.
        held_out: the number of clients, those with the highest ids, that never train and evaluate the model after each
            round: all of them, or `fraction_evaluate` of them.
        min_train_nodes: the smallest cohort that `fraction_train` may give.
        min_evaluate_nodes: the smallest number of clients that `fraction_evaluate` may give.
        min_available_nodes: the number of nodes to wait for before the start.
        replies: whom the server asks, how long it waits, and which replies it takes: `fedspam.flower.Replies`.
        aggregate: a rule of `fedspam.federation.aggregation` instead of the mean over several clients.
        secure: the secure sum, with the settings of the clients; see `fedspam.flower.privacy.secure_client.SecureSum`.
        codecs: how messages and replies are compressed, as in `fedspam.simulate`; the same as on the clients. Replies
            that are summed securely can be compressed by `Grid` alone, whose codes add.
        folder: where rows, checkpoints and the trained parameters are written, as by `fedspam.simulate`; None writes
            nothing.
        resume: continue the run in that folder; the result has the same bits as that of an uninterrupted run.
        after: the folder of another run, from whose model this one goes on instead of from `initial_arrays`, with
            another method or other settings. It needs a folder of its own, whose model file lists the stages so far.
        introductions: with at most this many nodes, each is asked for its partition id before the first round, and
            that is the id of its client. With more nodes, client i is the i-th node that registered with Flower, and a
            node introduces itself with its first reply, so that the start takes no longer. Clients that are asked for
            by their ids, and secure sums, need all introductions.
        metrics: the port of 127.0.0.1, or the ``host:port``, at which a status page (``/``) and metrics in Prometheus'
            text format (``/metrics``) are served while the run lasts; None serves nothing. With a folder, metrics are
            also in its ``metrics.prom`` after each round, and ``events.jsonl`` has a line per exchange and round.
        arrayrecord_key, configrecord_key: the names of the records in a message.

    >>> from fedspam import spam_pp
    >>> strategy = FedspamStrategy(spam_pp(cohort_size=3, step_size=1.0, fresh_weight=0.2), min_available_nodes=3)
    """

    method: Any
    params: Params | None = None
    _: KW_ONLY
    seed: int = 0
    fraction_train: float | None = None
    fraction_evaluate: float = 0.0
    held_out: int = 0
    min_train_nodes: int = 1
    min_evaluate_nodes: int = 1
    min_available_nodes: int = 2
    replies: Replies = field(default_factory=Replies)
    aggregate: Rule | None = None
    secure: SecureSum | None = None
    codecs: CodecsLike | None = None
    folder: str | Path | None = None
    resume: bool = False
    after: str | Path | None = None
    introductions: int = 32
    metrics: int | str | None = None
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    provenance: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)  # of the model, after `start`
    _nodes: Nodes | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("seed", "introductions", "held_out"):
            checks.whole(name, getattr(self, name), 0)
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            checks.whole(name, getattr(self, name), 1)
        checks.between("fraction_evaluate", self.fraction_evaluate, 0, 1)
        if self.fraction_train is not None:
            checks.between("fraction_train", self.fraction_train, 0, 1, open_low=True)
        if isinstance(self.method, Buffered) and (self.secure is not None or self.replies.over_selection):
            raise ValueError("buffered rounds wait for nobody; leave secure and over_selection out")
        if self.secure is not None and self.aggregate is not None:
            raise ValueError("aggregate needs single replies, which secure hides; give one of the two")
        if self.secure is not None and self.replies.over_selection:
            raise ValueError("a secure sum waits for all its members; leave over_selection out, or secure")
        if training_of(self.method) is not None and (self.secure is not None or self.codecs):
            raise ValueError(
                "a secure sum and codecs need clients of this package; leave them out, or make the app with "
                "fedspam.flower.client_app and give the method local_steps"
            )
        if self.metrics is not None:
            parsed(self.metrics)
        if self.after is not None and (
            self.folder is None or Path(self.after).resolve() == Path(self.folder).resolve()
        ):
            raise ValueError(f"after = {str(self.after)!r} needs another folder to write to; give folder")
        if self.resume and self.folder is None:
            raise ValueError("resume = True needs the folder of the run")
        names = (self.arrayrecord_key, self.configrecord_key, envelope.HEADER)
        if len(set(names)) < 3:
            raise ValueError(
                f"arrayrecord_key = {names[0]!r} and configrecord_key = {names[1]!r} must differ from each other and "
                f"from {names[2]!r}"
            )

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        cohort = f"fraction {self.fraction_train:.2f}" if self.fraction_train is not None else "the method's own cohort"
        LOG.info("\t├──> Method: %s", method_name(self.method))
        LOG.info("\t├──> Sampling:")
        LOG.info("\t│\t├──Train: %s | evaluate: fraction %.2f", cohort, self.fraction_evaluate)
        LOG.info("\t│\t├──Seed: %d", self.seed)
        LOG.info("\t│\t└──Minimum available nodes: %d", self.min_available_nodes)
        LOG.info("\t├──> Exchanges: quorum %.2f | retries %d", self.replies.quorum, self.replies.retries)
        if self.codecs:
            LOG.info("\t├──> Codecs: %s", ", ".join(f"{name}: {codec}" for name, codec in self.codecs.items()))
        LOG.info("\t├──> Folder: %s", self.folder or "(none: nothing is written)")
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
            initial_arrays: the parameters to start from; `fedspam.flower.to_arrays` makes them from a pytree.
            num_rounds: the number of rounds.
            timeout: the deadline of one attempt at an exchange, in seconds; also the time to wait for nodes.
            train_config, evaluate_config: the ConfigRecord of the messages.
            evaluate_fn: (round, arrays) -> metrics, on the server, before the first round and after each.
        """
        checks.whole("num_rounds", num_rounds, 1)
        checks.positive("timeout", timeout)
        began, folder = time.monotonic(), None if self.folder is None else Path(self.folder)
        LOG.info("Starting %s strategy:", type(self).__name__)
        LOG.info("\t├── Number of rounds: %d", num_rounds)
        LOG.info("\t├── ArrayRecord (%.2f MB)", sum(len(array.data) for array in initial_arrays.values()) / 2**20)
        self.summary()
        LOG.info("")
        events = RunEvents(folder, method_name(self.method), num_rounds)
        with stoppable(folder), served(events, self.metrics) as address:
            if address is not None:
                LOG.info("Status page: %s; metrics: %s", address.removesuffix("metrics"), address)
            LOG.info("To stop this run: kill -TERM %d%s", os.getpid(), f", or touch {folder / STOP}" if folder else "")
            configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
            given = StartArguments(grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn, folder, events)
            result = self._run(given)
        LOG.info("")
        LOG.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        LOG.info("")
        LOG.info("Final results:")
        for line in io.StringIO(str(result)):
            LOG.info("\t%s", line.strip("\n"))
        return result

    def _prepared(self, given: StartArguments) -> FlowerRun:
        """Settle which node is which client, and what identifies the run."""
        own, codecs, folder = training_of(self.method), Codecs.of(self.codecs), given.folder
        plain = None if own is None else PlainApps(self.method, own, given.initial, self.params)
        params = arrays.to_params(given.initial, self.params) if plain is None else plain.start()
        key, schema = jax.random.key(self.seed), Schema.of(self.method, params, codecs)
        if plain is not None:
            plain.check(schema)
        if self.secure is not None:
            self.secure.check_codecs(schema.plan)
        LOG.info("schema: %s", schema.digest)
        before: list[dict[str, Any]] = []
        if self.after is not None:
            params, before = model_of(self.after, params)
            LOG.info("Stage %d: going on from %s", len(before) + 1, before[-1])
        nodes = self._nodes = gathered(
            given.grid, schema, given.timeout, folder, given.events, least=self.min_available_nodes,
            introductions=self.introductions,
            begun=self.resume and folder is not None and (folder / "manifest.json").exists(),
            named=self._needs_ids(schema), plain=plain is not None,
        )  # fmt: skip
        if self.held_out >= nodes.clients:
            raise ValueError(f"held_out = {self.held_out} must be below the number of clients, {nodes.clients}")
        clients, method, replies = NodePopulation(nodes.clients - self.held_out), self.method, self.replies
        if self.fraction_train is not None:
            count = max(math.floor(clients.size * self.fraction_train), self.min_train_nodes)
            method = with_cohort(method, min(count, clients.size))
        further = {
            "codecs": codecs, "ids": "assigned" if isinstance(nodes, AssignedNodes) and plain is None else "",
            "over_selection": replies.over_selection,
            "largest": replies.largest if replies.largest < math.inf else 0, "stages": before,
        }  # fmt: skip
        identity = records.identity(
            method, clients, params, key, world="flower", quorum=replies.quorum, retries=replies.retries,
            aggregate=self.aggregate, **{name: value for name, value in further.items() if value},
        )  # fmt: skip
        run_id = describe.digest(identity)
        given.events.begin(run_id[:16], clients.size)
        form = MessageForm(
            run_id[:16], given.timeout, dict(given.train_config), self.arrayrecord_key, self.configrecord_key
        )
        fed = Flower(
            grid=given.grid, nodes=nodes, population=clients, schema=schema, form=form, replies=replies,
            aggregate=self.aggregate, secure=self.secure, journal=Journal(folder, run_id), events=given.events,
            plain=plain,
        )  # fmt: skip
        coded = with_feedback(method, codecs, schema.plan)
        return FlowerRun(coded, fed, params, key, replies.patience, identity, before)

    def _run(self, given: StartArguments) -> Result:
        run, result, events, folder = self._prepared(given), Result(arrays=given.initial), given.events, given.folder

        def measure(done: int, params: Params) -> dict[str, float]:
            found = given.evaluate_fn(done, run.fed.pack(params)) if given.evaluate_fn else None
            return {name: float(value) for name, value in (found or {}).items() if isinstance(value, int | float)}

        done, status, last = 0, COMPLETED, run.params
        with records.Store(folder) if folder is not None else nullcontext() as store:
            try:
                for step in run.steps(given.rounds, store, self.resume, measure):
                    done, last = step.done, step.params
                    trained = run.fed.trained() if step.fresh else {}
                    report(step, result, run.fed.pack(last), trained)
                    if not step.fresh:
                        continue
                    if done and (self.fraction_evaluate > 0 or self.held_out):
                        self._evaluate(step, result, given)
                    asked = result.evaluate_metrics_clientapp.get(done, {})
                    measured = {"server": step.metrics, "clients": dict(asked), "training": trained}
                    events.round(done, step.row, measured, parameters_hash(last))
            except StopRequestedError as error:
                status = status_of(error)
                if store is not None:
                    store.finish(status)
                LOG.warning("Stopped after round %d of %d: %s", done, given.rounds, error)
            except StoppedError as error:
                events.ended(status_of(error))
                raise
            events.ended(status)
            names = {str(client): site.name for client, site in sorted(events.sites.clients.items())}
            further = {"sites": names, "stages": run.before}
            self.provenance = {
                "run": describe.digest(run.identity), "method": method_name(self.method), "rounds": done,
                "status": status.as_json(), **{name: value for name, value in further.items() if value},
            }  # fmt: skip
            if folder is not None:
                write_model(folder / FILE, last, {"loss": None, **self.provenance})
                LOG.info("Trained model: %s (run %s, round %d)", folder / FILE, run.fed.form.run, done)
        return result

    def _needs_ids(self, schema: Schema) -> str | None:
        """Why clients must be known by their partition ids before the first round, if they must."""
        if self.secure is not None:
            return "a secure sum names its clients by their partition ids"
        return f"{method_name(self.method)} asks a client by its partition id" if schema.plan.names_a_client else None

    def _evaluate(self, step: RunStep, result: Result, given: StartArguments) -> None:
        grid, events = given.grid, given.events
        clients = self._evaluators(step.done)
        messages = {
            clients[message.metadata.dst_node_id]: message
            for message in self.configure_evaluate(step.done, result.arrays, given.evaluate_config, grid)
        }
        for message in messages.values():
            message.metadata.ttl = given.timeout
        trip = Trip(grid, evaluation.accepted)
        trip.send(messages)
        trip.wait(given.timeout)
        LOG.info("evaluate: Received %d results and %d failures", len(trip.values), len(trip.failures))
        for id, failure in sorted(trip.failures.items()):
            LOG.info("\t> %s: %s", events.sites.called(id), failure.reason)
        accepted = sorted(trip.values)
        events.exchange(step.done, "evaluate", trip.tally, sorted(trip.failures.items()), accepted, bool(accepted))
        found = evaluation.metrics_of(trip.values[id] for id in accepted)
        LOG.info("\t> shares of the examples: %s", evaluation.shares(dict(zip(accepted, found, strict=True))))
        metrics = self.aggregate_evaluate(step.done, [trip.values[id] for id in accepted])
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[step.done] = metrics

    def _evaluators(self, round: int) -> dict[int, int]:
        """The connected nodes that evaluate the model after this round, with their clients."""
        assert self._nodes is not None, "start() comes first"
        share, least = self.fraction_evaluate, self.min_evaluate_nodes
        ids = evaluation.evaluators(self.seed, round, self._nodes.clients, self.held_out, share, least)
        return {node: id for id in ids if (node := self._nodes.node(id)) is not None}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that ask clients, drawn anew each round or held out, to evaluate the model."""
        record = RecordDict({
            self.arrayrecord_key: arrays,
            self.configrecord_key: ConfigRecord({**config, "server-round": server_round}),
        })  # fmt: skip
        nodes = self._evaluators(server_round)
        return [Message(record, node, "evaluate", group_id=str(server_round)) for node in nodes]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' metrics, weighted by their numbers of examples."""
        return evaluation.weighted_means(evaluation.metrics_of(replies))

    def configure_train(self, *_: Any, **__: Any) -> Any:
        """Not used: a round may hold several exchanges, so `start` runs it as a whole."""
        raise NotImplementedError("a round of this strategy may hold several exchanges; use start()")

    aggregate_train = configure_train
