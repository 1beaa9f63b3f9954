"""Parameters with the running statistics of a network beside them: ``{"params": ..., "statistics": ...}``."""

from collections.abc import Mapping
from typing import Any

from fedspam._internal.trees import Params

NAMES = frozenset({"params", "statistics"})


def joined(params: Params, statistics: Any) -> Params:
    """Both in one tree, as methods and files have them."""
    return {"params": params, "statistics": statistics}


def parted(params: Params) -> tuple[Params, Any]:
    """The parameters, and the statistics beside them or None.

    >>> parted(joined([1.0], {"mean": 2.0}))
    ([1.0], {'mean': 2.0})
    >>> parted([1.0])
    ([1.0], None)
    """
    if isinstance(params, Mapping) and params.keys() == NAMES:
        return params["params"], params["statistics"]
    return params, None
