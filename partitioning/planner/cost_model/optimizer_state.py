"""Bytes that an optimizer keeps per parameter, by its configuration. Imports no optax.

A test holds them against the state that trainer/optimizers.py builds.
"""

import math

from partitioning.planner.cost_model.layout import Leaf
from partitioning.traffic_step import WIDTH
from trainer.optimizer_config import SGD, Adafactor, Lion, Muon, OptimizerConfig


def state_elements(optimizer: OptimizerConfig, leaf: Leaf) -> float:
    """Returns the numbers that are kept of a whole parameter."""
    if isinstance(optimizer, SGD):
        return leaf.elements if optimizer.momentum else 0
    if isinstance(optimizer, Lion):
        return leaf.elements
    if isinstance(optimizer, Muon):
        return leaf.elements * (1 if is_matrix(leaf.axes) else 2)
    if isinstance(optimizer, Adafactor):
        return _factored(optimizer, leaf.shape)
    return 2 * leaf.elements


def state_width(optimizer: OptimizerConfig, *, param_dtype: str) -> int:
    """Returns the bytes of one of these numbers."""
    if optimizer.moment_dtype == "bfloat16":
        return 2
    return max(4, WIDTH[param_dtype])


def is_matrix(axes: tuple[str, ...]) -> bool:
    """Whether Muon orthogonalises a parameter (trainer.optimizers.matrix_dimensions)."""
    own = [axis for axis in axes if axis not in ("layers", "experts")]
    return "vocab" not in axes and "embed" in axes and len(own) > 1


def _factored(optimizer: Adafactor, shape: tuple[int, ...]) -> float:
    """One row and one column in place of the matrix of a parameter's two largest sides."""
    if len(shape) < 2 or sorted(shape)[-2] < optimizer.min_dim_to_factor:
        return math.prod(shape)
    smaller, larger = sorted(shape)[-2:]
    return math.prod(shape) / larger + math.prod(shape) / smaller
