"""How many clients fit side by side into the free memory."""

import os
from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.clients import Population
from fedspam.federation import ledger
from fedspam.simulation import engine
from fedspam.simulation.engine import Setup

SHARE = 0.8  # of the free memory; the rest is for what the plan of the compiler leaves out


def fitting_chunk(method: Any, population: Population, params: Params, *, memory: float | None = None) -> int:
    """The largest chunk of a cohort whose round fits into memory, for the argument `chunk` of `simulate`.

    It is read from the compiler's own plan of a round, so that activations, per-client models and padding count as they
    are. One compilation where the whole cohort fits, a few otherwise; nothing is run.

    Arguments:
        method, population, params: as in `simulate`.
        memory: bytes that a round may take beside the population and the state; None for most of what is free.

    >>> import jax.numpy as jnp
    >>> from fedspam.methods import fedavg
    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(0, clients=20, dimension=5)
    >>> fitting_chunk(fedavg(10, 5, 0.05), clients, jnp.ones(5), memory=1e9)
    10
    """
    if memory is not None:
        checks.positive("memory", memory, "give bytes, such as 8e9")
    params = checks.params("params", params)
    room = SHARE * free_memory() if memory is None else memory
    plan = ledger.plan(method, params, population)
    cohort = max((exchange.cohort for exchange in plan.round), default=1)
    most = round_memory(method, population, params, cohort)
    if most <= room:
        return cohort
    least = round_memory(method, population, params, 1)
    if least > room:
        raise ValueError(
            f"a round takes {least:.3g} bytes with one client at a time, {room:.3g} are free; take a smaller minibatch "
            "or model, or keep the data on the host (fedspam.simulation.Stored)"
        )
    # temporaries grow about linearly with the number of clients
    chunk = max(1, int(1 + (room - least) * (cohort - 1) / (most - least)))
    while chunk > 1 and round_memory(method, population, params, chunk) > room:
        chunk = max(1, int(0.8 * chunk))
    return chunk


def round_memory(method: Any, population: Population, params: Params, chunk: int) -> int:
    """Bytes that one round takes beside the population and the state, by the compiler's plan."""
    setup = Setup(method, population, params, jax.random.key(0), chunk=chunk)
    carry = jax.eval_shape(lambda: setup.start()[0])
    lowered = engine.advance.lower(setup, carry, jnp.int32(0), jnp.int32(1), length=1, every=1, record=())
    found = lowered.compile().memory_analysis()
    if found is None:
        raise ValueError(f"{jax.default_backend()} does not report the memory of a program; give chunk= a number")
    return int(found.temp_size_in_bytes)


def free_memory() -> int:
    """Bytes free on the device; on a CPU, in the machine."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
