"""``python -m fedspam`` is the command `fedspam`."""

import sys

from fedspam.cli import main

if __name__ == "__main__":
    sys.exit(main())
