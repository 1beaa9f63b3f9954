"""What the strategy asks of a method beside its rounds: its name, and a copy with another cohort size."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class NamedMethod(Protocol):
    """A method with a name, as all registered methods have."""

    name: str


@runtime_checkable
class CohortMethod(Protocol):
    """A method that draws cohorts."""

    cohort_size: int | None  # None: everyone


def method_name(method: Any) -> str:
    """The name that a method has in the table of methods; that of its class if it has none."""
    return method.name if isinstance(method, NamedMethod) else type(method).__name__


def with_cohort(method: Any, count: int) -> Any:
    """The same method with another cohort size, also in its start."""
    if not isinstance(method, CohortMethod) or method.cohort_size is None:
        raise ValueError(
            f"fraction_train needs a method with a cohort size; {method_name(method)} uses one client or all: "
            "leave fraction_train out"
        )
    size = method.cohort_size

    def resized(part: Any) -> Any:
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {field.name: resized(getattr(part, field.name)) for field in fields(part)}
        if changed.get("cohort_size") == size:
            changed["cohort_size"] = count
        return replace(part, **changed)

    return resized(method)
