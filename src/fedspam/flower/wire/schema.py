"""What server and clients must agree on, and a hash of it that every message carries.

The schema holds the method with its local solver, the codecs, and the names, shapes and dtypes of the parameters and of
every message and reply. It leaves out the cohort size, which only the server needs.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt32

from fedspam._internal import describe, prng, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Ids, parted
from fedspam.federation import ledger, terms_of, works_of
from fedspam.federation.codecs import NO_CODECS, Codecs
from fedspam.federation.ledger import Exchange, Plan
from fedspam.flower.wire.envelope import WIRE
from fedspam.flower.wire.node import method_of

# A schema is derived for that many clients, more than any federation has. A round counts the gradients of all of them
# in JAX's default int, which has 32 bits: some hundred gradients per client still fit.
CLIENTS = 2**24


# without jit the loop of the draw would be compiled again in every round
_draw = jax.jit(prng.draw, static_argnums=(1, 2, 3))


@struct
class AnyClient:
    """A client that can do every work of a method; only the shapes of its replies mean anything."""

    weight: float = 1.0
    smoothness: float = 1.0
    lowest_curvature: float = 0.0
    steps: float = 1.0
    minibatches: int = 1

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        if parted(params)[1] is not None:
            raise ValueError(
                "running statistics travel with these parameters, and only local steps move them: 'averaged' needs a "
                "method such as fedavg or scaffold, and 'recalibrated' "
                "Normalization('recalibrated').around(method, params)"
            )
        return 0.5 * trees.squared_norm(params)

    def minibatch(self, params: Params, key: Key[Array, ""], number: Any) -> Scalar:
        return self(params)

    def moved(self, params: Params, key: Any, number: Any = None) -> tuple[Scalar, Params]:
        return 0.5 * trees.squared_norm(params), params

    def moments(self, params: Params, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, Params]:
        kind = jnp.result_type(jnp.float32, *jax.tree.leaves(params))
        return jnp.asarray(self.weight), {name: jnp.zeros(shape, kind) for name, shape in shapes.items()}

    def whole(self, params: Params, key: Any = None) -> Scalar:
        return self(params)

    predicted = whole

    def own(self, params: Params) -> Params:
        return params

    def shifted_solve(self, g: Params, step_size: Any) -> Params:
        return trees.scale(step_size, g)

    def trained(self, x: Params) -> Params:
        return x


@struct
class NodePopulation:
    """The clients of a federation, of which the server knows only the number."""

    count: int = static()

    @property
    def size(self) -> int:
        return self.count

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        return _draw(key, count, self.count, False)

    def client(self, id: UInt32[Array, ""]) -> AnyClient:
        return AnyClient()


@dataclass(frozen=True)
class Schema:
    """The exchanges of a method on parameters of certain shapes."""

    plan: Plan
    description: Mapping[str, Any]
    stateful: frozenset[str]  # the works that change a client's memory

    @classmethod
    def of(cls, method: Any, params: Params, codecs: Codecs = NO_CODECS) -> "Schema":
        """The schema, derived once per process on the server and on the clients; it does not depend on their number."""
        essence = {
            "format": WIRE,
            "method": _essence(describe.without_code(describe.describe(method))),
            "params": _signature(params),
            **({"codecs": describe.describe(codecs.named)} if codecs else {}),
        }
        key = f"{describe.digest(essence)} {jax.tree.structure((method, params))}"
        if key not in _KNOWN:
            plan = ledger.plan(method, params, NodePopulation(CLIENTS), codecs=codecs)
            exchanges = {
                f"{phase} {exchange.label}": {
                    "message": _signature(dict(exchange.message)),
                    "sent": sorted(exchange.sent),
                    "reply": _signature(exchange.reply),
                }
                for phase, exchanges in (("start", plan.start), ("round", plan.round))
                for exchange in exchanges
            }
            stateful = frozenset(name for name, work in works_of(method).items() if terms_of(work).stateful)
            _KNOWN[key] = cls(plan, {**essence, "exchanges": exchanges}, stateful)
        return _KNOWN[key]

    @property
    def method(self) -> str:
        return method_of(self.description)

    @functools.cached_property
    def digest(self) -> str:
        return describe.digest(self.description)[:32]

    @functools.cached_property
    def text(self) -> str:
        """The description, as it travels to a client that is asked for the first time."""
        return json.dumps(self.description, allow_nan=False)

    def exchange(self, phase: str, label: str) -> Exchange | None:
        """The exchange of that label in the start of the method or in its rounds."""
        exchanges = {"start": self.plan.start, "round": self.plan.round}.get(phase, ())
        return next((exchange for exchange in exchanges if exchange.label == label), None)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """How this schema differs from the description of another, in words, the most important difference first."""
        mine = dict(self.description)
        theirs, own = (method_of(description) for description in (other, mine))
        if theirs != own:
            return [f"method is {theirs} on the server, {own} on the client"]
        found = [
            f"{where} is {theirs} on the server, {own} on the client"
            for part in ("format", "method", "params", "codecs", "exchanges")
            for where, theirs, own in describe.differences(other.get(part), mine.get(part), part)
        ]
        return [text for text in found if not text.startswith("exchanges")] or found

    def kept(self, phase: str) -> frozenset[str]:
        """The fields that an exchange expects its clients to hold from an earlier exchange of the same round."""
        exchanges = self.plan.start if phase == "start" else self.plan.round
        return frozenset(name for exchange in exchanges for name in exchange.message.keys() - exchange.sent.keys())


_KNOWN: dict[str, Schema] = {}


def _essence(description: Any) -> Any:
    """The description without the cohort size, on which no work of a client depends."""
    if isinstance(description, dict):
        return {name: _essence(part) for name, part in description.items() if name != "cohort_size"}
    return [_essence(part) for part in description] if isinstance(description, list) else description


def _signature(tree: Any) -> dict[str, str]:
    leaves = zip(trees.names(tree), jax.tree.leaves(tree), strict=True)
    return {name: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for name, leaf in leaves}
