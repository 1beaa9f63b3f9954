"""The command line, and what only it needs."""

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(ValueError):
    """Wrong arguments or a wrong configuration. `fedspam` prints it and ends with exit code 2."""


@contextmanager
def refusing(what: str = "", kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Within, what is wrong with values and files is wrong use of the setting or flag that is named."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        told = str(error) if error.filename is None else f"{error.filename} {error.strerror}"
        raise kind(f"{what}: {told}" if what else told) from None
    except (ImportError, ValueError) as error:
        raise kind(f"{what}: {error}" if what else str(error)) from None
