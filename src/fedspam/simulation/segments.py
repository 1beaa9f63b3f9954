"""The rounds of a run, segment by segment, without the disk: the start, the rounds, and why a run ends."""

import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal import trees
from fedspam.clients import Faults
from fedspam.federation import Contacts, ledger
from fedspam.federation.witness import Trouble, Witness
from fedspam.simulation import engine, records, stopping
from fedspam.simulation.engine import Bounds, Carry, Progress, Setup
from fedspam.simulation.host_data import Lend
from fedspam.simulation.records import Saved
from fedspam.simulation.status import COMPLETED, Status
from fedspam.simulation.stopping import Patience, Probes, Target, Watch

Columns = Mapping[str, np.ndarray]
STARTS = 10  # attempts at a start that faults make void


class Stopwatch:
    """Seconds spent compiling and seconds spent running, apart."""

    def __init__(self) -> None:
        self.compile_seconds = self.run_seconds = 0.0
        self._warm: set[str] = set()  # programs

    def time(self, advance: Callable[[int], Any], count: int, program: str = "") -> Any:
        if program not in self._warm:  # zero rounds: everything is compiled and nothing runs
            began = time.perf_counter()
            jax.block_until_ready(advance(0))
            self.compile_seconds += time.perf_counter() - began
            self._warm.add(program)
        began = time.perf_counter()
        result = jax.block_until_ready(advance(count))
        self.run_seconds += time.perf_counter() - began
        return result


class Segment(NamedTuple):
    """What a segment ends with."""

    carry: Carry
    rows: dict[str, np.ndarray]
    probes: dict[str, np.ndarray]
    done: int  # rounds of the run
    stopped: bool = False
    seconds: float = 0.0  # of its rounds
    kept: bool = True  # False if the run grew beyond its bound: its rows show it, and the state before it is kept


