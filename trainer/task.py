"""Task: the seam between what is learned and how it is trained.

The step and the loop know no model and no loss; they see this interface. A task is stateless:
everything that training changes is in TrainState.
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx

from models.context import Context
from models.stack import add_reports

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
Sums = tuple[jax.Array, jax.Array, Metrics]
"""(sum of the loss, sum of the weights, sums of further metrics)."""


def add_sums(*parts: Sums) -> Sums:
    """Adds what several parts of a model contribute; a metric that one of them lacks is zero."""
    total = functools.reduce(operator.add, [total for total, _, _ in parts])
    weight = functools.reduce(operator.add, [weight for _, weight, _ in parts])
    return total, weight, add_reports(*(metrics for _, _, metrics in parts))


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

    def loss(self, model: nnx.Module, batch: Batch, *, ctx: Context) -> Sums:
        """Returns sums of loss, weights and further metrics.

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

    def routed_flops(self, *, rows: int, length: int) -> float:
        """Returns operations of a forward pass with parameters that each token chooses.

        Counted from the formula: what is computed besides, to fill buffers, is no model FLOPs.
        """
        ...


@runtime_checkable
class PipelinedTask(Task, Protocol):
    """A task whose model is a chain: something, equal repeats of a pattern, something.

    Its ``loss`` is the sum of what the three parts contribute.
    """

    @property
    def repeated(self) -> str:
        """Path under which all parameters lead with the repeats' dimension."""
        ...

    @property
    def between(self) -> tuple[str | None, ...]:
        """Logical axes of what passes from one repeat to the next."""
        ...

    def enter(self, model: nnx.Module, batch: Batch, *, ctx: Context) -> tuple[jax.Array, Sums]:
        """Returns what the first repeat reads, and what is contributed before it."""
        ...

    def repeat(
        self,
        model: nnx.Module,
        x: jax.Array,
        batch: Batch,
        *,
        ctx: Context,
        numbers: jax.Array | None = None,
    ) -> tuple[jax.Array, Sums]:
        """Runs the repeats that ``model`` holds; ``numbers`` says which ones, None means all."""
        ...

    def leave(self, model: nnx.Module, x: jax.Array, batch: Batch, *, ctx: Context) -> Sums:
        """Returns what is contributed after the last repeat."""
        ...
