"""How many ways each parameter of a plan is split; what memory and step time both start from.

Standard library only.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

from models.decoder_config import DecoderConfig
from models.lora_config import is_adapter
from partitioning.mesh_config import AXES, RulesConfig
from partitioning.planner.decoder_parameters import parameters
from partitioning.planner.plan import Plan
from partitioning.rules import assign, optimizer_rules
from partitioning.traffic_step import REPLICAS, STAGE, stored_width


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One parameter on a mesh.

    Attributes:
      name: its path.
      axes: logical axes.
      shape: of the whole.
      elements: of the whole.
      ways: devices that share it.
      stage_ways: of these, those of one pipeline stage.
      state_ways: devices that share its optimizer state, and its gradient once it is complete.
      summing_ways: devices that share its gradient while microbatches are added up, which each
        replica does on its own (partitioning/replicas.py).
      computing_ways: devices among which it stays split while it is used; the others gather it.
      width: bytes of an element as it is stored.
      trained: whether it has a gradient and an optimizer's state.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    elements: int
    ways: int
    stage_ways: int
    state_ways: int
    summing_ways: int
    computing_ways: int
    width: int
    trained: bool

    @property
    def in_blocks(self) -> bool:
        """Whether it belongs to the repeated pattern, which pipeline stages share."""
        return "/pattern/" in self.name


def leaves(plan: Plan) -> tuple[Leaf, ...]:
    """Returns every parameter of a plan's model."""
    return _leaves(plan.model, sizes_key(plan.sizes), plan.rules)


def trained(tree: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """Returns the parameters that have gradients."""
    return tuple(leaf for leaf in tree if leaf.trained)


def sizes_key(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the sizes of a mesh in the order of its axes."""
    return tuple(sizes[axis] for axis in AXES)


@functools.lru_cache(maxsize=4096)
def _leaves(
    model: DecoderConfig, sizes_of: tuple[int, ...], rules: RulesConfig
) -> tuple[Leaf, ...]:
    sizes = dict(zip(AXES, sizes_of, strict=True))
    found = []
    for name, (axes, shape) in parameters(model).items():
        here, _ = assign(axes, shape=shape, rules=rules.parameters, sizes=sizes, name=name)
        state, _ = assign(axes, shape=shape, rules=optimizer_rules(rules), sizes=sizes, name=name)
        # Stages and experts keep their own; whatever splits the tokens is gathered for use.
        stays = [
            axis
            for logical, split in zip(axes, here, strict=True)
            for axis in split
            if axis == "tensor" or (logical == "layers" and axis == STAGE) or logical == "experts"
        ]
        holders = [axis for split in here for axis in split]
        keepers = [axis for split in state for axis in split]
        found.append(
            Leaf(
                name=name,
                axes=axes,
                shape=shape,
                elements=math.prod(shape),
                ways=math.prod(sizes[axis] for axis in holders),
                stage_ways=math.prod(sizes[axis] for axis in holders if axis != STAGE),
                state_ways=math.prod(sizes[axis] for axis in keepers),
                summing_ways=math.prod(sizes[axis] for axis in keepers if axis != REPLICAS),
                computing_ways=math.prod(sizes[axis] for axis in stays),
                width=stored_width(model, name),
                trained=model.lora is None or is_adapter(name),
            )
        )
    return tuple(found)
