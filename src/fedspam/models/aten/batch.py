"""What layers know about the rows of a batch, and PyTorch's dtypes."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedspam._internal.trees import Key


@dataclass
class Batch:
    """What some layers need to know about the rows that they see together."""

    rows: int
    kept: Bool[Array, " rows"] | None  # which rows are real; None if all are
    key: Key | None  # of dropout; None switches it off
    draws: int = 0

    def next_key(self) -> Key:
        """A key for each layer that draws, in the order of the module."""
        self.draws += 1
        if self.key is None:
            raise ValueError("the module draws random numbers here, which needs a key; give one, or remove the draw")
        return jax.random.fold_in(self.key, self.draws)

    def kept_of(self, inputs: Array) -> Bool[Array, " rows"] | None:
        """The mask of an array that has a row, or as many rows as places, for each example."""
        if self.kept is None:
            return None
        if inputs.shape[0] % self.rows:
            raise ValueError(
                f"batch normalization of shape {inputs.shape} does not begin with the {self.rows} rows of the batch, "
                "so that padding cannot be told from real rows; normalize with the rows as first axis"
            )
        return jnp.repeat(self.kept, inputs.shape[0] // self.rows)


def dtype_of(kind: Any) -> Any:
    """The dtype of JAX for one of PyTorch: 64 bits only where JAX has them."""
    return jax.dtypes.canonicalize_dtype(jnp.dtype(str(kind).removeprefix("torch.")))
