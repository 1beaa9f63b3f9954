"""All that this package takes from Flower beyond its public modules, so that one file changes when Flower does.

Public are ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``; a test holds every other file to them.
"""

from importlib.metadata import version

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
