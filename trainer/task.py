"""Task: the seam between what is learned and how it is trained.

The step and the loop know no model and no loss; they see this interface. A task is stateless:
everything that training changes is in TrainState.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import numpy as np
from flax import nnx

from models.context import Context

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array of a global batch.

    Attributes:
      shape: global shape, rows first.
      dtype: NumPy dtype.
      axes: logical axis of each dimension.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str | None, ...]


class Task(Protocol):
    """What is computed from a batch."""

    def batch_spec(self, *, rows: int, length: int) -> dict[str, ArraySpec]:
        """Returns the arrays of a batch of ``rows`` rows and ``length`` tokens."""
        ...

    def init(self, key: jax.Array) -> nnx.Module:
        """Creates the model; called inside jit, with outputs sharded."""
        ...

    def loss(
        self, model: nnx.Module, batch: Batch, *, ctx: Context
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """Returns (sum of the loss, sum of the weights, sums of further metrics).

        All are sums over the batch, so that adding them over microbatches is exact. The gradient
        is that of ``sum / weights``.
        """
        ...

    def metrics(self, sums: Mapping[str, float], *, weight: float) -> dict[str, float]:
        """Turns sums of ``loss``'s metrics over any number of batches into reported metrics."""
        ...

    def attention_flops(self, *, rows: int, length: int, causal: bool) -> float:
        """Returns operations of a forward pass between activations (scores, weighted sums).

        Counted from the formula, because fused kernels hide them from the traced program.
        ``causal`` counts only pairs that a causal mask lets through.
        """
        ...
