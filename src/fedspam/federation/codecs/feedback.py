r"""Error feedback: who sends remembers what a codec left out, and adds it to what is sent next.

.. math:: \text{sent} = C(r_k + e_k), \qquad e_{k+1} = r_k + e_k - C(r_k + e_k), \qquad e_0 = 0

The sum of all that was sent differs from the sum of all replies by the last error alone, so that a codec such as `TopK`
loses nothing for ever. Here are the errors of replies, which clients keep; `fedspam.federation.downlink` has those of
messages, which the server keeps.

Seide, Fu, Droppo, Li, Yu: 1-bit stochastic gradient descent, 2014; Karimireddy, Rebjock, Stich, Jaggi: Error feedback
fixes SignSGD, 2019, arXiv:1901.09847.
"""

from typing import Any, ClassVar, NamedTuple

from jaxtyping import PyTree

from fedspam._internal.packing import Codes, Floats
from fedspam._internal.trees import Key, struct
from fedspam.federation.codecs.payload import Codec, Parts, named, parse


class WithLeftovers(NamedTuple):
    """The memory of a client with feedback: that of the method, and its errors by work and array."""

    own: PyTree
    errors: dict[str, dict[str, Any]]


@named("feedback", parse)
@struct
class Feedback:
    """A codec with error feedback. For replies only with methods whose clients keep a memory, such as `scaffold`; for
    messages with every method, because the server keeps the errors.

    Arguments:
        codec: the codec; as text ``feedback-topk-0.1`` for ``Feedback(TopK(0.1))``.
    """

    codec: Codec
    unbiased: ClassVar[bool] = False

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        return self.codec.layout(like)

    def draw(self, key: Key, like: Any) -> Any:
        return self.codec.draw(key, like)

    def codes(self, x: Any, drawn: Any) -> Parts:
        return self.codec.codes(x, drawn)

    def values(self, parts: Parts, like: Any) -> Any:
        return self.codec.values(parts, like)
