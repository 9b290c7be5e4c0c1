"""In which order the tokens of a row are dealt out to the ranks of the `context` axis.

Pure index arithmetic, no jax. The order is applied once, where a batch is put on the devices; the
model sees positions and segments beside every token and asks for nothing else.

Contiguous gives rank r the r-th part of the row. Under a causal mask the last rank then has almost
twice the mean work. Zigzag cuts the row into twice as many chunks as there are ranks and gives
rank r chunk r and the r-th from the end, which makes the work equal (Megatron-LM's and Llama 3's
context parallelism; Llama 3 report, section 3.3.2).
"""

from typing import Any

import numpy as np

from partitioning.mesh_config import ContextLayout


def granularity(layout: ContextLayout, *, shards: int) -> int:
    """Returns what the length of a row must be a multiple of, over ``shards`` ranks."""
    return 2 * shards if layout == "zigzag" and shards > 1 else shards


def original_columns(places: Any, *, layout: ContextLayout, length: int, shards: int) -> Any:
    """Returns the column of a row, as it was read, that stands at each place of the dealt order.

    Args:
      places: integer array of NumPy or jax, each in [0, length); the result is of the same kind.
      layout: order.
      length: tokens of a row.
      shards: ranks of the context axis.

    Raises:
      ValueError: ``length`` does not divide into equal chunks.
    """
    parts = granularity(layout, shards=shards)
    if length % parts:
        raise ValueError(
            f"A row of {length} tokens does not divide into {parts} equal chunks for "
            f"context={shards} in the {layout} layout; take a multiple of {parts}."
        )
    if layout == "contiguous" or shards == 1:
        return places
    size = length // parts
    rank, second = places // (2 * size), places // size % 2
    return (rank + second * (parts - 1 - 2 * rank)) * size + places % size


def dealt_columns(*, layout: ContextLayout, length: int, shards: int) -> np.ndarray | None:
    """Returns the dealt order of a whole row, int64 [length], or None where nothing moves.

    Raises:
      ValueError: ``length`` does not divide into equal chunks.
    """
    places = np.arange(length)
    columns = original_columns(places, layout=layout, length=length, shards=shards)
    return None if columns is places else columns
