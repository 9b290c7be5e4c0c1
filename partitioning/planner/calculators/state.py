"""Bytes of parameters, gradients and optimizer state: on a device, and in a checkpoint.

Mixed precision with Adam keeps 16 bytes for each parameter: bfloat16 weights and gradients, and
float32 master weights, first and second moments (Rajbhandari et al. 2020, ZeRO, section 3.1). What
a concrete model with its sharding rules takes is memory.py's; these are the closed forms.
"""

import dataclasses
from typing import Literal

WEIGHTS, GRADIENTS, OPTIMIZER = 2, 2, 12
STATE = WEIGHTS + GRADIENTS + OPTIMIZER
"""Bytes per parameter."""

Zero = Literal[0, 1, 2, 3]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the mesh axes that divide the state.

    Attributes:
      tensor: splits every weight.
      stage: splits the layers.
      data: replicas, over which ZeRO shards.
      context: more of them, where ZeRO spans the axis of long sequences.
    """

    tensor: int = 1
    stage: int = 1
    data: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        """All devices."""
        return self.tensor * self.stage * self.replicas

    @property
    def replicas(self) -> int:
        """Devices that ZeRO shards over."""
        return self.data * self.context


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Bytes on one device.

    Attributes:
      weights: bfloat16.
      gradients: bfloat16.
      optimizer: float32 master weights and Adam's two moments.
    """

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer


def per_device(parameters: float, *, zero: Zero, layout: Layout) -> State:
    """Returns what one device holds.

    ZeRO's stages shard the optimizer (1), gradients too (2), weights too (3), over the replicas;
    tensor and pipeline parallelism divide everything before that.
    """
    own = parameters / (layout.tensor * layout.stage)
    shards = [layout.replicas if zero >= stage else 1 for stage in (3, 2, 1)]
    return State(
        weights=WEIGHTS * own / shards[0],
        gradients=GRADIENTS * own / shards[1],
        optimizer=OPTIMIZER * own / shards[2],
    )


def least_replicas(parameters: float, *, room: float, layout: Layout) -> float:
    """Returns over how many replicas ZeRO-3 must shard to fit into ``room`` bytes; not rounded."""
    return STATE * parameters / (layout.tensor * layout.stage * room)


def checkpoint_bytes(parameters: float, *, copy: bool = False) -> float:
    """Returns bytes of master weights and moments; with ``copy`` the bfloat16 weights as well."""
    return (OPTIMIZER + (WEIGHTS if copy else 0)) * parameters
