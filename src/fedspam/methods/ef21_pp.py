"""EF21-PP: clients send compressed changes of their gradients, and remember what arrived."""

from collections.abc import Callable

import jax

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, count, dynamic, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import server_step_grid
from fedspam.methods._method import RoundInfo, TrackedState, Tracking, tracked_mean
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, step_size_schedule


@struct
class EF21PP(Tracking):
    """EF21-PP. Use `ef21_pp` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    cohort_size: int = count()
    name: str = static(default="ef21_pp")

    def round(self, state: TrackedState, key: Key, fed: Federation) -> tuple[TrackedState, RoundInfo]:
        gamma = self.step_size(state.k)

        cohort = fed.sample(key, self.cohort_size)
        change = fed.mean(cohort, self.gradient_change, x=state.x)

        g = tracked_mean(state.mean, change, fed, key)  # of all g_i, also where replies are lost
        x = trees.axpy(-gamma, g, state.x)
        return TrackedState(x, g, state.k + 1), RoundInfo(step_size=gamma, gradients=cohort.size)

    @on_client(stateful=True, echo=True)
    def gradient_change(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params
    ) -> tuple[Params, Callable[[Params], Params]]:
        change = trees.subtract(jax.grad(oracle)(x, key), memory)
        return change, lambda arrived: trees.add(memory, arrived)


def ef21_pp(cohort_size: int, step_size: ScheduleLike) -> EF21PP:
    r"""EF21-PP: error feedback by compressed changes of the clients' gradients, with cohorts of some clients.

    .. math::
        c_i &= C(\nabla f_i(x_k) - g_i), \quad g_i \leftarrow g_i + c_i \quad (i\in S_k) \\
        g_{k+1} &= g_k + \frac1n\sum_{i\in S_k} c_i = \frac1n\sum_{i=1}^n g_i, \qquad
        x_{k+1} = x_k - \gamma_k\,g_{k+1}

    C is the codec of the replies, which the run chooses, for example ``simulate(..., codecs={"up": "topk-0.1"})``. It
    may be biased: the changes that C leaves out are sent later, because :math:`g_i`, 0 at the start, contains only what
    arrived. Without a codec it is SAG on the clients, and with all clients gradient descent.

    Theory, for non-convex f and any start of :math:`g_i`: a client sends with probability :math:`q = B/n`, so its
    error contracts as that of one codec with :math:`q\alpha`, and `fedspam.theory.ef21_step_size` follows from
    Theorem 1 of EF21. (The constants of the paper's own theorem for cohorts are others.) It assumes whole gradients.

    Fatkhullin, Sokolov, Gorbunov, Li, Richtárik: EF21 with bells & whistles, 2021, arXiv:2110.03294, EF21-PP. Its loop
    begins with the step, ours with the exchange: the same sequence of points.

    >>> from fedspam.problems import progress
    >>> progress(ef21_pp(10, 0.1), clients=20, rounds=200) < 0.01
    True
    """
    return EF21PP(step_size, cohort_size)


register("ef21_pp", Entry(
    name="EF21-PP", build=ef21_pp, example={"cohort_size": 4, "step_size": 0.2}, stateless="no",
    estimator="compressed changes", oracle="one step, by the server", grid=server_step_grid,
    reference="Fatkhullin, Sokolov, Gorbunov, Li, Richtárik 2021, arXiv:2110.03294",
))  # fmt: skip
