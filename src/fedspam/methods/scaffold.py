"""SCAFFOLD: local steps corrected by a control vector that each client remembers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, choice, count, dynamic, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid, with_fixed
from fedspam.methods._local import ClientOptimizer, Epochs, LocalSteps, Steps
from fedspam.methods._method import RoundInfo, TrackedState, Tracking, tracked_mean
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


class ScaffoldReply(NamedTuple):
    """The move of a client's model, and that of its control, unless the server can derive it."""

    moved: Params
    control: Any
    weight: Any = ()  # where clients are weighted; moves are then multiplied by it
    steps: Any = ()  # where clients take different numbers of them


@struct
class Scaffold(Tracking):
    """SCAFFOLD. Use `scaffold` to build it."""

    training: Steps
    server_step_size: Schedule = dynamic(converter=positive_schedule)
    cohort_size: int = count()
    option: str = choice("gradient", "steps", default="steps")
    weighted: bool = static(default=False)
    name: str = static(default="scaffold")

    def round(self, state: TrackedState, key: Key, fed: Federation) -> tuple[TrackedState, RoundInfo]:
        x, c, numbers = state.x, state.mean, self.training.numbers(state.k)

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=x, control=c, **numbers)
        mean = lambda part: trees.divide(part, reply.weight) if self.weighted else part
        moved = mean(reply.moved)
        if self._derivable:
            changed = self._changed(c, moved, self.training.local_steps, **numbers)
        else:
            changed = mean(reply.control)

        c = tracked_mean(c, changed, fed, key)
        x = trees.axpy(self.server_step_size(state.k), moved, x)
        gradients = cohort.size * (self.training.gradients(reply) + (self.option == "gradient"))
        return TrackedState(x, c, state.k + 1), RoundInfo(**numbers, gradients=gradients)

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, control: Params, **numbers: Any
    ) -> tuple[ScaffoldReply, Params]:
        y, counted = self.training(oracle, key, x, trees.subtract(control, memory), numbers)
        moved, steps = trees.subtract(y, x), self.training.gradients(counted)
        if self.option == "gradient":
            new = jax.grad(oracle)(x, None)  # an additional pass over all of the client's data
            changed = trees.subtract(new, memory)
        else:
            changed = self._changed(control, moved, steps, **numbers)
            new = trees.add(memory, changed)
        reply = ScaffoldReply(moved, () if self._derivable else changed, steps=counted and counted.steps)
        if self.weighted:
            weight = jnp.asarray(oracle.weight, jax.tree.leaves(x)[0].dtype)
            moved, changed = trees.scale(weight, moved), trees.scale(weight, reply.control)
            reply = reply._replace(moved=moved, control=changed, weight=weight)
        return reply, new

    @property
    def _derivable(self) -> bool:
        return self.option == "steps" and not isinstance(self.training.local_steps, Epochs)

    def _changed(self, control: Params, moved: Params, steps: Any, local_rate: Any) -> Params:
        """c_i⁺ - c_i = -c + (x - y_i) / (m eta), and likewise the mean of it over a cohort of equal m."""
        return trees.subtract(trees.scale(-1 / (steps * local_rate), moved), control)


def scaffold(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike,
    *, server_step_size: ScheduleLike = 1.0, option: str = "steps", weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> Scaffold:  # fmt: skip
    r"""SCAFFOLD: m local steps, each corrected by the difference of the server's and the client's control.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,(\nabla f_i(y_i) - c_i + c) \quad\text{(m times, from } x_k) \\
        c_i^+ &= \nabla f_i(x_k) \ \text{(option I)}, \qquad
        c_i^+ = c_i - c + (x_k - y_i)/(m\eta_k) \ \text{(option II)} \\
        x_{k+1} &= x_k + \eta_s\,\frac1B\sum_{i\in S_k}(y_i - x_k), \qquad
        c \leftarrow c + \frac1n\sum_{i\in S_k}(c_i^+ - c_i)

    Each client remembers :math:`c_i`, first 0, so the clients must be identifiable and take part again, and their
    number n must be known. With option II the server knows :math:`c_i^+ - c_i = -c - (y_i - x_k)/(m\eta_k)`, which the
    paper sends. :math:`O((n/B)^{2/3}LF/\epsilon)` rounds with :math:`m\eta\eta_s \lesssim (B/n)^{2/3}/L`; on quadratics
    with all clients L becomes :math:`\delta + L/m`. Its fixed point is the optimum, with :math:`c_i = \nabla f_i(x^*)`.

    Arguments:
        local_steps: as `fedavg`. With `Epochs` their numbers differ, and clients also send :math:`c_i^+ - c_i`.
        option: 'gradient' is the paper's option I, one more pass over the client's data; 'steps' is its option II.
        weighted: average :math:`y_i - x_k` and :math:`c_i^+ - c_i` by the number of examples. If all clients take part,
            c is then the weighted mean of all :math:`c_i`; else only near it.
        optimizer: a transformation T as in `fedavg`; the correction stays outside, :math:`T(\nabla f_i(y_i)) - c_i +
            c`, and with option II :math:`c_i^+` is the mean of what T made of the gradients.

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD, 2020, arXiv:1910.06378, Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(scaffold(10, 5, 0.05)) < 0.01
    True
    """
    name = "scaffold_gradient" if option == "gradient" else "scaffold"
    steps = Steps(local_rate, None, local_steps, optimizer)
    return Scaffold(steps, server_step_size, cohort_size, option, weighted, name)


for _key, _name, _option, _up, _settings in (
    ("scaffold", "SCAFFOLD", "steps", Cost(1), few_steps_grid),
    ("scaffold_gradient", "SCAFFOLD, option I", "gradient", Cost(2), with_fixed(few_steps_grid, option="gradient")),
):
    register(_key, Entry(
        name=_name, build=scaffold, example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "option": _option},
        similarity="partly", stateless="no", estimator="SAG", oracle="m steps", up=_up, down=Cost(2), grid=_settings,
        reference="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, arXiv:1910.06378",
    ))  # fmt: skip
