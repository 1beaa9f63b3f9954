"""The devices that a command computes on."""

import contextlib
import contextvars
import os
from typing import TYPE_CHECKING

from fedspam.app import UsageError

if TYPE_CHECKING:
    import jax

_count: contextvars.ContextVar[int | None] = contextvars.ContextVar("devices", default=None)  # None for all


def choose(kind: str | None, count: int | None) -> None:
    """Compute on devices of this kind, on so many of them, or refuse; None for what JAX finds, and for all.

    A CPU is divided into as many as are asked for. JAX decides when it is imported, which no command has done yet.
    """
    if kind == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    _count.set(count)
    if kind is None and count is None:
        return
    import jax

    if count is not None:
        with contextlib.suppress(RuntimeError):  # JAX has found its devices already
            jax.config.update("jax_num_cpu_devices", count)
    found = jax.default_backend()
    if kind is not None and found != kind:
        raise UsageError(
            f"--device {kind}: JAX finds only {found} here; for a GPU of NVIDIA, pip install 'jax[cuda12]', or leave "
            "the flag out"
        )
    if count is not None and jax.local_device_count() < count:
        raise UsageError(f"--devices {count}: JAX finds only {jax.local_device_count()} here ({found}); ask for fewer")


def chosen() -> "list[jax.Device] | None":  # pyright: ignore[reportInvalidTypeForm]
    """The devices of this command; None if there is only one."""
    import jax

    found = jax.local_devices()[: _count.get()]
    return found if len(found) > 1 else None
