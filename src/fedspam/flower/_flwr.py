"""All that this package takes from Flower beyond its public modules, so that one file changes when Flower does.

Public are ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``; a test holds every other file to them.
"""

import dataclasses
import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

TESTED = ">=1.41,<1.43"  # the releases of Flower that tests have run with; as in pyproject.toml

try:
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
        decrypt as decrypt,
        encrypt as encrypt,
        generate_shared_key as generate_shared_key,
    )
    from flwr.common.secure_aggregation.secaggplus_utils import (
        share_keys_plaintext_concat as share_keys_plaintext_concat,
        share_keys_plaintext_separate as share_keys_plaintext_separate,
    )
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key as bytes_to_public_key,
        public_key_to_bytes as public_key_to_bytes,
    )
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
except ImportError as error:
    raise ImportError(
        f"Flower {version('flwr')} has moved something that is not public: {error}. fedspam is tested with "
        f"flwr{TESTED}; install one of those, or say in {__file__} where it is now"
    ) from error


def start_supernode(accepts: Callable[[bytes], bool]) -> None:
    """`flower-supernode` with the options of this process; apps whose bytes are not accepted are answered with an
    error. Where Flower has moved these names, every app is refused."""
    import flwr.supernode.cli as command  # here, because it takes a second
    import flwr.supernode.start_client_internal as internal

    inside: Any = internal
    pull, name = inside._pull_and_store_message, "pinned"
    signature = inspect.signature(pull)

    def pull_checked(*args: Any, **others: Any) -> Any:
        given = signature.bind(*args, **others)
        get = given.arguments["get_fab"]
        as_reviewed = lambda *which: dataclasses.replace(get(*which), verifications={"valid_license": name})
        given.arguments |= {"get_fab": as_reviewed, "trusted_entities": {name: ""}}
        return pull(*given.args, **given.kwargs)

    inside._pull_and_store_message = pull_checked
    inside._verify_fab = lambda app, trusted: accepts(app.content)
    command.flower_supernode()
