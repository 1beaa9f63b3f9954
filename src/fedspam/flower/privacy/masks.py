r"""The arithmetic of the secure sum: whole numbers modulo :math:`2^{64}`, and masks that cancel.

.. math::
    y_i = x_i + m(b_i) + \sum_{j>i} m(s_{ij}) - \sum_{j<i} m(s_{ij}) \pmod{2^{64}}

Keys, key agreement, encryption and Shamir's shares are Flower's. Its generator of masks is not used, because it reduces
each seed to 32 bits, few enough to try them all. Here m is the key stream of ChaCha20 under the whole seed.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

CURVE = ec.SECP384R1()  # the curve of Flower's keys
SCALAR = 48  # bytes of a private key on it
WORD = np.dtype("<u8")
SEED = 32  # bytes


def to_fixed(values: np.ndarray, fraction_bits: int, clients: int) -> np.ndarray:
    """Floats as whole multiples of :math:`2^{-f}`, modulo :math:`2^{64}`; negative numbers become large words.

    >>> to_fixed(np.array([1.5, -0.25]), 2, clients=3).tolist()
    [6, 18446744073709551615]
    """
    values = np.asarray(values, np.float64)
    largest = 2.0 ** (62 - fraction_bits) / clients
    if not np.all(np.isfinite(values)):
        raise ValueError("values that are NaN or infinite cannot be summed")
    if values.size and np.max(np.abs(values)) > largest:
        raise ValueError(
            f"an entry does not fit into a sum over {clients} clients with fraction_bits = {fraction_bits}: at most "
            f"{largest:.3g} does; clip, or use fewer fraction_bits"  # how large it is stays on the client
        )
    return np.rint(values * 2.0**fraction_bits).astype(np.int64).view(np.uint64)


def to_floats(words: np.ndarray, fraction_bits: int) -> np.ndarray:
    """The inverse of `to_fixed`, also for sums.

    >>> to_floats(to_fixed(np.array([1.5, -0.25]), 2, clients=3), 2).tolist()
    [1.5, -0.25]
    """
    return words.view(np.int64).astype(np.float64) / 2.0**fraction_bits


def stream(seed: bytes, length: int) -> np.ndarray:
    """Pseudorandom words from a seed; without the seed they look uniform."""
    if len(seed) != SEED:
        raise ValueError(f"a seed has {SEED} bytes, not {len(seed)}")
    encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(WORD.itemsize * length)), WORD).astype(np.uint64)


@dataclass(frozen=True)
class Pair:
    """A private key and its public key."""

    private: ec.EllipticCurvePrivateKey

    @classmethod
    def fresh(cls) -> "Pair":
        return cls(ec.generate_private_key(CURVE))

    @classmethod
    def of(cls, scalar: bytes) -> "Pair":
        return cls(ec.derive_private_key(int.from_bytes(scalar, "big"), CURVE))

    @property
    def scalar(self) -> bytes:
        return self.private.private_numbers().private_value.to_bytes(SCALAR, "big")

    @property
    def public(self) -> bytes:
        return public_key_to_bytes(self.private.public_key())

    def shared(self, public: bytes) -> bytes:
        """The secret that only the owners of the two private keys can compute."""
        return generate_shared_key(self.private, bytes_to_public_key(public))


def pair_seed(mine: Pair, public: bytes, session: str) -> bytes:
    """The seed that two clients share in one session."""
    return hmac.new(mine.shared(public), f"mask {session}".encode(), hashlib.sha256).digest()


def mask(words: np.ndarray, me: int, own: bytes, mine: Pair, publics: Mapping[int, bytes], session: str) -> np.ndarray:
    """The masked words that client `me` sends: under its own seed b, its key pair for masks, and the public keys of all
    clients in the sum. The session identifies the sum, so that no mask is used twice."""
    masked = words + stream(own, len(words))
    for other, public in publics.items():
        if other != me:
            shared = stream(pair_seed(mine, public, session), len(words))
            masked = masked + shared if me < other else masked - shared
    return masked


def unmask(
    masked: Mapping[int, np.ndarray],
    own: Mapping[int, bytes],
    lost: Mapping[int, Pair],
    publics: Mapping[int, bytes],
    session: str,
) -> np.ndarray:
    """The sum of the words of the clients whose masked words arrived, from their own seeds b, and from the key pairs of
    the clients in the masks whose words are lost."""
    length = len(next(iter(masked.values())))
    total = np.zeros(length, np.uint64)
    for me, words in masked.items():
        total = total + words - stream(own[me], length)
        for other, pair in lost.items():
            shared = stream(pair_seed(pair, publics[me], session), length)
            total = total - shared if me < other else total + shared
    return total


def join(shares: Iterable[bytes], threshold: int) -> bytes:
    """The secret from at least `threshold` of its shares."""
    some = sorted(set(shares))[:threshold]
    if len(some) < threshold:
        raise ValueError(f"{len(some)} shares are not enough; {threshold} are needed")
    return combine_shares(some)
