"""What ``python -m benchmarks.step`` measures, as plain data. Imports the standard library only."""

import dataclasses
import enum
from typing import Any

GIN_FILE = "configs/runs/benchmark_step.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained; the defaults are those of ``GIN_FILE``."""

    vocab: int = 8192
    embed: int = 256
    layers: int = 4
    heads: int = 4
    mlp: int = 704
    length: int = 512
    rows: int = 8
    dtype: str = "float32"
    rate: float = 3e-4
    decay: float = 0.1
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.rows * self.length


SMALL = Work(vocab=256, embed=64, layers=2, mlp=96, length=64, rows=2)
"""For tests and ``--quick``: a fraction of a second per step."""


class Layers(enum.StrEnum):
    """LISTED and STACKED are unrolled; STACKED and SCANNED keep [L, ...] parameters."""

    LISTED = "listed"
    STACKED = "stacked"
    SCANNED = "scanned"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """How a loop is written by hand.

    Attributes:
      flat: projections on [B * T, D] instead of [B, T, D].
      layers: how they are kept and run.
    """

    flat: bool
    layers: Layers


class Subject(enum.StrEnum):
    """OURS is the framework's step; PLAIN and BEST are hand-written, BEST with flat projections."""

    OURS = "ours"
    UNGUARDED = "ours, unguarded"
    BEST = "best"
    PLAIN = "plain"


def hand_written_form(subject: Subject, *, scanned: bool, stacked: bool = False) -> Form:
    """Returns how a hand-written subject is written."""
    unrolled = Layers.STACKED if stacked else Layers.LISTED
    return Form(flat=subject is not Subject.PLAIN, layers=Layers.SCANNED if scanned else unrolled)


def bindings(work: Work, *, scanned: bool) -> list[str]:
    """Returns the gin bindings that give ``GIN_FILE`` the sizes of ``work``."""
    values: dict[str, Any] = {
        "DecoderConfig.dtype": work.dtype,
        "DecoderConfig.scan_layers": scanned,
        "DecoderConfig.vocab_size": work.vocab,
        "DecoderConfig.embed_dim": work.embed,
        "DecoderConfig.layers": work.layers,
        "DecoderConfig.heads": work.heads,
        "DecoderConfig.kv_heads": work.heads,
        "DecoderConfig.mlp_dim": work.mlp,
        "DataConfig.sequence_length": work.length,
        "DataConfig.global_batch": work.rows,
    }
    return [f"{name}={value!r}" for name, value in values.items()]
