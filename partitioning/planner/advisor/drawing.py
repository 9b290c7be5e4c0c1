"""Draws where a plan's mesh lies on a cluster's hosts and links, as text. Imports no jax."""

from collections.abc import Iterator, Mapping

from partitioning.mesh_config import AXES
from partitioning.planner.answers import shown
from partitioning.planner.hardware import ClusterConfig, LinkConfig

_HOSTS = 4


def draw(sizes: Mapping[str, int], *, cluster: ClusterConfig) -> str:
    """Returns a table of axes and links, and the first hosts with what each device is.

    Args:
      sizes: mesh axis -> devices; their product is the cluster's.
      cluster: the devices, numbered host after host.
    """
    used = [axis for axis in AXES if sizes[axis] > 1]
    lines = [
        f"{cluster.devices} x {cluster.chip.name}: {cluster.devices // cluster.per_host} hosts of "
        f"{cluster.per_host}",
        "",
        *_axes(used, sizes, cluster),
        "",
        *_hosts(used, sizes, cluster),
    ]
    return "\n".join(lines)


def link_of(axis: str, sizes: Mapping[str, int], *, cluster: ClusterConfig) -> LinkConfig:
    """Returns the innermost level that all groups of an axis lie within."""
    reach = stride_of(axis, sizes) * sizes[axis]
    for link in cluster.links:
        if not link.devices or (link.devices >= reach and link.devices % reach == 0):
            return link
    return cluster.links[-1]


def stride_of(axis: str, sizes: Mapping[str, int]) -> int:
    """Returns how far apart in the numbering neighbours along an axis are."""
    stride = 1
    for inner in AXES[AXES.index(axis) + 1 :]:
        stride *= sizes[inner]
    return stride


def _axes(used: list[str], sizes: Mapping[str, int], cluster: ClusterConfig) -> Iterator[str]:
    for axis in reversed(used):
        stride, size = stride_of(axis, sizes), sizes[axis]
        link = link_of(axis, sizes, cluster=cluster)
        group = ", ".join(str(i * stride) for i in range(min(size, 4)))
        more = ", ..." if size > 4 else ""
        yield (
            f"{axis:<8} {size:>5}  over {link.name:<12} {shown(link.bandwidth, 'B/s'):>10} each  "
            f"the first group: {group}{more}"
        )


def _hosts(used: list[str], sizes: Mapping[str, int], cluster: ClusterConfig) -> Iterator[str]:
    """Each device by its place along the axes, one letter and number each."""
    hosts = max(1, cluster.devices // cluster.per_host)
    yield "each device: " + " ".join(f"{axis[0]} = {axis}" for axis in used)
    for host in range(min(hosts, _HOSTS)):
        first = host * cluster.per_host
        each = range(first, min(first + cluster.per_host, cluster.devices))
        yield f"host {host:<5} " + " | ".join(_place(n, used, sizes) for n in each)
    if hosts > _HOSTS:
        last = hosts - 1
        each = range(last * cluster.per_host, cluster.devices)
        yield "..."
        yield f"host {last:<5} " + " | ".join(_place(n, used, sizes) for n in each)


def _place(number: int, used: list[str], sizes: Mapping[str, int]) -> str:
    places = (f"{axis[0]}{number // stride_of(axis, sizes) % sizes[axis]}" for axis in used)
    return " ".join(places) or "0"
