"""A plan: what a step computes, and how it is laid out over devices.

Everything that the planner predicts is a function of a plan and a cluster. Imports no jax.
"""

import dataclasses
import math
from collections.abc import Mapping

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import RulesConfig
from partitioning.traffic_step import Step, Work
from trainer.optimizer_config import OptimizerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One train step of a decoder on a mesh.

    Attributes:
      model: the decoder, with its rematerialisation and chunks of the loss.
      sizes: mesh axis -> devices, all axes.
      rules: what is sharded over them.
      work: the global batch, its microbatches and the pipeline.
      optimizer: whose state is kept.
    """

    model: DecoderConfig
    sizes: Mapping[str, int]
    rules: RulesConfig
    work: Work
    optimizer: OptimizerConfig

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.sizes.values())

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.work.rows * self.work.length

    @property
    def mesh(self) -> str:
        """The mesh for people: "data=2 x fsdp=256"."""
        return shown_mesh(self.sizes)

    @property
    def step(self) -> Step:
        """What the formulas of traffic.py read off it."""
        return Step(model=self.model, sizes=self.sizes, rules=self.rules, work=self.work)


def shown_mesh(sizes: Mapping[str, int]) -> str:
    """Returns the axes that have more than one device: "data=2 x fsdp=256"."""
    used = (f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    return " x ".join(used) or "one device"
