"""One segment of rounds: compiled rounds, and those that are repeated because something in them is not finite."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam.clients import Faults, Population
from fedspam.federation import Contacts, ledger
from fedspam.simulation import engine, records, stopping
from fedspam.simulation.engine import Carry, Conditions, Layout, Progress
from fedspam.simulation.stopping import Patience, Probes, Target

Columns = Mapping[str, np.ndarray]


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
    done: int  # rounds
    stopped: bool


@dataclass(frozen=True)
class Segments:
    """Runs the segments of a simulation.

    One reply that is not finite spoils the mean client, which does affine work for all. The compiled rounds stop there,
    and this one round is repeated with every client alone, so that only the reply is left out. The other rounds are
    those of a run that never met the client, and no bit depends on where segments begin.
    """

    method: Any
    key: Any
    layout: Layout
    length: int
    every: int
    record: tuple[str, ...] | None
    until: Target | Patience | None
    plan: ledger.Plan
    clock: Stopwatch

    def run(
        self, population: Population, carry: Carry, start: int, count: int, conditions: Conditions, before: Probes
    ) -> Segment:
        """Run `count` rounds. `before` are the values of the probes so far."""
        rows: list[dict[str, np.ndarray]] = []
        probes: list[dict[str, np.ndarray]] = []
        done, stopped, alone = 0, False, False
        while done < count and not stopped:
            at = start + done
            to_evaluation = self.every - at % self.every
            some = 1 if alone else min(count - done, to_evaluation if at % self.every else count)
            bounds = stopping.at_evaluation(conditions.bounds, self.until, [*before, *probes])
            if shared(self.plan.round) and not alone:
                bounds = dataclasses.replace(bounds, void_streak=jnp.int32(1))
            end = self._advance(population, carry, at, some, dataclasses.replace(conditions, bounds=bounds), alone)
            columns, went = engine.columns(end.rows), int(end.done)
            spoiled = shared(self.plan.round) and not alone and bool(columns["void"][went - 1])
            went -= spoiled
            probed = (at + went) // self.every - at // self.every
            rows.append(priced(self.plan, {name: column[:went] for name, column in columns.items()}, went))
            probes.append({name: np.asarray(value)[:probed] for name, value in end.probes.items()})
            streak = carry.void_streak if went == 0 else jnp.int32(0)
            carry = end.carry._replace(void_streak=streak) if spoiled else end.carry
            done, stopped, alone = done + went, bool(end.stopped) and not spoiled, spoiled
        return Segment(carry, records.joined(rows), records.joined(probes), done, stopped)

    def _advance(
        self, population: Population, carry: Carry, start: int, count: int, conditions: Conditions, alone: bool
    ) -> Progress:
        layout = dataclasses.replace(self.layout, per_client=True) if alone else self.layout
        advance = lambda count, careful=alone: engine.advance(
            self.method, population, carry, self.key, jnp.int32(start), jnp.int32(count), conditions,
            layout=layout, length=self.every if alone else self.length, every=self.every, record=self.record,
            careful=careful,
        )  # fmt: skip
        end = self.clock.time(advance, count, "alone" if alone else "together")
        if not alone and not engine.healthy(end.carry.state):
            end = self.clock.time(lambda count: advance(count, careful=True), count, "careful")
        return end


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


def priced(plan: ledger.Plan, rows: Columns, rounds: int) -> dict[str, np.ndarray]:
    """The rows with the contacts, the floats and the bytes of each round."""
    rows = counted(plan, rows)
    contacts = {
        exchange.label: Contacts(*(rows[f"{exchange.label}.{name}"] for name in Contacts._fields))
        for exchange in plan.round
        if exchange.dynamic
    }
    return {**rows, **plan.price(contacts, rounds)}


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
