"""Run a method on a population: compiled segments of rounds, and between them the disk, the watch and the ledger."""

import itertools
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from fedspam._internal import checks, describe, hosts, prng
from fedspam._internal.brief import brief
from fedspam._internal.model_file import FILE, write_model
from fedspam._internal.trees import Params
from fedspam.clients import Faults, Population, Ragged, Sharded
from fedspam.federation import Replay, check_replay, fitted, ledger
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.downlink import own_state, with_feedback
from fedspam.federation.witness import diagnose, diagnose_start
from fedspam.methods.schedules import shortest_list
from fedspam.simulation import engine, records, stopping
from fedspam.simulation.chunking import fitting_chunk
from fedspam.simulation.engine import Carry, Conditions, Layout, Probe
from fedspam.simulation.host_data import lending, segment_of
from fedspam.simulation.progress import ProgressBar
from fedspam.simulation.records import Keep
from fedspam.simulation.segments import Columns, Segments, Stopwatch, shared, warn_of_replies
from fedspam.simulation.shared_store import SharedStore, store_of
from fedspam.simulation.status import COMPLETED, Status
from fedspam.simulation.stopping import Patience, Target, Watch
from fedspam.simulation.tables import arrow_table, pandas_frame, polars_frame

if TYPE_CHECKING:
    from fedspam.methods import Method

