"""The devices that share the runs of a command."""

import contextlib
import contextvars
from typing import TYPE_CHECKING

from fedspam.app import UsageError

if TYPE_CHECKING:
    import jax

_count: contextvars.ContextVar[int | None] = contextvars.ContextVar("devices", default=None)  # None for all


def choose(count: int | None) -> None:
    """Use so many devices, or all. A CPU is divided into as many as are asked for."""
    _count.set(count)
    if count is None:
        return
    import jax

    with contextlib.suppress(RuntimeError):  # JAX has found its devices already
        jax.config.update("jax_num_cpu_devices", count)
    found = jax.local_devices()
    if len(found) < count:
        raise UsageError(f"--devices {count}: JAX finds only {len(found)} here ({found[0].device_kind}); ask for fewer")


def chosen() -> "list[jax.Device] | None":  # pyright: ignore[reportInvalidTypeForm]
    """The devices of this command; None if there is only one."""
    import jax

    found = jax.local_devices()[: _count.get()]
    return found if len(found) > 1 else None
