"""Run a method on a population: compiled segments of rounds, and between them the disk, the watch and the ledger."""

import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
from jaxtyping import PyTree

from fedspam._internal import checks, describe, hosts, prng
from fedspam._internal.brief import brief
from fedspam._internal.model_file import FILE, write_model
from fedspam._internal.trees import Key, Params
from fedspam.clients import Faults, Population, Ragged, Sharded
from fedspam.federation import Replay, check_replay, fitted, ledger
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.downlink import own_state
from fedspam.methods.schedules import shortest_list
from fedspam.simulation import engine, records
from fedspam.simulation.chunking import fitting_chunk
from fedspam.simulation.engine import Probe
from fedspam.simulation.host_data import Stored, lending
from fedspam.simulation.progress import ProgressBar
from fedspam.simulation.recorder import RunRecorder
from fedspam.simulation.records import Keep
from fedspam.simulation.segments import Columns, Segments, Stopwatch, final_status, started
from fedspam.simulation.status import Status
from fedspam.simulation.stopping import Patience, Target, Watch
from fedspam.simulation.tables import arrow_table, frame

if TYPE_CHECKING:
    from fedspam.methods import Method


@dataclass(frozen=True, repr=False)
class Run:
    """The result of a simulation. For `simulate_many` every array has leading axes (methods, keys)."""

    params: Params
    state: Any
    memory: PyTree  # of the clients
    rows: Columns  # one value per round: the method's info, bytes, contacts, void
    probes: Columns  # one value every `every` rounds, the start first
    plan: ledger.Plan
    status: Status  # how it ended
    compile_seconds: float
    run_seconds: float
    rounds_done: Any = None  # rounds of every run of `simulate_many`, which may end before the last row
    every: int = 1  # rounds between two values of a probe

    @property
    def rounds(self) -> int:
        return next(iter(self.rows.values())).shape[-1]

    def to_arrow(self) -> Any:
        """Rows and probes as one table of pyarrow: a line per round, the start first; null where nothing was measured.

        Runs of `simulate_many` follow each other, with columns `setting` and `seed` for their places among the methods
        and keys. A probe with the name of a row is called ``probe.<name>``.
        """
        return arrow_table(self.rows, self.probes, self.every, self.rounds_done)

    def to_pandas(self) -> Any:
        """The table of `to_arrow` as a DataFrame of pandas."""
        return frame(self.to_arrow(), "pandas")

    def to_polars(self) -> Any:
        """The table of `to_arrow` as a DataFrame of polars."""
        return frame(self.to_arrow(), "polars")

    def __repr__(self) -> str:
        shown = {"status": str(self.status), "rounds": self.rounds, "params": self.params}
        shown |= {"rows": sorted(self.rows), "probes": sorted(self.probes)}
        return f"Run({', '.join(f'{name}={brief(value)}' for name, value in shown.items())})"


