"""What the formulas of traffic.py read off a configuration: sizes, widths, and how often.

Letters of the formulas: P elements of a parameter, b bytes per element (of activations unless
said), M microbatches, C chunks of the loss, S stages, V chunks of each, t size of ``tensor``, c
size of ``context``, and a = rows / (M x data x fsdp x expert) x length / c x embed_dim x b, the
residual stream of one microbatch in one tensor group.

Imports neither jax nor flax.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from models.decoder_config import DecoderConfig
from models.lora_config import is_adapter
from partitioning.mesh_config import AXES, PipelineConfig, Rule, RulesConfig
from partitioning.rules import activation_rules, assign, mesh_axes
from partitioning.schedules import Schedule, build_schedule
from partitioning.transfers import Transfer

WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2}
STAGE, REPLICAS = "stage", "data"


def stored_width(model: DecoderConfig, name: str) -> int:
    """Returns the bytes of an element of a parameter; adapters have four at least."""
    width = WIDTH[model.param_dtype]
    return max(4, width) if is_adapter(name) else width


# Searches ask for the same again and again.
_built = functools.lru_cache(maxsize=256)(build_schedule)
_activation_rules = functools.lru_cache(maxsize=64)(activation_rules)


@functools.lru_cache(maxsize=16_384)
def _assigned(
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    table: tuple[Rule, ...],
    sizes: tuple[int, ...],
    name: str,
) -> tuple[tuple[str, ...], ...]:
    named = dict(zip(AXES, sizes, strict=True))
    return assign(axes, shape=shape, rules=table, sizes=named, name=name)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What one step computes.

    Attributes:
      rows: of the global batch.
      length: tokens of a row.
      microbatches: parts of the global batch that run one after the other.
      pipeline: how they pass through stages, where there are any.
    """

    rows: int
    length: int
    microbatches: int = 1
    pipeline: PipelineConfig = PipelineConfig()  # noqa: RUF009 - frozen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uses:
    """How often one device runs a part of the model in a step.

    Attributes:
      runs: microbatches that it runs the part for; more where idle ticks compute, too.
      forward: forward passes of each, those of ``remat`` apart.
    """

    runs: float
    forward: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One train step of a decoder on a mesh."""

    model: DecoderConfig
    sizes: Mapping[str, int]
    rules: RulesConfig
    work: Work

    def uses(self, part: str) -> Uses:
        """Returns how often a part runs: "pattern", "prefix", "suffix", "embedding" or "head".

        Without stages every microbatch passes once. With stages a device has 1/S of the pattern,
        in V pieces, and runs each piece for every microbatch: once in its forward slot, and once
        more in its backward slot, from the input that was kept; "circular" does as much, because
        what a tick computed is computed again. 1F1B spares the last piece its forward slot, so
        that head and suffix run once; first and other pieces are what this counts, since no stage
        does less than the busiest. The embedding is looked up for both slots; blocks before the
        pattern run a third time in 1F1B, for their own gradient.

        Where idle ticks compute and discard, ``ticks`` take the place of the microbatches: of
        V x M for a piece, of M for what only the first or last piece does.
        """
        microbatches = self.work.microbatches
        schedule = self.schedule
        if schedule is None:
            return Uses(runs=microbatches, forward=1)
        skips_pieces, skips_edges = self.skips
        if part == "pattern":
            runs = microbatches if skips_pieces else schedule.ticks / schedule.chunks
            return Uses(runs=runs, forward=2)
        interleaved = schedule.has_backward
        forward = {
            "embedding": 2,
            "prefix": 3 if interleaved else 2,
            "suffix": 1 if interleaved else 2,
            "head": 1 if interleaved else 2,
        }
        runs = microbatches if skips_edges else schedule.ticks
        return Uses(runs=runs, forward=forward[part])

    @functools.cached_property
    def schedule(self) -> Schedule | None:
        """The table of the pipeline; None without stages."""
        if self.sizes[STAGE] == 1:
            return None
        return _built(
            self.work.pipeline.schedule,
            stages=self.sizes[STAGE],
            chunks=self.work.pipeline.chunks,
            microbatches=self.work.microbatches,
        )

    @functools.cached_property
    def skips(self) -> tuple[bool, bool]:
        """Whether idle ticks skip the pieces, and whether stages skip what others begin or end.

        A ring of keys and values stands in every piece and may not be skipped; see pipeline.py.
        """
        skips = self.work.pipeline.idle == "auto"
        ring = self.sizes["context"] > 1 and self.model.context_attention == "ring"
        return skips and not ring, skips

    @functools.cached_property
    def blocks(self) -> tuple[tuple[str, tuple[str, ...], float], ...]:
        """Returns (part, kinds of its blocks, how many times a device has these)."""
        model = self.model
        return (
            ("prefix", model.prefix, 1),
            ("pattern", model.pattern, model.repeats / self.sizes[STAGE]),
            ("suffix", model.suffix, 1),
        )

    @functools.cached_property
    def recomputes(self) -> bool:
        """Whether the backward pass of a block computes anything again."""
        return self.model.remat_choices is not None

    def recomputes_value(self, name: str) -> bool:
        """Whether it computes a value of SAVEABLE again."""
        choices = self.model.remat_choices
        return choices is not None and name not in choices.kept

    def split(
        self, axes: tuple[str, ...], shape: tuple[int, ...], *, table: tuple, name: str
    ) -> dict[str, set[str]]:
        """Returns logical axis -> mesh axes that split it."""
        sizes = tuple(self.sizes[axis] for axis in AXES)
        entries = _assigned(axes, shape, table, sizes, name)
        found: dict[str, set[str]] = {}
        for logical, entry in zip(axes, entries, strict=True):
            found.setdefault(logical, set()).update(entry)
        return found

    def move(
        self,
        kind: str,
        *,
        axes: set[str],
        payload: float,
        why: str,
        per_block: bool = False,
        before: Literal["", "product", "end"] = "",
    ) -> Transfer:
        """Returns a transfer over mesh axes in their order."""
        return Transfer(
            kind=kind,
            axes=tuple(axis for axis in AXES if axis in axes),
            group=self.ways(axes),
            payload=payload,
            why=why,
            per_block=per_block,
            before=before,
        )

    def ways(self, axes: Iterable[str]) -> int:
        """Returns the devices along mesh axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    def axes_of(self, logical: str) -> set[str]:
        """Returns the mesh axes that split a dimension of activations."""
        rule = next(rule for rule in _activation_rules(self.rules) if rule[0] == logical)
        return {axis for axis in mesh_axes(rule[1]) if self.sizes[axis] > 1}

    @functools.cached_property
    def batch(self) -> set[str]:
        """Mesh axes that split the rows."""
        return self.axes_of("act_batch")

    @functools.cached_property
    def token_axes(self) -> set[str]:
        """Mesh axes that split the tokens: rows and length."""
        return self.batch | self.axes_of("act_length")

    @functools.cached_property
    def sequence_parallel(self) -> bool:
        """Whether ``tensor`` splits the residual stream along the sequence."""
        return "tensor" in self.axes_of("act_length_residual")

    @property
    def width(self) -> int:
        """b."""
        return WIDTH[self.model.dtype]

    @functools.cached_property
    def tokens(self) -> float:
        """Tokens of a microbatch in one tensor group."""
        ways = self.ways(self.token_axes) * self.work.microbatches
        return self.work.rows * self.work.length / ways

    @functools.cached_property
    def residual(self) -> float:
        """a."""
        return self.tokens * self.model.embed_dim * self.width
