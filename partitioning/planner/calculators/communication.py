"""What collectives move and how long that takes, in closed form. Standard library only.

Bandwidths are bytes/s that one device sends, one way. partitioning/traffic.py has the same for a
concrete model and mesh, checked against compiled programs; here are the formulas that one
calculates with on paper. A ring sends each device's share to its neighbour n - 1 times for a
reduce-scatter, and n - 1 times for an all-gather (Patarasuk and Yuan 2009).
"""

import dataclasses

from partitioning.planner.calculators.state import WEIGHTS, Layout

BF16 = 2
"""Bytes of one activation."""

PASSES = 3
"""Collectives of ZeRO-3 over all weights in a step: gathers for both passes, one reduce-scatter."""


def ring_factor(devices: int) -> float:
    """Returns what each device sends in a ring all-reduce, in sizes of the message."""
    return 2 * (devices - 1) / devices


def all_reduce(message: float, *, devices: int, bandwidth: float) -> float:
    """Returns seconds of a ring all-reduce of ``message`` bytes."""
    return ring_factor(devices) * message / bandwidth


def residual(rows: int, *, length: int, width: int) -> int:
    """Returns bytes of the residual stream [rows, length, width] in bfloat16."""
    return rows * length * width * BF16


def tensor_calls(layers: int, *, microbatches: int) -> int:
    """Returns all-reduces of tensor parallelism in a step, of a device with so many layers.

    Attention and MLP have one each in the forward pass, and one each in the backward pass
    (Shoeybi et al. 2019, Megatron-LM, section 3).
    """
    return 4 * layers * microbatches


def expert_exchange(tokens: float, *, experts: int, choices: int, width: int) -> float:
    """Returns bytes that a device sends in one all-to-all; a layer dispatches and combines."""
    return tokens * (experts - 1) / experts * choices * width * BF16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """Ring attention over the axis ``context``, per layer and row.

    Attributes:
      length: tokens of the whole row.
      keys: width of all keys, kv heads x head size; values are as wide.
      context: devices of the ring.
    """

    length: int
    keys: int
    context: int

    @property
    def keys_and_values(self) -> int:
        """Bytes of keys and values of the whole row."""
        return 2 * self.length * self.keys * BF16

    @property
    def sent(self) -> float:
        """Bytes that one device sends: its share, context - 1 times."""
        return self.keys_and_values * (self.context - 1) / self.context


def scores(length: int, *, heads: int = 1) -> int:
    """Returns bytes of one layer's attention scores, if they were ever stored whole."""
    return heads * length**2 * BF16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharded:
    """What ZeRO-3 moves for each device in a step.

    Attributes:
      parameters: of the whole model.
      layout: tensor and pipeline parallelism leave a device only its part of each weight.
    """

    parameters: float
    layout: Layout

    @property
    def shard(self) -> float:
        """Bytes of the weights that a device computes with."""
        return WEIGHTS * self.parameters / (self.layout.tensor * self.layout.stage)

    @property
    def once(self) -> float:
        """Bytes that a device sends to gather, or reduce and scatter, its weights once."""
        return self.shard * (self.layout.replicas - 1) / self.layout.replicas

    def step(self, *, microbatches: int = 1, scatter_once: bool = True) -> float:
        """Returns bytes of a step that gathers for each microbatch.

        Args:
          microbatches: of one replica.
          scatter_once: gradients are summed on the device and scattered after the last one.
        """
        scatters = 1 if scatter_once else microbatches
        return self.once * ((PASSES - 1) * microbatches + scatters)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Parts of a step in seconds; communication can hide behind the backward pass.

    Attributes:
      forward: of the forward pass.
      backward: of the backward pass.
      communication: of gradients and weights.
      optimizer: of the update.
    """

    forward: float
    backward: float
    communication: float
    optimizer: float

    def exposed(self, overlap: float) -> float:
        """Returns seconds of communication in which nothing computes."""
        return self.communication - min(overlap * self.communication, self.backward)

    def total(self, overlap: float = 0.0) -> float:
        """Returns the step's time if ``overlap`` of the communication tries to hide."""
        return self.forward + self.backward + self.optimizer + self.exposed(overlap)

    @property
    def perfect(self) -> float:
        """With all that can hide hidden: forward + max(backward, communication) + optimizer."""
        return self.total(1.0)


def buckets(message: float, *, size: float) -> float:
    """Returns into how many calls gradients fall."""
    return message / size
