"""How long a transfer takes: which links its mesh axes cross, and how fast these are.

Devices are numbered along the mesh with ``tensor`` fastest and ``data`` slowest (partitioning/
mesh.py), so that inner axes stay inside a host or slice. A group that spans several levels works
level by level: what the members in one host share is sent over the outer link once, a share by
each (Thakur et al., 2005; what NCCL's rings over several network cards come to). Levels work at
the same time. Standard library only.
"""

import dataclasses
from collections.abc import Mapping

from partitioning.mesh_config import AXES
from partitioning.planner.hardware import ClusterConfig, LinkConfig
from partitioning.transfers import Transfer

_POINT_TO_POINT = ("collective-permute", "collective-broadcast", "send")
_EXCHANGE = ("all-to-all", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A transfer on one level of the network.

    Attributes:
      link: its name.
      sent: bytes that one device sends there.
      seconds: that this takes.
    """

    link: str
    sent: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """A transfer on the links that it crosses.

    Attributes:
      levels: innermost first.
      seconds: that it takes, alone on its links.
    """

    levels: tuple[Level, ...]
    seconds: float


def passage(
    transfer: Transfer, *, sizes: Mapping[str, int], cluster: ClusterConfig, times: float = 1.0
) -> Passage:
    """Returns how long a transfer of a step takes.

    Args:
      transfer: bytes of a step.
      sizes: mesh axis -> devices.
      cluster: its links.
      times: separate operations that the bytes are moved in; each takes the links' latency once
        for every hop of a ring.
    """
    inside, levels, latency = 1, [], 0.0
    for link in cluster.links:
        members = members_within(transfer.axes, sizes=sizes, devices=link.devices)
        if members == inside:
            continue
        sent = _sent(transfer, inside=inside, members=members)
        rate = link.bandwidth * link.efficiency * lanes(link, members // inside)
        levels.append(Level(link=link.name, sent=sent, seconds=sent / rate))
        hops = 1 if transfer.kind in _POINT_TO_POINT else _hops(link, members // inside)
        latency += times * hops * link.latency
        inside = members
    slowest = max((level.seconds for level in levels), default=0.0)
    return Passage(levels=tuple(levels), seconds=slowest + latency)


def members_within(axes: tuple[str, ...], *, sizes: Mapping[str, int], devices: int) -> int:
    """Returns how many members of a group lie in one block of ``devices``; 0 means no bound."""
    members, stride = 1, 1
    for axis in reversed(AXES):
        size = sizes[axis]
        if axis in axes:
            members *= size if not devices else max(1, min(size, devices // stride))
        stride *= size
    return members


def lanes(link: LinkConfig, members: int) -> int:
    """Returns the dimensions of a torus that a group uses at once: up to 4, 16 or more members."""
    if link.dimensions == 1 or members <= 4:
        return 1
    return min(link.dimensions, 2 if members <= 32 else 3)


def _hops(link: LinkConfig, members: int) -> float:
    """Returns the hops around a ring of groups, or of a torus once along each of its dimensions."""
    dimensions = lanes(link, members)
    return dimensions * (members ** (1 / dimensions) - 1)


def _sent(transfer: Transfer, *, inside: int, members: int) -> float:
    """Bytes that one device sends over a level that joins ``members`` in groups of ``inside``."""
    if transfer.kind in _POINT_TO_POINT:
        return transfer.payload
    if transfer.kind in _EXCHANGE:
        return transfer.payload * (members - inside) / transfer.group
    groups = members // inside
    once = transfer.payload / inside * (groups - 1) / groups
    return 2 * once if transfer.kind == "all-reduce" else once
