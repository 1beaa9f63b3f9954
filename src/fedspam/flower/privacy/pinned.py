"""A SuperNode that runs no app but those whose hashes its owner has pinned.

.. code-block:: sh

    flwr build                                 # on the site, of the files that were read there: prints the hash
    python -m fedspam.flower.privacy.pinned --app HASH --superlink federation.example:9092 --root-certificates ca.crt

All other options are those of ``flower-supernode``. Flower's own ``--trusted-entities`` accepts only apps that a
registry has reviewed, so it would refuse every app that ``flwr run`` submits from a folder. Here an app is accepted by
its bytes alone; a run of another one is answered with an error, and none of its code is loaded. The run configuration
is not part of the app: read no setting of privacy from it.
"""

import argparse
import hashlib
import re
import sys

from .._flwr import start_supernode


def main(words: list[str] | None = None) -> None:
    """Start a SuperNode with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], add_help=False)
    parser.add_argument("--app", action="append", required=True, type=_hash, metavar="SHA256", help="of an app to run")
    options, rest = parser.parse_known_args(words)
    sys.argv = ["flower-supernode", *rest]
    start_supernode(lambda app: hashlib.sha256(app).hexdigest() in options.app)


def _hash(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must have 64 hexadecimal digits, as `flwr build` prints them")
    return text


if __name__ == "__main__":
    main()
