"""`fedspam export`: a trained model for PyTorch, Flax, or any reader of safetensors.

Write the parameters of a run for another framework, and model.json beside them: the features and how
they were scaled, the classes, the configuration.

  safetensors  parameters by plain names
  torch        a state dict for torch.load; prints the module that it belongs to
  flax         nested parameters as msgpack, for flax.serialization.msgpack_restore

examples:
  fedspam export runs/first                          exported/model.safetensors, exported/model.json
  fedspam export runs/first --to torch --out served
"""

import argparse
from pathlib import Path

from fedspam.app.commands._arguments import file_path


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=file_path, metavar="RUN", help="the run folder, or its model.safetensors")
    command.add_argument("--to", choices=("safetensors", "torch", "flax"), default="safetensors", help="the format")
    command.add_argument("--out", type=file_path, default=Path("exported"), metavar="FOLDER", help="the folder")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.predict import export

    return export(options)