@dataclass
class Segments:
    """The segments of a simulation. After the last one, `status` says why the run ended before its last round.

    One reply that is not finite spoils the mean client, which does affine work for all. The compiled rounds stop there,
    and this one round is repeated with every client alone, so that only the reply is left out. The other rounds are
    those of a run that never met the client, and no bit depends on where segments begin.
    """

    setup: Setup
    plan: ledger.Plan
    length: int  # rounds, at most
    every: int
    record: tuple[str, ...] | None
    until: Target | Patience | None
    watch: Watch
    clock: Stopwatch
    status: Status | None = None

    def after(self, saved: Saved, rounds: int, lend: Lend) -> Iterator[Segment]:
        """The segments from a state to the last round; `lend` gives each one its clients."""
        carry, done, rows, probes = saved.carry, saved.done, [*saved.rows], [*saved.probes]
        watch, until = self.watch, self.until
        stopping.check_probes(watch, until, probes[0])
        first = 1.0 if watch.probe is None else float(probes[0][watch.probe][0])
        bounds = stopping.bounds(watch, until, self.setup.params, first)
        self.status = self._ended(carry, done, rows, probes)
        while done < rounds and self.status is None:
            # a segment ends at a multiple of `every`, so that probes are evaluated at the same rounds after a resume
            count = min(self.length, rounds - done, self.every - done % self.every if done % self.every else rounds)
            began = self.clock.run_seconds
            setup = dataclasses.replace(self.setup, population=lend(carry, done, count), bounds=bounds)
            end = self._segment(setup, carry, done, count, probes)
            rows.append(end.rows)
            probes.append(end.probes)
            reached = until is not None and bool(until.reached(probes))
            kept = reached or not end.stopped or int(end.carry.void_streak) >= watch.patience
            if kept:
                carry, done = end.carry, end.done
                self.status = self._ended(carry, done, rows, probes)
            else:
                self.status = self._growth_status(bounds, end, done)
            yield end._replace(seconds=self.clock.run_seconds - began, kept=kept)

    def _segment(self, setup: Setup, carry: Carry, start: int, count: int, before: Probes) -> Segment:
        """Run `count` rounds. `before` are the values of the probes so far."""
        rows: list[dict[str, np.ndarray]] = []
        probes: list[dict[str, np.ndarray]] = []
        at, stopped, alone = start, False, False
        while at < start + count and not stopped:
            left = start + count - at
            some = 1 if alone else min(left, self.every - at % self.every if at % self.every else left)
            bounds = setup.bounds
            if isinstance(self.until, Target):
                bounds = dataclasses.replace(bounds, streak=jnp.int32(self.until.streak([*before, *probes])))
            if shared(self.plan.round) and not alone:
                bounds = dataclasses.replace(bounds, void_streak=jnp.int32(1))
            end = self._advance(dataclasses.replace(setup, bounds=bounds), carry, at, some, alone)
            columns, went = engine.columns(end.rows), int(end.done)
            spoiled = shared(self.plan.round) and not alone and bool(columns["void"][went - 1])
            went -= spoiled
            probed = (at + went) // self.every - at // self.every
            rows.append(priced(self.plan, {name: column[:went] for name, column in columns.items()}))
            probes.append({name: np.asarray(value)[:probed] for name, value in end.probes.items()})
            streak = carry.void_streak if went == 0 else jnp.int32(0)
            carry = end.carry._replace(void_streak=streak) if spoiled else end.carry
            at, stopped, alone = at + went, bool(end.stopped) and not spoiled, spoiled
        return Segment(carry, records.joined(rows), records.joined(probes), at, stopped)

    def _advance(self, setup: Setup, carry: Carry, start: int, count: int, alone: bool) -> Progress:
        setup = dataclasses.replace(setup, per_client=True) if alone else setup
        advance = lambda count, careful=alone: engine.advance(
            setup, carry, jnp.int32(start), jnp.int32(count),
            length=self.every if alone else self.length, every=self.every, record=self.record, careful=careful,
        )  # fmt: skip
        end = self.clock.time(advance, count, "alone" if alone else "together")
        if not alone and not engine.healthy(end.carry.state):
            end = self.clock.time(lambda count: advance(count, careful=True), count, "careful")
        return end

    def _ended(self, carry: Carry, done: int, rows: list[dict[str, np.ndarray]], probes: Probes) -> Status | None:
        """How the run has ended, if it has: at its target, or after too many void rounds in a row."""
        reached = self.until.reached(probes) if self.until is not None and done else None
        if reached or int(carry.void_streak) < self.watch.patience:
            return reached
        void = np.concatenate([part["void"] for part in rows if part])
        first = done - int(np.argmin(np.append(void[::-1], False)))  # the void rounds at the end begin here
        for number in range(first, done):
            key = jax.random.fold_in(self.setup.key, number)
            step = lambda fed: self.setup.method.round(carry.state, key, fed)[0]
            if found := troubles(self.setup, carry, number, step):
                others = f" (and {len(found) - 1} more clients)" if len(found) > 1 else ""
                return Status(
                    "stopped",
                    f"round {number}, {found[0]}{others}; every round since then was void, up to round {done - 1}. "
                    f"The state before round {first} is kept",
                )
        return Status("stopped", f"every round from {first} to {done - 1} was void; the state before them is kept")

    def _growth_status(self, bounds: Bounds, end: Segment, good: int) -> Status:
        """The status of a run that grew beyond its bound in this segment; the state after `good` rounds is kept."""
        watch, method = self.watch, self.setup.method
        if watch.probe is None:
            name, value, bound = "‖x‖", float(trees.norm(method.params(end.carry.state))), float(bounds.norm)
        else:
            name, value, bound = f"the probe {watch.probe!r}", float(end.probes[watch.probe][-1]), float(bounds.probe)
        return Status(
            "diverged",
            f"after round {end.done - 1}, {name} = {value:.4g} exceeds {bound:.4g}, {watch.growth:g} times its first "
            f"value. The state after {good} rounds is kept",
        )


