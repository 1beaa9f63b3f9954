"""The starter project of `fedspam new`: the files of `template/` with the names of the project. Needs no Flower."""

import keyword
import re
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
PYTORCH = Path(__file__).parent / "pytorch"  # the files that differ if the model is a PyTorch module
SUFFIX = ".in"  # of template files, so that tools do not take them for code of this package
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
TAKEN = {"fedspam", "flwr", "jax", "numpy", "test", "deploy"}


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