STARTS = 10  # attempts at a start that faults make void


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
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> Any:
        """The table of `to_arrow` as a DataFrame of polars."""
        return polars_frame(self.to_arrow())

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
    key: Key[Array, ""] | int,
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
    folder: str | Path | records.Store | SharedStore | None = None,
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
    if resume and folder is None:
        raise ValueError("resume = True needs the folder of the run")
    params = checks.params("params", params)
    key, method = prng.key_of(key), fitted(method, population)
    watch, keep = watch or Watch(), keep or Keep()
    record = _recorded(record)
    chunk = fitting_chunk(method, population, params) if chunk == "fit" else chunk
    layout = Layout(chunk, quorum, per_client, engine.mesh_of(devices, population))
    method, population, params, key = engine.everywhere(layout.mesh, (method, population, params, key))
    coded = Codecs.of(codecs)
    conditions = Conditions(faults, replay, as_argument(probe), aggregate, codecs=coded)
    alone = per_client or aggregate is not None
    plan = ledger.plan(method, params, population, faults=faults, per_client=alone, codecs=coded)
    check_replay(replay, rounds, population, plan.roles)
    named, method = method, with_feedback(method, coded, plan)
    begin = lambda attempt, layout: engine.begin(
        method, population, params, key, conditions, layout, jnp.uint32(attempt)
    )
    layouts = [layout, replace(layout, per_client=True)] if shared(plan.start) else [layout]

    if isinstance(observe, str):
        checks.one_of("observe", observe, ("bar",))
    bar = ProgressBar(rounds) if observe == "bar" else None
    seen = bar if isinstance(observe, str) else observe
    asked = min(keep.every, bar.segment) if bar is not None else keep.every
    # a run that may end after any evaluation stops after each; where segments end changes no result
    asked = every if isinstance(until, Patience) else asked
    length = max(every, segment_of(population, asked) // every * every)
    clock = Stopwatch()
    if folder is None or isinstance(folder, records.Store | SharedStore):
        store_or_none = nullcontext(folder)
    else:
        store_or_none = store_of(folder, keep)
    with store_or_none as store, lending(method, population, key, conditions, layout, length, rounds) as lend:
        saved, identity = None, {}
        if store is not None:
            options = {"layout": layout.as_recorded, "faults": faults, "replay": replay, "probe": probe}
            options |= {"aggregate": aggregate, "watch": watch, "every": every, "record": record}
            options |= {"codecs": coded} if coded else {}  # without any, folders of earlier versions can be resumed
            identity = records.identity(named, population, params, key, **options)
            if resume:
                blank = lambda: engine.first_carry(method, population, params, key, conditions, layout)[0]
                saved = store.load(identity, like=blank)
            if saved is None:
                store.begin(identity, over=resume)
        if saved is None:
            carry = _start(begin, layouts, method, population, params, key, conditions)
            first = _numpy(engine.probe_values(method, carry, conditions.probe))
            saved = records.Saved(carry, 0, [], [{name: value[None] for name, value in first.items()}])
            if store is not None:
                store.append(0, carry, {}, saved.probes[0])
        carry, done, rows, probes = engine.everywhere(layout.mesh, saved.carry), *saved[1:]
        if store is not None and done > rounds:
            raise records.RecordError(
                f"{store.folder} already holds {done} rounds, more than rounds = {rounds}; ask for at least {done}"
            )
        bounds = stopping.bounds(watch, until, probes, params)
        conditions = Conditions(faults, replay, conditions.probe, aggregate, bounds, coded)

        def ended() -> Status | None:
            reached = until.reached(probes) if until is not None and done else None
            return reached or _void_status(method, population, carry, key, conditions, watch, rows, done)

        segments = Segments(method, key, layout, length, every, record, until, plan, clock)
        status = ended()
        while done < rounds and status is None:
            # a segment ends at a multiple of `every`, so that probes are evaluated at the same rounds after a resume
            count = min(length, rounds - done, every - done % every if done % every else length)
            began = clock.run_seconds
            end = segments.run(lend(carry, done, count), carry, done, count, conditions, probes)
            rows.append(end.rows)
            probes.append(end.probes)
            reached = until is not None and bool(until.reached(probes))
            if end.stopped and int(end.carry.void_streak) < watch.patience and not reached:
                # the run shows what led here; the folder keeps the state before it
                status = stopping.growth_status(watch, bounds, end.carry, method, end.probes, done + end.done, done)
                break
            carry, done, seconds = end.carry, done + end.done, clock.run_seconds - began
            if store is not None:
                store.append(done, carry, end.rows, end.probes, probed=done % every == 0, seconds=seconds)
            if seen is not None:
                seen(done, end.rows, end.probes)
            status = ended()
        if bar is not None:
            bar.close()
        all_rows, all_probes = records.joined(rows), records.joined(probes)
        status = status or _final_status(plan, all_rows, faults)
        final = engine.finish(method, carry)
        if store is not None:
            store.finish(status)
            # whoever knows more about the model, such as `fedspam run`, writes the file again
            loss = describe.describe(population.loss) if isinstance(population, Ragged | Sharded) else None
            facts = {"loss": loss, "run": describe.digest(identity), "rounds": done, "status": status.as_json()}
            path = store.folder / FILE
            hosts.first(lambda: write_model(path, final, facts))

    seconds = (clock.compile_seconds, clock.run_seconds)
    return Run(final, own_state(carry.state), carry.memory, all_rows, all_probes, plan, status, *seconds, every=every)


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


def _recorded(record: Sequence[str] | None) -> tuple[str, ...] | None:
    names = (record,) if isinstance(record, str) else None if record is None else tuple(record)
    wrong = next((name for name in names or () if not isinstance(name, str)), None)
    if wrong is not None:
        raise ValueError(
            f"record holds {wrong!r}; it must be names of columns, such as record=['certificate.decrease']"
        )
    return names


def restore(
    method: "Method[Any]",
    population: Population,
    params: Params,
    folder: str | Path,
    *,
    best: bool = False,
    codecs: Codecs | CodecsLike | None = None,
) -> tuple[Params, int]:
    """The last parameters in a run folder, or the best ones, and the number of rounds that led to them.

    The codecs matter only where clients or the server remember errors (`Feedback`).
    """
    method, coded = fitted(method, population), Codecs.of(codecs)
    method = with_feedback(method, coded, ledger.plan(method, params, population, codecs=coded))
    around = Conditions(codecs=coded)
    blank = lambda: engine.first_carry(method, population, params, jax.random.key(0), around, Layout())[0]
    carry, done = records.Store(folder).peek(jax.eval_shape(blank), best)
    return engine.finish(method, carry), done


def _start(
    begin: Callable[[int, Layout], tuple[Carry, Any]],
    layouts: Sequence[Layout],
    method: Any,
    population: Population,
    params: Params,
    key: Any,
    conditions: Conditions,
) -> Carry:
    """The first carry. A start that is void is repeated, with every client alone, and a few times with others."""
    carry: Any = None
    for attempt, layout in itertools.product(range(STARTS), layouts):
        carry, void = begin(attempt, layout)
        if not bool(void) and engine.healthy(carry.state):
            if layout != layouts[0]:
                warnings.warn(
                    "a reply was not finite, and was left out of the start; look for the client", stacklevel=3
                )
            return carry
    start_key, options = engine.start_key(key, 0), {"aggregate": conditions.aggregate, "codecs": conditions.codecs}
    found = _reachable(population) and diagnose_start(method, population, params, carry.memory, start_key, **options)
    raise RuntimeError(
        f"no client gave a usable reply to the start of the method in {STARTS} attempts"
        + (f" ({found[0]})" if found else "")
        + "; check that the loss is finite at the first parameters, or lower the fault rates and the quorum"
    )


def _void_status(
    method: Any,
    population: Population,
    carry: Carry,
    key: Any,
    conditions: Conditions,
    watch: Watch,
    rows: list[dict[str, np.ndarray]],
    done: int,
) -> Status | None:
    """Why a run stops after too many void rounds in a row: the round, the exchange and the client."""
    if int(carry.void_streak) < watch.patience:
        return None
    void = np.concatenate([part["void"] for part in rows if part])
    first = done - int(np.argmin(np.append(void[::-1], False)))  # the void rounds at the end begin here
    for round in range(first, done) if _reachable(population) else ():
        found = diagnose(
            method, population, carry.state, carry.memory, key,
            round=round, replay=conditions.replay, aggregate=conditions.aggregate, codecs=conditions.codecs,
        )  # fmt: skip
        if found:
            others = f" (and {len(found) - 1} more clients)" if len(found) > 1 else ""
            return Status(
                "stopped",
                f"round {round}, {found[0]}{others}; every round since then was void, up to round {done - 1}. "
                f"The state before round {first} is kept",
            )
    return Status("stopped", f"every round from {first} to {done - 1} was void; the state before them is kept")


def _reachable(population: Population) -> bool:
    """Whether any client can be asked alone: not if some are on other hosts."""
    return all(leaf.is_fully_addressable for leaf in jax.tree.leaves(population) if isinstance(leaf, jax.Array))


def _final_status(plan: ledger.Plan, rows: Columns, faults: Faults | None) -> Status:
    """How a run ended that did all its rounds."""
    count = int(rows["void"].sum())
    if count == len(rows["void"]):
        return Status("stopped", f"all {count} rounds were void; the first parameters are kept")
    warn_of_replies(plan, rows, rows["void"], faults, stacklevel=4)
    return COMPLETED


def as_argument(probe: Probe | None) -> Any:
    """A probe that can enter compiled code: structs and Partials as they are, plain functions wrapped."""
    return jax.tree_util.Partial(probe) if isinstance(probe, types.FunctionType | types.MethodType) else probe


def _numpy(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in tree.items()}
