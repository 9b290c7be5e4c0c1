"""Teams as Slurm's accounts, qualities of service and configuration."""

import math
import shlex
from collections.abc import Iterator

from launch.engines.engine import Rendered
from launch.spec import Priority
from launch.teams import PRIORITY_VALUES, Accelerator, ClusterTopology, Team, TeamsFile

_LOWEST_FIRST = tuple(sorted(Priority, key=lambda priority: PRIORITY_VALUES[priority]))


def render(given: TeamsFile) -> Rendered:
    """Returns a script of sacctmgr's commands, a piece of slurm.conf, and topology.conf."""
    files = {"accounts.sh": _accounts(given), "slurm.conf.part": _configuration(given)}
    if given.topology is not None and given.topology.racks:
        files["topology.conf"] = _topology(given.topology)
    return Rendered(files=files, command=("sh", "accounts.sh"))


def _accounts(given: TeamsFile) -> str:
    lines = ["#!/bin/sh", "# Can be run again: what is there is changed to what is said here."]
    lines += ["set -u", 'add() { sacctmgr --immediate add "$@" || true; }']
    lines += ['change() { sacctmgr --immediate modify "$@"; }', "set -e"]
    for words in (*_qualities(given), *_shares(given)):
        lines.append(" ".join(shlex.quote(word) for word in words))
    return "\n".join(lines) + "\n"


def _qualities(given: TeamsFile) -> Iterator[tuple[str, ...]]:
    """Yields the five qualities of service, lowest first: each may stop all that are before it."""
    grace = math.ceil(given.grace_s)
    for index, priority in enumerate(_LOWEST_FIRST):
        below = ",".join(each.value for each in _LOWEST_FIRST[:index])
        settings = (
            f"priority={PRIORITY_VALUES[priority]}",
            f"gracetime={grace}",
            "preemptmode=requeue",
            *((f"preempt={below}",) if below else ()),
        )
        yield ("add", "qos", priority.value)
        yield ("change", "qos", priority.value, "set", *settings)


def _shares(given: TeamsFile) -> Iterator[tuple[str, ...]]:
    everything = ",".join(priority.value for priority in Priority)
    for team in given.teams:
        yield ("add", "account", team.name, f"cluster={given.cluster}")
        settings = [f"fairshare={team.weight}", f"qos={everything}", "defaultqos=normal"]
        if limits := _limits(given, team):
            settings.append(f"grptres={limits}")
        where = ("where", f"name={team.name}", f"cluster={given.cluster}")
        yield ("change", "account", *where, "set", *settings)
        for user in team.users:
            yield ("add", "user", user, f"account={team.name}", f"cluster={given.cluster}")


def _limits(given: TeamsFile, team: Team) -> str:
    """Returns the most that a team may use at a time: its own and what it may borrow.

    Slurm has no quota that comes back: what others use of it returns by priority and preemption.
    A kind that a team may borrow without limit has none here.
    """
    quotas = {quota.kind: quota for quota in team.quotas}
    limits = []
    for kind in given.accelerators:
        quota = quotas.get(kind.kind)
        if quota is not None and quota.borrow is None:
            continue
        most = quota.hosts + (quota.borrow or 0) + quota.spot if quota is not None else 0
        limits.append(f"{_tres(kind)}={most * _count(kind)}")
    return ",".join(limits)


def _tres(kind: Accelerator) -> str:
    return "cpu" if kind.kind == "cpu" else f"gres/{kind.gres or f'gpu:{kind.kind}'}"


def _count(kind: Accelerator) -> int:
    return kind.cpus_per_host if kind.kind == "cpu" else kind.per_host


def _configuration(given: TeamsFile) -> str:
    counted = [_tres(kind) for kind in given.accelerators if kind.kind != "cpu"]
    plain = sorted({name.rpartition(":")[0] for name in counted if ":" in name})
    lines = [
        "# To be merged into slurm.conf by hand; none of it is Lockstep's own.",
        f"ClusterName={given.cluster}",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageEnforce=associations,limits,qos",
        *([f"AccountingStorageTRES={','.join([*plain, *counted])}"] if counted else []),
        "PriorityType=priority/multifactor",
        "PriorityWeightQOS=100000",
        "PriorityWeightFairshare=50000",
        "PriorityWeightAge=1000",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "# Jobs hear of preemption before it kills them. Up to 22.05:",
        "SlurmctldParameters=preempt_send_user_signal",
        "# From 23.02 on instead: PreemptParameters=send_user_signal",
        "# Whole hosts: partitions with OverSubscribe=EXCLUSIVE, or a gang runs beside another.",
    ]
    if any(kind.spot for kind in given.accelerators):
        lines.append("# Hosts that can be taken back: NodeName=... Features=spot")
    if given.topology is not None:
        lines += ["TopologyPlugin=topology/tree", "# with topology.conf beside it"]
    return "\n".join(lines) + "\n"


def _topology(topology: ClusterTopology) -> str:
    lines = [f"SwitchName={rack.name} Nodes={','.join(rack.nodes)}" for rack in topology.racks]
    blocks: dict[str, list[str]] = {}
    for rack in topology.racks:
        blocks.setdefault(rack.block, []).append(rack.name)
    if set(blocks) != {""}:
        lines += [f"SwitchName={name} Switches={','.join(racks)}" for name, racks in blocks.items()]
        top = list(blocks)
    else:
        top = [rack.name for rack in topology.racks]
    if len(top) > 1:
        lines.append(f"SwitchName=all Switches={','.join(top)}")
    return "\n".join(lines) + "\n"
