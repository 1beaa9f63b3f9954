"""`--distributed`: several processes, usually one per host, that run the same command together."""

import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fedspam.app import UsageError

HEARTBEAT = 10  # seconds after which a silent process is taken for dead
CONNECT = 300  # seconds in which all processes must have started
LAST = 1.0  # seconds that the first process waits before it leaves with an error: the others need it to hear theirs
ADDRESS = re.compile(r"\S+:\d{1,5}")
# how JAX says that another process does not answer
LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|coordination|heartbeat|unavailable", re.IGNORECASE)


def check(distributed: bool, coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse combinations of the flags that cannot be meant."""
    named = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    given = [flag for flag, value in named.items() if value is not None]
    missing = [flag for flag in named if flag not in given]
    if given and not distributed:
        raise UsageError(f"{given[0]} belongs to --distributed; add it, or leave {given[0]} out")
    if given and missing:
        raise UsageError(
            f"{' and '.join(given)} without {' and '.join(missing)}; give all three, or none of them under Slurm, Open "
            "MPI or on a TPU"
        )
    if coordinator is not None and not ADDRESS.fullmatch(coordinator):
        raise UsageError(f"--coordinator {coordinator} must be HOST:PORT, such as 10.0.0.1:8476")
    if processes is not None and process is not None and process >= processes:
        raise UsageError(f"--process {process} must be below --processes {processes}; the first is 0")


def join(coordinator: str | None, processes: int | None, process: int | None, device: str | None = None) -> None:
    """Find the other processes. JAX must not have computed anything before."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"  # JAX reads it when it is imported
    import jax

    # on a CPU, collectives greet on the standard output, which belongs to the command
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(out, "w")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT, initialization_timeout=CONNECT
        )
    except (ValueError, RuntimeError) as error:
        if coordinator is None:
            raise UsageError(
                "--distributed: no Slurm, Open MPI or TPU environment was detected; start every process with "
                f"--coordinator HOST:PORT --processes N --process I ({_line(error)})"
            ) from None
        raise RuntimeError(f"--coordinator {coordinator}: the processes did not meet ({_line(error)})") from None


def is_joined() -> bool:
    """Whether this process is one of several."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def explained(error: BaseException) -> str:
    """The words of an error; where it says that another process does not answer, what to do."""
    text = _line(error)
    if not is_joined() or not LOST.search(text):
        return text
    import jax

    return (
        f"process {jax.process_index()} of {jax.process_count()} has lost another one, which failed or was ended: see "
        f"its output. Start all of them again with --resume: the run continues from its last checkpoint ({text[:200]})"
    )


@contextmanager
def leaving() -> Iterator[None]:
    """Within, one of several processes that fails ends at once: it would wait for the others, and they for it."""
    try:
        yield
    except BaseException as error:
        if not is_joined():
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        _leave(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def _leave(code: int) -> None:
    import jax

    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if code and jax.process_index() == 0:
        time.sleep(LAST)
    os._exit(code)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
