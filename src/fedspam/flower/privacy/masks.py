r"""The arithmetic of the secure sum: whole numbers modulo :math:`2^{64}`, and masks that cancel.

.. math::
    y_i = x_i + m(b_i) + \sum_{j>i} m(s_{ij}) - \sum_{j<i} m(s_{ij}) \pmod{2^{64}}

Keys, key agreement and encryption are Flower's. Its generator of masks is not used, because it reduces each seed to 32
bits, few enough to try them all. Here m is the key stream of ChaCha20 under the whole seed. Its Shamir shares are not
used either: they are multiplied bit by bit in Python, a hundred times slower than whole numbers modulo a prime.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
Shamir: How to share a secret, Communications of the ACM 22, 1979.
"""

import functools
import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from .._flwr import bytes_to_public_key, generate_shared_key, public_key_to_bytes

CURVE = ec.SECP384R1()  # the curve of Flower's keys
SCALAR = 48  # bytes of a private key on it
WORD = np.dtype("<u8")
SEED = 32  # bytes
PRIME = 2**521 - 1  # of the field of the shares, larger than any secret
SHARE = 66  # bytes of a number below it
DIGEST = 16  # bytes of a secret's digest


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


def is_public_key(data: bytes) -> bool:
    """Whether these bytes are a public key on the curve.

    >>> is_public_key(Pair.fresh().public), is_public_key(b"")
    (True, False)
    """
    try:
        key = bytes_to_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == CURVE.name


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
    lost: Mapping[int, Mapping[int, Pair]],
    publics: Mapping[int, bytes],
    session: str,
) -> np.ndarray:
    """The sum of the words of the clients whose masked words arrived, from their own seeds b, and from the key pairs of
    the clients whose words are lost, by the client in whose masks they are."""
    length = len(next(iter(masked.values())))
    total = np.zeros(length, np.uint64)
    for me, words in masked.items():
        total = total + words - stream(own[me], length)
        for other, pair in lost.get(me, {}).items():
            shared = stream(pair_seed(pair, publics[me], session), length)
            total = total - shared if me < other else total + shared
    return total


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir's shares of a secret: the values at 1, ..., `count` of a random polynomial that is the secret at 0. Any
    `threshold` of them determine it; fewer say nothing about it.

    >>> shares = split(b"secret", threshold=2, count=3)
    >>> join({1: shares[0], 3: shares[2]}, threshold=2)
    b'secret'
    """
    if len(secret) > SCALAR:
        raise ValueError(f"a secret has at most {SCALAR} bytes, not {len(secret)}")
    marked = int.from_bytes(b"\x01" + secret + _digest(secret))  # the first byte keeps leading zeros
    polynomial = [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), marked]
    value = lambda place: functools.reduce(lambda sum, term: (sum * place + term) % PRIME, polynomial, 0)
    return [value(place).to_bytes(SHARE) for place in range(1, count + 1)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from at least `threshold` of its shares, by their places from 1 on. A wrong share gives another secret
    than the one with this digest, and is refused."""
    places = tuple(sorted(shares)[:threshold])
    if len(places) < threshold:
        raise ValueError(f"{len(places)} shares are not enough; {threshold} are needed")
    terms = (weight * int.from_bytes(shares[place]) for place, weight in zip(places, _weights(places), strict=True))
    marked = (sum(terms) % PRIME).to_bytes(SHARE).lstrip(b"\x00")
    secret, digest = marked[1:-DIGEST], marked[-DIGEST:]
    if marked[:1] != b"\x01" or digest != _digest(secret):
        raise ValueError("the shares do not belong to one secret")
    return secret


def promise(seed: bytes, key: bytes) -> bytes:
    """What a client says in advance of a share of each of its secrets: two digests, so that a holder that returns
    another share is found."""
    return _digest(seed) + _digest(key)


def keeps(promised: bytes, share: bytes, *, of_key: bool) -> bool:
    """Whether this is the promised share.

    >>> promised = promise(bytes(SHARE), bytes([1] * SHARE))
    >>> keeps(promised, bytes(SHARE), of_key=False), keeps(promised, bytes(SHARE), of_key=True)
    (True, False)
    """
    due = promised[DIGEST:] if of_key else promised[:DIGEST]
    return len(share) == SHARE and hmac.compare_digest(due, _digest(share))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()[:DIGEST]


@functools.lru_cache(maxsize=8)
def _weights(places: tuple[int, ...]) -> list[int]:
    """Lagrange's weights for the value at 0 of a polynomial whose values at `places` are known."""

    def weight(place: int) -> int:
        others = [other for other in places if other != place]
        return math.prod(others) * pow(math.prod(other - place for other in others), -1, PRIME) % PRIME

    return [weight(place) for place in places]
