"""Training a part of a model: some of its parameters, or low-rank adapters beside all of them (LoRA).

The rest stays fixed on every client, and only what is trained is sent and charged. Both take any `Model`, also one of
Flax, Equinox or PyTorch. Dropout is off, and running statistics stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params
from fedspam.clients import parted
from fedspam.models.model import Model, Network


@dataclass(frozen=True, eq=False)
class Part:
    """A network of which the parameters in `trained` are trained, and the others stay as in `base`."""

    network: Network
    base: Params
    trained: tuple[str, ...]

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        return {name: leaf for name, leaf in _named(self.base).items() if name in self.trained}

    def merge(self, params: Mapping[str, Array]) -> Params:
        """All parameters of the network."""
        dtype = next(iter(params.values())).dtype
        leaves = [params.get(name, leaf.astype(dtype)) for name, leaf in _named(self.base).items()]
        return jax.tree.unflatten(jax.tree.structure(self.base), leaves)

    def __call__(self, params: Mapping[str, Array], inputs: object) -> Float[Array, "rows ..."]:
        return self.network(self.merge(params), inputs)


@dataclass(frozen=True, eq=False)
class Adapters:
    r"""A network with weights :math:`W + \tfrac{s}{r} A B`: W stays as in `base`, and A and B of rank r are trained."""

    network: Network
    base: Params
    adapted: tuple[str, ...]
    rank: int
    scale: float

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        params, leaves = {}, _named(self.base)
        for name, one in zip(self.adapted, jax.random.split(key, len(self.adapted)), strict=True):
            rows, columns = leaves[name].shape
            params[f"{name}.down"] = jax.random.normal(one, (rows, self.rank)) / jnp.sqrt(rows)
            params[f"{name}.up"] = jnp.zeros((self.rank, columns))  # so that training starts at the base
        return params

    def merge(self, params: Mapping[str, Array]) -> Params:
        """All parameters of the network, with the adapters added to its weights."""
        dtype = next(iter(params.values())).dtype
        leaves = {name: leaf.astype(dtype) for name, leaf in _named(self.base).items()}
        for name in self.adapted:
            leaves[name] += (self.scale / self.rank) * params[f"{name}.down"] @ params[f"{name}.up"]
        return jax.tree.unflatten(jax.tree.structure(self.base), list(leaves.values()))

    def __call__(self, params: Mapping[str, Array], inputs: object) -> Float[Array, "rows ..."]:
        return self.network(self.merge(params), inputs)


def train_part(model: Model, base: Params, names: str | Sequence[str]) -> Model:
    """The model with only some of its parameters trained, such as its last layer.

    Arguments:
        model: any model.
        base: its parameters; those that are not trained keep these values.
        names: patterns of the names to train, such as ``"dense1.*"``.

    >>> import jax.numpy as jnp
    >>> from fedspam.models import mlp
    >>> model = mlp(4, 3, hidden=(8,))
    >>> head = train_part(model, model.init(0), "dense1.*")
    >>> sorted(head.init(0))
    ['dense1.bias', 'dense1.kernel']
    >>> head.logits(head.init(0), jnp.ones((5, 4))).shape
    (5, 3)
    """
    return replace(model, network=Part(model.network, base, _matching(base, names)), normalization=None)


def lora(model: Model, base: Params, *, rank: int = 4, scale: float = 1.0, names: str | Sequence[str] = "*") -> Model:
    r"""The model with low-rank adapters beside its weights: only they are trained and sent.

    .. math:: W \leftarrow W + \tfrac{s}{r} A B, \quad A \in R^{m\times r},\ B \in R^{r\times n}

    Hu et al.: LoRA: low-rank adaptation of large language models, 2021, arXiv:2106.09685.

    Arguments:
        model: any model.
        base: its parameters, such as those of an earlier training.
        rank: r; smaller than both sides of the weights.
        scale: s; LoRA's α. B starts at 0, so training starts at the base.
        names: patterns of the names of weights to adapt. Of these, matrices are adapted, and the rest stays as it is.

    >>> from fedspam.models import char_transformer
    >>> model = char_transformer(layers=1, width=64)
    >>> adapted = lora(model, model.init(0), rank=2, names="block*.attend.*")
    >>> {name: leaf.shape for name, leaf in adapted.init(0).items()}
    {'block0.attend.kernel.down': (64, 2), 'block0.attend.kernel.up': (2, 192)}
    """
    checks.whole("rank", rank, 1)
    checks.positive("scale", scale)
    leaves = _named(base)
    matrices = tuple(name for name in _matching(base, names) if leaves[name].ndim == 2)
    if not matrices:
        raise ValueError(f"names = {names!r} matches no matrix; it must match one of {', '.join(leaves)}")
    small = [name for name in matrices if min(leaves[name].shape) <= rank]
    if small:
        raise ValueError(
            f"rank = {rank} must be smaller than both sides of {small[0]}, which has shape {leaves[small[0]].shape}; "
            "lower it, or leave this one out of names"
        )
    return replace(model, network=Adapters(model.network, base, matrices, rank, scale), normalization=None)


def merged(model: Model, params: Mapping[str, Array]) -> Params:
    """All parameters of a model of `train_part` or `lora`, in the structure of its base, to use or save without it.

    >>> from fedspam.models import mlp
    >>> model = mlp(4, 3, hidden=(8,))
    >>> head = train_part(model, model.init(0), "dense1.*")
    >>> sorted(merged(head, head.init(0)))
    ['dense0', 'dense1']
    """
    if not isinstance(model.network, Part | Adapters):
        raise ValueError(f"the model trains all of its parameters; give one of train_part or lora, not {model}")
    return model.network.merge(params)


def _named(params: Params) -> dict[str, Array]:
    if parted(params)[1] is not None:
        raise ValueError(
            "base has running statistics beside its parameters, which stay fixed here: load them into the module "
            "(fedspam.models.state_dict), call from_torch again, and give base without them: base['params']"
        )
    return dict(zip(trees.names(params), map(jnp.asarray, jax.tree.leaves(params)), strict=True))


def _matching(base: Params, names: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (names,) if isinstance(names, str) else tuple(names)
    return trees.matching(base, patterns)
