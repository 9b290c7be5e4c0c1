"""Chips, the links between them, and clusters of them, as plain data that gin files bind.

``configs/clusters/*.gin`` hold the values, with their sources; a new cluster is a file of about ten
lines that includes a chip's. Standard library only.
"""

import dataclasses
import itertools
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChipConfig:
    """One device, as jax counts them.

    Attributes:
      name: short name, such as "h100".
      device_kind: how jax's ``device_kind`` begins.
      vendor: who makes it; decides what its compiler and kernels are like.
      target: name in partitioning/targets.py that programs are compiled for; empty if there is no
        compiler without the device.
      peak_flops: dense bfloat16 products, FLOP/s.
      peak_flops_8bit: dense products in eight bits, FLOP/s; 0 if it has none.
      memory: bytes of device memory.
      memory_bandwidth: bytes/s.
      reserved: bytes that the runtime, its libraries and fragmentation take.
      matmul_efficiency: share of the peak that large products of a training step reach.
      attention_efficiency: share of the peak that a fused attention kernel reaches.
      bandwidth_efficiency: share of ``memory_bandwidth`` that elementwise work reaches.
      overlap: share of a transfer of weights or gradients that costs nothing beside products.
      inline_overlap: the same of a transfer between two products that depend on each other, which
        only a compiler that takes products apart can hide.
    """

    name: str
    device_kind: str
    vendor: Literal["nvidia", "amd", "google"]
    peak_flops: float
    memory: int
    memory_bandwidth: float
    target: str = ""
    peak_flops_8bit: float = 0.0
    reserved: int = 0
    matmul_efficiency: float = 0.7
    attention_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.8
    overlap: float = 0.8
    inline_overlap: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """One level of the network, joining groups of devices.

    Attributes:
      name: such as "nvlink", "infiniband", "ici", "dcn".
      devices: how many devices a group has whose members reach each other at this level; 0 for all.
      bandwidth: bytes/s that one device sends, one way; of a torus over one of its dimensions, both
        directions of the ring together.
      dimensions: of a torus, dimensions that a large mesh axis may use at once; 1 elsewhere.
      latency: seconds that one hop takes.
      efficiency: share of the bandwidth that large collectives reach.
    """

    name: str
    bandwidth: float
    devices: int = 0
    dimensions: int = 1
    latency: float = 5e-6
    efficiency: float = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Equal devices, the links between them, what they cost and how often they fail.

    Attributes:
      name: what reports call it.
      chip: the device.
      devices: how many there are.
      per_host: devices of one host.
      links: levels from the innermost outwards; the last one joins all.
      price: USD per device and hour.
      failures: interruptions per device and week.
      host_memory: bytes of one host.
      host_bandwidth: bytes/s between one device and its host, one way.
      storage_write: bytes/s that the checkpoint store takes from all hosts together.
    """

    name: str
    chip: ChipConfig
    devices: int
    links: tuple[LinkConfig, ...]
    per_host: int = 8
    price: float = 2.0
    failures: float = 0.01
    host_memory: int = 2 * 10**12
    host_bandwidth: float = 50e9
    storage_write: float = 100e9

    def __post_init__(self) -> None:
        reach = [min(link.devices or self.devices, self.devices) for link in self.links]
        whole = not self.links or reach[-1] < self.devices
        if whole or any(inner > outer for inner, outer in itertools.pairwise(reach)):
            raise ValueError(
                f"ClusterConfig.links of {self.name} join {reach} devices: from the innermost "
                f"outwards, each at least as many as the one before, the last all {self.devices} "
                "(LinkConfig.devices=0)."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Several clusters; a job runs in one of them.

    Attributes:
      pools: the clusters.
    """

    pools: tuple[ClusterConfig, ...]
