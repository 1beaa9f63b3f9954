"""`fedspam new`: a project to start from: training over Flower, in simulation and on real machines.

Make a folder with a Flower project: model, data and method in one file to change, the two apps, the run
configuration, and scripts for a federation with TLS and node keys. Its README has the commands.

examples:
  fedspam new my-project
  cd my-project && flwr run .

exit codes: 0 done, 1 the folder exists or cannot be written, 2 wrong arguments
"""

import argparse
import sys

from fedspam.app import UsageError
from fedspam.app.commands._arguments import file_path


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder", type=file_path, metavar="FOLDER", help="the folder to create; its last part names the project"
    )


def run(options: argparse.Namespace) -> int:
    from fedspam.app.new import check_name, create

    try:
        check_name(options.folder)
    except ValueError as error:
        raise UsageError(str(error)) from None
    for path in create(options.folder):
        sys.stdout.write(f"  {path}\n")
    sys.stdout.write(f"next: cd {options.folder}, then follow its README.md\n")
    return 0
