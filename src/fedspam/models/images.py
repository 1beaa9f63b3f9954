"""What a client does to its images before the network sees them: normalization, random crops and flips."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedspam._internal import checks
from fedspam._internal.trees import Key


@dataclass(frozen=True)
class Images:
    """Normalization of every image, and a random crop and flip of every image in training.

    Give it to a model: ``dataclasses.replace(model, images=Images(crop=4, flip=True))``. The draws come from the key of
    the minibatch, so that two gradients that are compared see the same crops. Further rows change no draw.

    Arguments:
        crop: pixels added on every side, before normalization, of which a window of the old size is cut.
        flip: whether half of the images are mirrored, left to right.
        mean, deviation: of each channel, subtracted and divided by; () for neither.
        channels_first: whether images are channels x height x width, as PyTorch has them, or height x width x channels.
        reflect: whether the pixels around an image mirror it at its border, instead of being zeros.

    >>> import jax, jax.numpy as jnp
    >>> rows = jnp.arange(16.0).reshape(1, 1, 4, 4)
    >>> Images(mean=(7.5,), deviation=(2.0,))(rows, None)[0, 0, 0].tolist()
    [-3.75, -3.25, -2.75, -2.25]
    >>> Images(crop=1, flip=True)(rows, jax.random.key(0)).shape
    (1, 1, 4, 4)
    """

    crop: int = 0
    flip: bool = False
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    channels_first: bool = True
    reflect: bool = False

    def __post_init__(self) -> None:
        checks.whole("crop", self.crop, 0)
        for one in self.mean:
            checks.between("mean", one, -math.inf, math.inf)
        for one in self.deviation:
            checks.positive("deviation", one)
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"mean = {self.mean} and deviation = {self.deviation} must have one number per channel")

    @property
    def draws(self) -> bool:
        """Whether training sees other images than prediction."""
        return self.crop > 0 or self.flip

    def __call__(self, images: Float[Array, "rows a b c"], key: Key | None) -> Float[Array, "rows a b c"]:
        """The images; without a key they are only normalized."""
        if images.ndim != 4:
            raise ValueError(f"images have shape {images.shape}; give rows, channels and two axes of pixels")
        if key is not None:
            shift, mirror = jax.random.split(key)
            images = self._cropped(images, shift) if self.crop else images
            images = self._flipped(images, mirror) if self.flip else images
        if not self.mean:
            return images
        along = lambda numbers: jnp.asarray(numbers, images.dtype).reshape((-1, 1, 1) if self.channels_first else (-1,))
        return (images - along(self.mean)) / along(self.deviation)

    def _cropped(self, images: Array, key: Key) -> Array:
        wide = ((self.crop, self.crop),) * 2
        pads = ((0, 0), *(((0, 0), *wide) if self.channels_first else (*wide, (0, 0))))
        padded = jnp.pad(images, pads, mode="reflect" if self.reflect else "constant")
        starts = jax.random.randint(key, (images.shape[0], 2), 0, 2 * self.crop + 1)

        def cut(image: Array, start: Array) -> Array:
            begin = (0, start[0], start[1]) if self.channels_first else (start[0], start[1], 0)
            return lax.dynamic_slice(image, begin, images.shape[1:])

        return jax.vmap(cut)(padded, starts)

    def _flipped(self, images: Array, key: Key) -> Array:
        mirrored = jnp.flip(images, 3 if self.channels_first else 2)
        coins: Any = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
        return jnp.where(coins, mirrored, images)
