"""``python -m fedspam.app`` is the command `fedspam`."""

import sys

from fedspam.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
