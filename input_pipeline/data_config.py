"""What a run reads, as plain data (no jax, no grain)."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Base of every source of documents."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Base of every tokenizer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Source, tokenizer and the global order of examples.

    Attributes:
      source: where documents come from.
      tokenizer: how text becomes tokens; None for sources that hold tokens.
      sequence_length: tokens per row.
      global_batch: rows per optimizer step, over all devices.
      packing: "pack" fills rows with several documents, "pad" gives each its own rows.
      seed: seed of the order of examples.
      shuffle: whether the order differs from the source's.
      workers: processes that read ahead; 0 reads in this one.
      prefetch: batches that are ready ahead of the step.
    """

    source: SourceConfig
    tokenizer: TokenizerConfig | None = None
    sequence_length: int
    global_batch: int
    packing: Literal["pack", "pad"] = "pack"
    seed: int = 0
    shuffle: bool = True
    workers: int = 0
    prefetch: int = 2
