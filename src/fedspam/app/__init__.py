"""The command line, and what only it needs."""


class UsageError(ValueError):
    """Wrong arguments or a wrong configuration. `fedspam` prints it and ends with exit code 2."""