def started(setup: Setup, plan: ledger.Plan) -> tuple[Carry, dict[str, Any]]:
    """The first carry, and the values of the probe there.

    A start that is void is repeated, with every client alone, and a few times with others.
    """
    carry: Any = None
    for attempt, alone in itertools.product(range(STARTS), (False, True) if shared(plan.start) else (False,)):
        carry, void = engine.begin(dataclasses.replace(setup, per_client=True) if alone else setup, attempt)
        if not bool(void) and engine.healthy(carry.state):
            if alone:
                warnings.warn("a reply was not finite and was left out of the start; look for the client", stacklevel=5)
            return carry, setup.probes(carry)
    key = engine.start_key(setup.key, 0)
    found = troubles(setup, carry, 0, lambda fed: setup.method.init(setup.params, key, fed))
    raise RuntimeError(
        f"no client gave a usable reply to the start of the method in {STARTS} attempts"
        + (f" ({found[0]})" if found else "")
        + "; check that the loss is finite at the first parameters, or lower the fault rates and the quorum"
    )


def troubles(setup: Setup, carry: Carry, number: int, step: Callable[[Witness], Any]) -> list[Trouble]:
    """What is not finite in a step from this carry. Clients on other hosts cannot be asked alone: nothing is found."""
    arrays = [leaf for leaf in jax.tree.leaves(setup.population) if isinstance(leaf, jax.Array)]
    if not all(leaf.is_fully_addressable for leaf in arrays):
        return []
    options = {"round": number, "replay": setup.replay, "aggregate": setup.aggregate, "codecs": setup.codecs}
    return Witness(setup.population, carry.memory, **options).troubles_of(step)


def final_status(plan: ledger.Plan, rows: Columns, faults: Faults | None) -> Status:
    """How a run ended that did all its rounds."""
    count = int(rows["void"].sum())
    if count == len(rows["void"]):
        return Status("stopped", f"all {count} rounds were void; the first parameters are kept")
    warn_of_replies(plan, rows, rows["void"], faults, stacklevel=4)
    return COMPLETED


def shared(exchanges: tuple[ledger.Exchange, ...]) -> bool:
    """Whether the mean client does some of the work, so that one reply can spoil all."""
    return any(exchange.shared for exchange in exchanges)


def counted(plan: ledger.Plan, rows: Columns) -> dict[str, np.ndarray]:
    """The rows with the contacts of every mean: on the mean client all replies count, or none."""
    void = rows["void"]
    found = dict(rows)
    for label, size in ((exchange.label, exchange.cohort) for exchange in plan.round if exchange.shared):
        everyone = Contacts(*(np.full(void.shape, size, np.int32) for _ in Contacts._fields))
        contacts = Contacts(*(rows.get(f"{label}.{name}", all) for name, all in everyone._asdict().items()))
        if f"{label}.accepted" not in rows:
            contacts = contacts._replace(accepted=np.where(void, np.int32(0), contacts.accepted))
        found |= {f"{label}.{name}": column for name, column in contacts._asdict().items()}
    return found


def priced(plan: ledger.Plan, rows: Columns) -> dict[str, np.ndarray]:
    """The rows with the contacts, the floats and the bytes of each round."""
    rows = counted(plan, rows)
    return {**rows, **plan.price(rows, rows["void"].shape)}


def warn_of_replies(plan: ledger.Plan, rows: Columns, void: np.ndarray, faults: Faults | None, stacklevel: int) -> None:
    """Warn the caller of `simulate` or `simulate_many` of replies that are infinite or NaN."""
    if faults is not None:
        return
    if void.any():
        warnings.warn(
            f"{void.sum()} of {void.size} rounds were void, because a reply was not finite and too few others were "
            "left, and had no effect; look for the client",
            stacklevel=stacklevel,
        )
    names = [exchange.label for exchange in plan.round if exchange.shared]
    short = [(rows[f"{name}.accepted"] < rows[f"{name}.asked"]) & ~rows["void"] for name in names]
    if names and (count := np.any(short, axis=0).sum()):
        columns = ", ".join(f"{name}.accepted" for name in names)
        warnings.warn(
            f"in {count} of {void.size} rounds a reply was not finite, and was left out; look for the client (the rows "
            f"{columns} count the others)",
            stacklevel=stacklevel,
        )
