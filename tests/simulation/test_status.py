"""How a run ended, as a value."""

import json

import pytest

from fedspam.simulation import Status
from fedspam.simulation.status import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_comes_back_from_json(kind: str) -> None:
    status = Status(kind, "a reason: of two parts")
    assert Status.from_json(json.loads(json.dumps(status.as_json()))) == status
    assert str(status) == f"{kind}: a reason: of two parts"


def test_a_reason_is_shown_in_one_line_without_escapes() -> None:
    """The status of a model file of somebody else is printed on a terminal."""
    assert str(Status("stopped", "why\n\x1b[2Jall is well")) == r"stopped: why\n\x1b[2Jall is well"


@pytest.mark.parametrize("value", [None, "completed", 3, [], {}, {"kind": "done", "reason": ""}, {"kind": "reached"}])
def test_what_is_not_a_status_is_unknown(value: object) -> None:
    assert Status.from_json(value) == Status("unknown")


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'done' is not a kind of status"):
        Status("done")


def test_ok_says_whether_something_went_wrong() -> None:
    assert Status("reached").ok
    assert not Status("diverged").ok
