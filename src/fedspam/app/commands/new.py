"""`fedspam new`: a project to start from: training over Flower, in simulation and on real machines.

Make a folder with a Flower project: the model, a file for data and method, the two apps, the run configuration,
and scripts for a federation with TLS and node keys. Its README has the commands.

examples:
  fedspam new my-project             a model in JAX
  fedspam new my-project --pytorch   a PyTorch module
  cd my-project && flwr run .
"""

import argparse
import sys

from fedspam.app import refusing
from fedspam.app.commands._arguments import file_path


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder", type=file_path, metavar="FOLDER", help="the folder to create; its last part names the project"
    )
    command.add_argument("--pytorch", action="store_true", help="the model is a PyTorch module")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.new import check_name, create

    with refusing():
        check_name(options.folder)
    for path in create(options.folder, pytorch=options.pytorch):
        sys.stdout.write(f"  {path}\n")
    sys.stdout.write(f"next: cd {options.folder}, then follow its README.md\n")
    return 0