def simulate(
    method: "Method[Any]",
    population: Population,
    params: Params,
    *,
    rounds: int,
    key: Key | int,
    probe: Probe | None = None,
    every: int = 1,
    record: Sequence[str] | None = None,
    until: Target | Patience | None = None,
    watch: Watch | None = None,
    faults: Faults | None = None,
    replay: Replay | None = None,
    quorum: float = 0.0,
    aggregate: Rule | None = None,
    codecs: Codecs | CodecsLike | None = None,
    per_client: bool = False,
    chunk: int | Literal["fit"] | None = None,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    folder: str | Path | records.Store | None = None,
    resume: bool = False,
    keep: Keep | None = None,
    observe: Callable[[int, Columns, Columns], None] | Literal["bar"] | None = None,
) -> Run:
    """Run `rounds` rounds of a method.

    Only the first five arguments are needed. The others are independent of each other, so they are not grouped into
    objects that a user would have to import.

    Arguments:
        method: what to run, such as ``fedavg(cohort_size=10, local_steps=5, local_rate=0.1)``.
        population: the clients.
        params: the first parameters, any pytree of float arrays.
        rounds: how many rounds.
        key: the randomness: a key, or a seed from 0 to 2^32 - 1.

        probe: params -> dict of numbers, evaluated before the first round and after every `every` rounds. To give it
            data of its own, use ``jax.tree_util.Partial(function, data)``.
        every: rounds between two evaluations of the probe.
        record: names of the info to keep, such as 'certificate.decrease'; None for all, () for none.

        until: the run ends, as "reached", once a probe has reached this `Target`, or has not improved for a while
            (`Patience`).
        watch: when a diverging run is stopped; its parameters are then the last good ones.

        faults: clients that stay silent, reply late, or reply nonsense.
        replay: ids that replace the draws: {'cohort': [rounds, B], 'prox': [rounds]}; duplicates are allowed.
        quorum: the share of a cohort whose replies must be accepted; otherwise the round is void: its cost is charged,
            and it has no effect.
        aggregate: a rule of `fedspam.federation.aggregation` instead of the mean over several clients.
        codecs: how messages and replies are compressed: ``{"up": Quantize(4), "down": "float16"}``, or by the name of
            a field; see `fedspam.federation.codecs.Codecs`.
        per_client: let each client reply alone in every round, not only in those where the mean client is not finite.

        chunk: clients of a cohort that run side by side; None for the fastest, 'fit' for as many as memory holds.
        devices: the devices that every cohort is spread over, such as jax.devices(), also of other hosts; None for one.

        folder: where rows, checkpoints and the trained model are written (`fedspam.load` reads it); None keeps them in
            memory. A `Store` that is open stays open, so that whoever opened it can write more there.
        resume: continue the run of that folder, to the bits of a run that was never interrupted.
        keep: how often checkpoints are written, and which of them stay.
        observe: called after every segment with the rounds done, and the rows and probes since the last call; 'bar'
            for a progress bar on stderr with the time remaining.
    """
    checks.whole("rounds", rounds, 1)
    checks.whole("every", every, 1)
    _check_method(method, rounds)
    checks.between("quorum", quorum, 0, 1)
    if chunk is not None and chunk != "fit":
        checks.whole("chunk", chunk, 1)
    if isinstance(observe, str):
        checks.one_of("observe", observe, ("bar",))
    if resume and folder is None:
        raise ValueError("resume = True needs the folder of the run")
    key, watch, keep, record = prng.key_of(key), watch or Watch(), keep or Keep(), recorded(record)
    chunk = fitting_chunk(method, population, params) if chunk == "fit" else chunk
    setup, plan = engine.prepared(
        method, population, params, key, probe=probe, codecs=codecs, devices=devices, faults=faults, replay=replay,
        quorum=quorum, aggregate=aggregate, per_client=per_client, chunk=chunk,
    )  # fmt: skip
    check_replay(replay, rounds, population, plan.roles)
    seen = ProgressBar(rounds) if isinstance(observe, str) else observe
    length = _length(population, keep, every, until, seen)

    is_open = isinstance(folder, records.Store | None)  # or there is none
    opened = nullcontext(folder) if is_open else records.Store(folder, keep, shared=True)
    with opened as store, lending(setup, length, rounds) as lend:
        options = {"probe": probe, "watch": watch, "every": every, "record": record}
        options |= {"codecs": setup.codecs} if setup.codecs else {}  # without any, older folders can be resumed
        identity = {} if store is None else setup.identity(fitted(method, population), options)
        recorder = RunRecorder(store, identity, every)
        recorder.begin(lambda: started(setup, plan), lambda: setup.start()[0], resume)
        recorder.check_length(rounds)
        recorder.saved = recorder.saved._replace(carry=engine.everywhere(setup.mesh, recorder.saved.carry))
        segments = Segments(setup, plan, length, every, record, until, watch, Stopwatch())
        for segment in segments.after(recorder.saved, rounds, lend):
            recorder.add(segment)
            if segment.kept and seen is not None:
                seen(segment.done, segment.rows, segment.probes)
        if isinstance(seen, ProgressBar):
            seen.close()
        (carry, done, *_), (rows, probes) = recorder.saved, recorder.tables
        status = segments.status or final_status(plan, rows, faults)
        final = engine.finish(setup.method, carry)
        recorder.finish(status)
        if store is not None and store is not folder:  # whoever opened the store knows more about the model
            loss = describe.describe(population.loss) if isinstance(population, Ragged | Sharded) else None
            facts = {"run": describe.digest(recorder.identity), "rounds": done, "status": status.as_json()}
            hosts.first(lambda: write_model(store.folder / FILE, final, {"loss": loss, **facts}))

    seconds = (segments.clock.compile_seconds, segments.clock.run_seconds)
    return Run(final, own_state(carry.state), carry.memory, rows, probes, plan, status, *seconds, every=every)


def _length(population: Population, keep: Keep, every: int, until: Any, observe: Any) -> int:
    """The most rounds of a segment. Where segments end changes no result."""
    rounds = min(keep.every, observe.segment) if isinstance(observe, ProgressBar) else keep.every
    rounds = every if isinstance(until, Patience) else rounds  # such a run may end after any evaluation
    rounds = min(rounds, population.window) if isinstance(population, Stored) else rounds
    return max(every, rounds // every * every)


def _check_method(method: Any, rounds: int) -> None:
    """Refuse a constructor in place of a method, and warn of a list that ends before the run."""
    if isinstance(method, type | types.FunctionType | str):
        name = method if isinstance(method, str) else method.__name__
        raise ValueError(f"method = {name} is a constructor, not a method; call it: {name}(cohort_size=10, ...)")
    given = shortest_list(method)
    if given is not None and given < rounds:
        warnings.warn(
            f"a step size or weight has {given} values for {rounds} rounds; later rounds use the last one. Give one "
            "value per round, or a schedule such as fedspam.methods.schedules.Power",
            stacklevel=3,
        )


def recorded(record: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of columns to keep, checked; None for all."""
    names = (record,) if isinstance(record, str) else None if record is None else tuple(record)
    wrong = next((name for name in names or () if not isinstance(name, str)), None)
    if wrong is not None:
        raise ValueError(f"record holds {wrong!r}; it must be names of columns, such as 'certificate.decrease'")
    return names


def restore(
    method: "Method[Any]", population: Population, params: Params, folder: str | Path, *,
    best: bool = False, codecs: Codecs | CodecsLike | None = None,
) -> tuple[Params, int]:  # fmt: skip
    """The last parameters in a run folder, or the best ones, and the number of rounds that led to them.

    The codecs matter only where clients or the server remember errors (`Feedback`).
    """
    setup, _ = engine.prepared(method, population, params, jax.random.key(0), codecs=codecs)
    carry, done = records.Store(folder).peek(jax.eval_shape(lambda: setup.start()[0]), best)
    return engine.finish(setup.method, carry), done
