"""Which hosts take part in an attempt, and which process goes where. Pure, standard library only.

Ranks stay where they are as long as their host does: a process finds its compiled programs and its
copies of checkpoints again, and tensor neighbours stay inside one host.
"""

import dataclasses
from collections.abc import Sequence

from launch.orders import Host, Place
from launch.spec import JobSpec


@dataclasses.dataclass(frozen=True)
class Cast:
    """Hosts of an attempt, in order of ranks, and hosts that wait beside it."""

    active: tuple[Host, ...]
    spares: tuple[Host, ...]


def cast(
    usable: Sequence[Host], *, spec: JobSpec, before: Sequence[str] = (), at_most: int | None = None
) -> Cast | None:
    """Returns who takes part.

    Args:
      usable: hosts of the allocation that are not avoided, in topology order.
      spec: the job.
      before: hosts of the attempt before, in order; each keeps its place if it is still usable.
      at_most: hosts, where the run goes on smaller; None: as many as the job can use.

    Returns:
      None where there are too few.
    """
    resources = spec.resources
    most = min(resources.max_hosts or resources.hosts, at_most or len(usable))
    least = resources.min_hosts or resources.hosts
    slices = spec.topology.slices
    count = min(len(usable), most) // slices * slices
    if count < max(least, 1):
        return None
    names = {host.name: host for host in usable}
    kept = [names.get(name) for name in before[:count]]
    kept += [None] * (count - len(kept))
    taken = {host.name for host in kept if host is not None}
    free = iter([host for host in usable if host.name not in taken])
    active = [host or next(free) for host in kept]
    per_slice = count // slices
    numbered = tuple(
        dataclasses.replace(host, slice_id=index // per_slice) for index, host in enumerate(active)
    )
    return Cast(numbered, tuple(free))


def places(active: Sequence[Host], *, spec: JobSpec) -> tuple[Place, ...]:
    """Returns the place of every rank, host by host."""
    each = spec.workload.processes_per_host
    return tuple(
        Place(
            rank=index * each + local,
            host=host.name,
            local_rank=local,
            devices=_devices(host, spec=spec, local=local),
        )
        for index, host in enumerate(active)
        for local in range(each)
    )


def _devices(host: Host, *, spec: JobSpec, local: int) -> tuple[int, ...]:
    """Devices of one process; none named where it takes all of its host.

    Devices of a CPU are made up by the process, which must be told how many.
    """
    each = spec.workload.processes_per_host
    explicit = host.devices or each > 1 or spec.resources.accelerator == "cpu"
    if not explicit:
        return ()
    devices = host.devices or tuple(range(spec.resources.per_host))
    size = len(devices) // each
    return devices[local * size : (local + 1) * size]
