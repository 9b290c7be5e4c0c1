"""Bytes of activations that wait for the backward pass, in closed form. Standard library only.

Korthikanti et al. 2022 (Reducing Activation Recomputation in Large Transformer Models, table 2),
for a layer with an MLP of four times the width, in bfloat16: b rows of s tokens, width h, t-way
tensor parallelism. What this repository's own layers keep is memory.py's.
"""

import dataclasses
import math

from partitioning.planner.calculators.communication import residual


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's activations of one microbatch.

    Attributes:
      rows: of a microbatch on one device.
      length: tokens of a row on one device (context parallelism divides it).
      width: of the residual stream.
      tensor: devices that split a layer.
      sequence_parallel: what is between the products is split over them, too.
    """

    rows: int
    length: int
    width: int
    tensor: int = 1
    sequence_parallel: bool = True

    @property
    def tokens_by_width(self) -> int:
        """s b h."""
        return self.rows * self.length * self.width

    def selective(self) -> float:
        """Returns bytes if attention's scores are computed again: 34 s b h / t.

        Without sequence parallelism 10 of the 34 stay whole on every device.
        """
        split, whole = (34, 0) if self.sequence_parallel else (24, 10)
        return self.tokens_by_width * (whole + split / self.tensor)

    def nothing_recomputed(self, *, heads: int) -> float:
        """Returns bytes if scores are stored, too: 5 a s s b more."""
        scores = 5 * heads * self.length**2 * self.rows
        return self.selective() + scores / self.tensor

    def full(self) -> float:
        """Returns bytes if only the layer's input is kept: 2 s b h."""
        divisor = self.tensor if self.sequence_parallel else 1
        return residual(self.rows, length=self.length, width=self.width) / divisor


def layers_in_flight(layers: int, *, stages: int, microbatches: int) -> int:
    """Returns layers x microbatches that wait on the first stage of 1F1B, the fullest.

    Stages that run in lockstep, as those of partitioning/schedules.py, keep up to nearly twice as
    many (``Schedule.live``), for inputs only.
    """
    return math.ceil(layers / stages) * min(stages, microbatches)
