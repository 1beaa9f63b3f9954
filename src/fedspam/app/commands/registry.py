"""`fedspam registry`: versions of a trained model in a folder, and which of them is in use.

Keep versions of a model with their rounds, hashes, methods, metrics and sites, and say which is in use. Programs that
use the model read FOLDER/current/model.safetensors, which is replaced whole or not at all.

examples:
  fedspam registry models                      the versions
  fedspam registry models add runs/first       add the model of a run; prints its version
  fedspam registry models promote 3f1c09       take a version into use
  fedspam registry models back                 take the one before into use again
"""

import argparse
import sys
from pathlib import Path

from fedspam.app.commands._arguments import file_path

COLUMNS = ("version", "", "method", "rounds", "sites", "metrics", "added")


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=file_path, metavar="FOLDER", help="the folder of the registry")
    actions = ("list", "add", "promote", "back")
    command.add_argument("action", nargs="?", choices=actions, default="list", help="what to do (list)")
    command.add_argument("what", nargs="?", metavar="RUN or VERSION", help="what to add, or to promote")


def run(options: argparse.Namespace) -> int:
    from fedspam.app import UsageError
    from fedspam.app.registry import Registry, table

    registry, action, what = Registry(options.folder), options.action, options.what
    if (what is None) == (action in ("add", "promote")):
        raise UsageError(f"{action} needs {'a run folder' if action == 'add' else 'a version'}" if what is None
                         else f"{action} takes no further argument, such as {what!r}; leave it out")  # fmt: skip
    if action == "list":
        rows = [COLUMNS, *table(registry)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    steps = {"add": lambda: registry.add(Path(what)), "promote": lambda: registry.promote(what), "back": registry.back}
    sys.stdout.write(steps[action]() + "\n")
    return 0
