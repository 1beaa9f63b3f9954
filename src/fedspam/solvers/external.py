"""The prox by the optimizers of other libraries: Optax, and Optimistix where it is installed."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from fedspam._internal.trees import Params, count, static, struct
from fedspam.solvers._certificate import Answer, Never, Relative, Stop, Surrogate, certified
from fedspam.solvers._search import all_steps

if TYPE_CHECKING:
    import optax
    import optimistix


def optax_optimizer(optimizer: "optax.GradientTransformation", name: str = "optimizer") -> Any:
    """The optimizer as it is, if it is one of Optax."""
    import optax  # here, since its import is slow and few methods and solvers need it

    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"{name} = {optimizer!r} must be an Optax optimizer, such as optax.adam(0.01)")
    return optimizer


@struct
class Optax:
    r"""A number of steps of any Optax optimizer on phi, begun afresh at x in every round.

    .. math:: \nabla f_\xi(y; \zeta) - \nabla f_\xi(x; \zeta) + g + (y - x)/\gamma

    is the gradient of a step: its minibatch :math:`\zeta` is the same at y and x, so its noise vanishes at x. One
    gradient at the end certifies the answer, which is x itself where the steps made phi worse. Since an optimizer may
    move far for any g, :math:`\gamma` is never halved.

    Arguments:
        optimizer: such as ``optax.adam(1e-3)``. It is part of the compiled program, so another one recompiles.
        minibatch: whether a step sees one minibatch instead of the client's whole loss.

    >>> import jax, jax.numpy as jnp, optax
    >>> from fedspam.clients import DataOracle
    >>> client = DataOracle(jnp.ones(2), loss=lambda x, center: 0.5 * jnp.sum((x - center) ** 2))
    >>> solver = Optax(optax.adam(0.1), steps=20)
    >>> y, certificate = solver(client, jax.random.key(0), x=jnp.zeros(2), g=jnp.ones(2), step_size=1.0)
    >>> bool(certificate.decrease < -0.4)
    True
    """

    optimizer: "optax.GradientTransformation" = static(converter=optax_optimizer)
    steps: int = count()
    minibatch: bool = static(default=True)

    # optimizers may treat the arrays of a tree differently, so it does not become one vector
    __call__ = certified(Never(), guard=False, vectorize=False)

    def _solve(self, phi: Surrogate) -> Answer:
        import optax

        def move(y: Params, slope: Params, memory: Any) -> tuple[Params, Any]:
            updates, memory = self.optimizer.update(slope, memory, y)
            return optax.apply_updates(y, updates), memory  # type: ignore[return-value]

        return all_steps(phi, self.steps, move, self.optimizer.init(phi.x), minibatch=self.minibatch)


@struct
class Optimistix:
    """Any minimizer of Optimistix on phi. Its own tolerances say when it stops; the certificate says what it reached.

    Arguments:
        minimizer: such as ``optimistix.BFGS(rtol=1e-3, atol=1e-3)``. It is part of the compiled program.
        steps: each is counted as one gradient, which holds for gradient methods.
        stop: the rule by which the answer is certified; it does not stop the minimizer.

    Needs ``pip install optimistix``.
    """

    minimizer: "optimistix.AbstractMinimiser" = static()
    steps: int = count(default=256)
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        try:
            import optimistix
        except ImportError as error:
            raise ImportError(
                "the Optimistix solver needs the package optimistix: pip install optimistix; or use LBFGS()"
            ) from error
        found = optimistix.minimise(
            lambda y, phi: phi(y), self.minimizer, phi.x, args=phi, max_steps=self.steps, throw=False
        )
        steps = jnp.asarray(found.stats["num_steps"], jnp.int32)
        return Answer(phi.at(found.value), steps, steps + 1)
