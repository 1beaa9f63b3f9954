"""Old names: they work, warn at the line that uses them, and name the new name and the version that drops them."""

import inspect
import sys
import types
import warnings
from typing import Any

import pytest

from fedspam._internal.deprecation import deprecated_name, renamed_argument
from fedspam.datasets import FederatedData


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with an old name of `FederatedData`."""
    made = types.ModuleType("module_with_old_name")

    def lookup(name: str) -> Any:
        if name == "Old":
            deprecated_name("module_with_old_name.Old", "fedspam.datasets.FederatedData", "0.3")
            return FederatedData
        raise AttributeError(name)

    made.__getattr__ = lookup  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


MESSAGE = r"module_with_old_name\.Old is now fedspam\.datasets\.FederatedData; .* version 0\.3"


def test_an_old_name_works_and_warns_where_it_is_used(module: types.ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match=MESSAGE) as caught:
        assert module.Old is FederatedData
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=MESSAGE) as caught:
        from module_with_old_name import Old  # type: ignore[import-not-found]
    assert Old is FederatedData
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError):
        _ = module.Other


@renamed_argument("gamma", "step_size", "0.3")
def step(x: float, step_size: float = 1.0) -> float:
    """A step."""
    return x - step_size


def test_an_old_argument_works_and_warns_where_it_is_used() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"step\(gamma=\.\.\.\) is now step\(step_size=\.\.\.\); .* 0\.3"
    ) as caught:
        assert step(1.0, gamma=0.25) == 0.75  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(1.0, step_size=0.25) == step(1.0, 0.25) == 0.75


def test_both_names_of_an_argument_are_refused() -> None:
    with pytest.raises(TypeError, match=r"step\(\) got 'gamma' and 'step_size', .*; give 'step_size' alone"):
        step(1.0, gamma=0.5, step_size=0.5)  # type: ignore[call-arg]


def test_the_signature_has_the_new_name() -> None:
    assert list(inspect.signature(step).parameters) == ["x", "step_size"]
    assert step.__doc__ == "A step."
