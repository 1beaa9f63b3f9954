"""The walk of one round that docs/architecture.md draws is the walk that the code takes."""

import re
import sys
from pathlib import Path

import jax.numpy as jnp

import fedspam
from fedspam import simulate, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.simulation import engine
from fedspam.solvers import Accelerated

SOURCE = Path(fedspam.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def files_of_a_round(folder: Path) -> set[str]:
    """The files whose functions run from the first compiled round to the record on disk."""
    clients = synthetic_logistic(0, clients=8, dimension=200)
    method = spam_pp(3, step_size=1.0, fresh_weight=0.3, solver=Accelerated(steps=2, smoothness=1.0))
    seen: set[str] = set()
    inside = False

    def watch(frame, event, _):
        nonlocal inside
        if not frame.f_code.co_filename.startswith(str(SOURCE)) or event not in ("call", "return"):
            return  # most calls are JAX's own
        path = Path(frame.f_code.co_filename)
        name = (path.relative_to(SOURCE).as_posix(), frame.f_code.co_name)
        if name == ("simulation/engine.py", "advance") and event == "call":
            inside = True
        if inside:
            seen.add(name[0])
        if name == ("simulation/records.py", "append") and event == "return":
            inside = False

    engine.advance.clear_cache()  # a round is walked through when it is traced
    sys.setprofile(watch)
    try:
        simulate(method, clients, jnp.zeros(200), rounds=1, key=0, folder=folder)
    finally:
        sys.setprofile(None)
    return {name for name in seen if not name.startswith("_internal/")}


def test_the_walk_in_the_docs_is_that_of_the_code(tmp_path):
    walked = files_of_a_round(tmp_path / "run") - {"problems/regression.py"}  # the loss is the user's
    walked.add("simulation/run.py")  # it was called before the first compiled round
    section = PAGE.read_text().split("## One round of SPAM-PP, file by file")[1].split("\n## ")[0]
    drawn = set(re.findall(r"`([a-z_]+/[a-z_]+\.py)`", section))
    assert walked == drawn
