"""Seeded permutations of ``range(size)`` that need no table. Imports NumPy only.

Promises: the same (size, key) gives the same permutation in every version of NumPy and on every
machine, any index costs the same, and sizes up to 2**62 work. It is a balanced Feistel network
with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); the round
function is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
"""

import hashlib

import numpy as np

_ROUNDS = 6
_MAX_SIZE = 1 << 62


def derive_key(*parts: int | str) -> np.ndarray:
    """Returns the uint64 [rounds] key that stands for ``parts`` (seed, epoch, purpose, ...)."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in parts)
    words = [hashlib.sha256(f"{text}#{number}".encode()).digest()[:8] for number in range(_ROUNDS)]
    return np.frombuffer(b"".join(words), dtype="<u8").astype(np.uint64)


def permute(indices: np.ndarray, *, size: int, key: np.ndarray) -> np.ndarray:
    """Returns where each index of ``range(size)`` goes.

    Args:
      indices: int64 [n], each in ``[0, size)``.
      size: number of elements that are permuted.
      key: from `derive_key`.

    Returns:
      int64 [n]; distinct inputs give distinct outputs.

    Raises:
      ValueError: ``size`` or an index is out of range.
    """
    if not 0 <= size <= _MAX_SIZE:
        raise ValueError(f"A permutation of {size} elements; allowed are 0 to 2**62.")
    if len(indices) and not (indices.min() >= 0 and indices.max() < size):
        raise ValueError(f"Indices {indices.min()}..{indices.max()} are not in [0, {size}).")
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    values = _encrypt(indices.astype(np.uint64), half=half, key=key)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _encrypt(values[outside], half=half, key=key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _encrypt(values: np.ndarray, *, half: np.uint64, key: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = values >> half, values & mask
    for word in key:
        left, right = right, left ^ (_mix(right ^ word) & mask)
    return (left << half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
