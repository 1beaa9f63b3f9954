"""The recipe for conda-forge says what pyproject.toml says, and the tool that builds it can read it."""

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import fedspam

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / ".ci" / "conda" / "recipe.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"matplotlib": "matplotlib-base"}  # where conda-forge has another name


def listed(key: str) -> list[str]:
    """The entries of a list of the recipe."""
    (entries,) = re.findall(rf"^ *{key}:\n((?: +- .*\n)+)", RECIPE.read_text(), re.MULTILINE)
    return re.findall(r"^ +- (.*)$", entries, re.MULTILINE)


def field(name: str) -> str:
    """The first value of that name: those of the context come first, and others refer to them."""
    return re.findall(rf'^ +{name}: "?(.*?)"?$', RECIPE.read_text(), re.MULTILINE)[0]


def test_the_recipe_requires_what_the_package_requires() -> None:
    low, high = re.fullmatch(r">=(3\.\d+),<(3\.\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    python, *others, system = listed("run")
    assert field("python_min") == low
    assert python == f"python >=${{{{ python_min }}}},<{high}"
    assert system == "__linux"  # the one system that the classifiers name
    parts = [re.fullmatch(r"([\w-]+)(.*)", one).groups() for one in PROJECT["dependencies"]]  # type: ignore[union-attr]
    assert others == [f"{NAMES.get(name, name)} {bounds}" for name, bounds in parts]


def test_the_recipe_describes_the_package() -> None:
    assert field("version") == fedspam.__version__
    assert field("summary") == PROJECT["description"]
    assert field("license") == PROJECT["license"]
    assert PROJECT["license-files"] == [field("license_file")]
    assert listed("entry_points") == [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build.replace(">", " >", 1) in listed("host")


def test_the_recipe_can_be_rendered() -> None:
    if importlib.util.find_spec("rattler_build") is None:
        pytest.skip("rattler_build is not installed: pip install py-rattler-build")
    (variant,) = importlib.import_module("rattler_build").Stage0Recipe.from_file(RECIPE).render()
    assert variant.recipe.package.name == "fedspam"
