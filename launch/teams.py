"""A cluster's teams: who owns how much of it, in one file of which `launch.admin` makes objects.

Frozen dataclasses like the job file's, read as strictly. Imports the standard library only.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from launch.records import Schema
from launch.spec import Priority, Seconds
from launch.spec_problems import Problem, nearest

PRIORITY_VALUES = {
    Priority.CRITICAL: 1000,
    Priority.HIGH: 750,
    Priority.NORMAL: 500,
    Priority.LOW: 250,
    Priority.PREEMPTIBLE: 0,
}
"""Larger goes first and may stop what is smaller, on every engine."""

FIVE_MINUTES = Seconds(300.0)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KIND = re.compile(r"[a-z0-9][-a-z0-9.]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A kind of accelerator, and the hosts that have it.

    Attributes:
      kind: as job files name it, such as h100.
      per_host: accelerators of each host.
      cpus_per_host: cores that jobs may use.
      memory_gib_per_host: memory that jobs may use.
      hosts: hosts of this kind; 0 checks nothing.
      spot: whether some more hosts of this kind can be taken back at short notice.
      resource: its name on Kubernetes; cpu hosts count cores.
      gres: its name on Slurm; default: gpu:KIND.
      node_labels: labels of its nodes on Kubernetes; default: lockstep/accelerator: KIND.
      others: further resources of each host, such as vpc.amazonaws.com/efa: "32".
    """

    kind: str = ""
    per_host: int = 8
    cpus_per_host: int = 64
    memory_gib_per_host: int = 1024
    hosts: int = 0
    spot: bool = False
    resource: str = "nvidia.com/gpu"
    gres: str = ""
    node_labels: dict[str, str] = dataclasses.field(default_factory=dict)
    others: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quota:
    """What a team owns of a kind, in hosts, as jobs take whole ones.

    Attributes:
      kind: which.
      hosts: always its own, though others may use them meanwhile.
      borrow: hosts of others that it may use while they are idle; none: as many as there are.
      lend: hosts of its own that others may use while they are idle; none: all.
      spot: hosts that can be taken back.
    """

    kind: str = ""
    hosts: int = 0
    borrow: int | None = None
    lend: int | None = None
    spot: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """Who shares.

    Attributes:
      name: as job files name it; namespace, queue and account are called alike.
      weight: share of what is idle, against the other teams' weights.
      quotas: what it owns.
      users: accounts of its people, for Slurm.
    """

    name: str = ""
    weight: int = 1
    quotas: tuple[Quota, ...] = ()
    users: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rack:
    """Hosts behind one switch.

    Attributes:
      name: of the rack.
      block: of the block that it is in; empty where there are none.
      nodes: names of its nodes.
    """

    name: str = ""
    block: str = ""
    nodes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterTopology:
    """How close hosts are.

    Attributes:
      rack_label: node label of racks; kubernetes.rack_label of job files names the same.
      block_label: node label of blocks; empty where there are none.
      racks: who is where; without them nodes have to be labelled by somebody else.
    """

    rack_label: str = "cloud.provider.com/topology-rack"
    block_label: str = "cloud.provider.com/topology-block"
    racks: tuple[Rack, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamsFile(Schema):
    """The teams of a cluster.

    Attributes:
      cluster: its name; Slurm's is the same.
      cohort: name of what all teams share.
      accelerators: what there is.
      teams: who shares it.
      topology: how close hosts are; leave it out where nobody knows.
      grace_s: what a job that has to give way gets for a save; job files ask for no more.
    """

    cluster: str = "cluster"
    cohort: str = "lockstep"
    accelerators: tuple[Accelerator, ...] = ()
    teams: tuple[Team, ...] = ()
    topology: ClusterTopology | None = None
    grace_s: Seconds = FIVE_MINUTES


def check(given: TeamsFile) -> Iterator[Problem]:
    """Yields what is wrong with a teams file that could be read."""
    kinds = {f"accelerators[{i}].kind": each.kind for i, each in enumerate(given.accelerators)}
    teams = {f"teams[{i}].name": each.name for i, each in enumerate(given.teams)}
    yield from _named(kinds, _KIND)
    yield from _named(teams, _NAME)
    yield from _named({"cluster": given.cluster}, _NAME)
    yield from _named({"cohort": given.cohort}, _NAME)
    for path, names in (("accelerators", kinds), ("teams", teams)):
        if not names:
            yield Problem(path=path, message="there is none; name at least one.")
    for index, kind in enumerate(given.accelerators):
        for name in ("per_host", "cpus_per_host", "memory_gib_per_host"):
            yield from _least(f"accelerators[{index}].{name}", getattr(kind, name), 1)
        yield from _least(f"accelerators[{index}].hosts", kind.hosts, 0)
        for name, text in kind.others.items():
            if not text.isdecimal():
                path = f"accelerators[{index}].others.{name}"
                yield Problem(path=path, message=f"given {text!r}; a number for each host.")
    for index, team in enumerate(given.teams):
        yield from _least(f"teams[{index}].weight", team.weight, 1)
        yield from _quotas(given, team, f"teams[{index}].quotas")
    yield from _sums(given)
    if given.topology is not None:
        yield from _racks(given.topology)


def _named(names: Mapping[str, str], rule: re.Pattern[str]) -> Iterator[Problem]:
    """Yields what is wrong with names, each at its key."""
    seen: set[str] = set()
    for path, name in names.items():
        if not rule.fullmatch(name):
            yield Problem(
                path=path,
                message=f"given {name!r}; a name is lower-case letters, digits and -.",
            )
        if name in seen:
            yield Problem(path=path, message=f"{name!r} stands here again; keep one.")
        seen.add(name)


def _least(path: str, value: int | None, bound: int) -> Iterator[Problem]:
    if value is not None and value < bound:
        yield Problem(path=path, message=f"given {value}; it must be at least {bound}.")


def _quotas(given: TeamsFile, team: Team, path: str) -> Iterator[Problem]:
    kinds = {each.kind: each for each in given.accelerators}
    for index, quota in enumerate(team.quotas):
        here = f"{path}[{index}]"
        if quota.kind not in kinds:
            yield Problem(
                path=f"{here}.kind",
                message=f"given {quota.kind!r}; there are {', '.join(kinds)}.",
                nearest=nearest(quota.kind, among=kinds),
            )
            continue
        for name in ("hosts", "borrow", "lend", "spot"):
            yield from _least(f"{here}.{name}", getattr(quota, name), 0)
        if quota.lend is not None and quota.lend > quota.hosts:
            yield Problem(
                path=f"{here}.lend", message=f"given {quota.lend}, but it owns {quota.hosts}."
            )
        if quota.spot and not kinds[quota.kind].spot:
            yield Problem(
                path=f"{here}.spot", message=f"given {quota.spot}, but {quota.kind} has no spot."
            )
        if quota.kind in [other.kind for other in team.quotas[:index]]:
            yield Problem(path=here, message=f"{quota.kind} stands here again; keep one.")


def _sums(given: TeamsFile) -> Iterator[Problem]:
    """What teams own together must be there, or somebody's own is somebody else's."""
    for index, kind in enumerate(given.accelerators):
        owned = sum(q.hosts for team in given.teams for q in team.quotas if q.kind == kind.kind)
        if kind.hosts and owned > kind.hosts:
            yield Problem(
                path=f"accelerators[{index}].hosts",
                message=f"given {kind.hosts}, but the teams own {owned} hosts of {kind.kind}.",
            )


def _racks(topology: ClusterTopology) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, rack in enumerate(topology.racks):
        here = f"topology.racks[{index}]"
        if not _NAME.fullmatch(rack.name) or not rack.nodes:
            yield Problem(path=here, message="a rack has a name and nodes.")
        if twice := sorted(seen & set(rack.nodes)):
            yield Problem(path=f"{here}.nodes", message=f"{', '.join(twice)} are in two racks.")
        seen |= set(rack.nodes)
        if bool(rack.block) != bool(topology.racks[0].block):
            yield Problem(path=f"{here}.block", message="either all racks are in blocks, or none.")
