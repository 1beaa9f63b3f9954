"""`fedspam new`: a Flower project to start from."""

import argparse
import sys
from pathlib import Path

from fedspam.app.commands._arguments import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "new",
        help="a project to start from: training over Flower, in simulation and on real machines",
        description=(
            "Make a folder with a Flower project: model, data and method in one file to change, the two apps, the run\n"
            "configuration, and scripts for a federation with TLS and node keys. Its README has the commands."
        ),
        epilog=(
            "examples:\n"
            "  fedspam new my-project\n"
            "  cd my-project && flwr run .\n\n"
            "exit codes: 0 done, 1 the folder exists or cannot be written, 2 wrong arguments"
        ),
    )
    command.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the folder to create; its last part names the project"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.new import create

    for path in create(options.folder):
        sys.stdout.write(f"  {path}\n")
    sys.stdout.write(f"next: cd {options.folder}, then follow its README.md\n")
    return 0
