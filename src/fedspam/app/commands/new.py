"""`fedspam new`: a project to start from: training over Flower, in simulation and on real machines.

Make a folder with a Flower project: the model, a file for data and method, the two apps, the run configuration,
and scripts for a federation with TLS and node keys. Its README has the commands.

examples:
  fedspam new my-project             a model in JAX
  fedspam new my-project --pytorch   a PyTorch module
  cd my-project && flwr run .
"""

import argparse
import keyword
import re
import sys
from pathlib import Path

from fedspam.app import refusing
from fedspam.app.commands._arguments import file_path

TEMPLATE = Path(__file__).parents[1] / "new" / "template"
PYTORCH = TEMPLATE.parent / "pytorch"  # the files that differ if the model is a PyTorch module
SUFFIX = ".in"  # of template files, so that tools do not take them for code of this package
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
TAKEN = {"fedspam", "flwr", "jax", "numpy", "test", "deploy"}


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=file_path, metavar="FOLDER", help="to create; its last part names the project")
    command.add_argument("--pytorch", action="store_true", help="the model is a PyTorch module")


def run(options: argparse.Namespace) -> int:
    with refusing():
        check_name(options.folder)
    for path in create(options.folder, pytorch=options.pytorch):
        sys.stdout.write(f"  {path}\n")
    sys.stdout.write(f"next: cd {options.folder}, then follow its README.md\n")
    return 0


def create(folder: Path, *, pytorch: bool = False) -> list[Path]:
    """Write the project to a new folder, and return its files. With `pytorch`, its model is a PyTorch module.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "my-project"
    >>> [path.name for path in create(place) if path.parent.name == "my_project"]
    ['__init__.py', 'client_app.py', 'model.py', 'server_app.py', 'task.py']
    """
    project, package = check_name(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} already exists; choose another name, or remove it")
    made = []
    for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        own = PYTORCH / path.relative_to(TEMPLATE)
        text = (own if pytorch and own.exists() else path).read_text(encoding="utf-8")
        target = folder / str(path.relative_to(TEMPLATE)).removesuffix(SUFFIX).replace("@package@", package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("@package@", package).replace("@project@", project))
        if text.startswith("#!"):
            target.chmod(0o755)
        made.append(target)
    return made


def check_name(folder: Path) -> tuple[str, str]:
    """The names of the project and of its package; ValueError if the folder's name cannot be one."""
    project = folder.resolve().name
    package = project.replace("-", "_")
    if not NAME.fullmatch(project) or keyword.iskeyword(package) or package in TAKEN:
        raise ValueError(
            f"{project!r} cannot be the name of a project and its Python package; use lowercase letters, digits and "
            "hyphens, such as my-project, and not the name of an existing package"
        )
    return project, package
