"""Codecs: what is sent as fewer bytes. The handles apply them to fields, so that no method knows of them."""

from fedspam.federation.codecs.feedback import Feedback as Feedback
from fedspam.federation.codecs.fields import NO_CODECS as NO_CODECS, Codecs as Codecs, CodecsLike as CodecsLike
from fedspam.federation.codecs.payload import (
    Codec as Codec,
    decode as decode,
    encode as encode,
    encode_numpy as encode_numpy,
    parse as parse,
    rounded as rounded,
    size as size,
)
from fedspam.federation.codecs.rounding import (
    Cast as Cast,
    Grid as Grid,
    Natural as Natural,
    Quantize as Quantize,
    TernGrad as TernGrad,
)
from fedspam.federation.codecs.sparse import LowRank as LowRank, RandK as RandK, TopK as TopK
