"""The configuration files of the laboratory's Slurm, each setting with its reason.

Debian 12's Slurm is 22.05: no topology/block, no cgroup plugin that can be switched off.
"""

import pathlib
from collections.abc import Sequence

from tests.slurm.machines import Machine

CPUS = 16
GPUS = 8
GRACE_S = 10
SLURMD_TIMEOUT_S = 60
KILL_WAIT_S = 2


def slurm_conf(
    folder: pathlib.Path, *, controller: Machine, nodes: Sequence[Machine], accounting: bool
) -> str:
    """Returns slurm.conf."""
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={controller.name}({controller.address})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        f"StateSaveLocation={folder}/state",
        "SwitchType=switch/none",
        "MpiDefault=none",
        # No cgroups in a container; a site with them is stricter (docs/slurm.md).
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        # Shorter than a site's five minutes, longer than this machine may stand still under load:
        # a node that Slurm gives up takes its job along. Tests set the nodes down that they lose.
        f"SlurmdTimeout={SLURMD_TIMEOUT_S}",
        "SlurmctldTimeout=10",
        f"KillWait={KILL_WAIT_S}",
        # A step daemon behind a cut link holds on for a minute; sooner than that, its node drains.
        "UnkillableStepTimeout=120",
        "InactiveLimit=0",
        "MinJobAge=300",
        # 1: a node that was lost comes back by itself; one that a person set down does not.
        "ReturnToService=1",
        # More processors and memory than this machine has.
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,bf_continue",
        # RequeueExit is not set: few sites set it, and nothing of ours may need it.
        "JobRequeue=1",
        "TopologyPlugin=topology/tree",
        "GresTypes=gpu",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PreemptExemptTime=0",
        "SlurmctldParameters=preempt_send_user_signal",
        "MailProg=/bin/true",
        *(_accounting(folder) if accounting else ["AccountingStorageType=accounting_storage/none"]),
    ]
    for node in nodes:
        lines.append(
            f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} RealMemory=4000 "
            f"Gres=gpu:{GPUS} State=UNKNOWN"
        )
    names = ",".join(node.name for node in nodes)
    # Whole nodes: otherwise an urgent job runs beside its victim, and preempts nobody.
    shared = f"Nodes={names} MaxTime=1-0 State=UP OverSubscribe=EXCLUSIVE"
    lines.append(
        f"PartitionName=low {shared} Default=YES PriorityTier=1 PreemptMode=REQUEUE "
        f"GraceTime={GRACE_S}"
    )
    lines.append(f"PartitionName=high {shared} PriorityTier=10 PreemptMode=OFF")
    return "\n".join(lines) + "\n"


def _accounting(folder: pathlib.Path) -> list[str]:
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=localhost",
        "AccountingStoragePort=16819",
        # The socket again: without it clients of slurmdbd look for munge's usual one.
        f"AccountingStoragePass={folder}/munge/socket",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStoreFlags=job_comment",
        "PriorityType=priority/multifactor",
        "PriorityDecayHalfLife=0:05:00",
        "PriorityCalcPeriod=1",
        "PriorityWeightFairshare=100000",
        "PriorityWeightQOS=1000000",
    ]


def slurmdbd_conf(folder: pathlib.Path) -> str:
    """Returns slurmdbd.conf; the database is reached by its socket, without a password."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        "DbdHost=localhost",
        "DbdPort=16819",
        "SlurmUser=root",
        f"PidFile={folder}/run/slurmdbd.pid",
        f"LogFile={folder}/log/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm_lab",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(folder: pathlib.Path, nodes: Sequence[Machine]) -> str:
    """Returns gres.conf; slurmd drops a GPU without a file, so plain files stand in for devices."""
    names = ",".join(node.name for node in nodes)
    return f"NodeName={names} Name=gpu File={folder}/dev/gpu[0-{GPUS - 1}]\n"


def topology_conf(nodes: Sequence[Machine]) -> str:
    """Returns topology.conf: two leaves of equal size below one spine."""
    half = len(nodes) // 2
    leaves = [",".join(node.name for node in part) for part in (nodes[:half], nodes[half:])]
    return (
        f"SwitchName=leaf1 Nodes={leaves[0]}\nSwitchName=leaf2 Nodes={leaves[1]}\n"
        "SwitchName=spine Switches=leaf1,leaf2\n"
    )


def hosts(machines: Sequence[Machine]) -> str:
    """Returns /etc/hosts of every machine."""
    lines = ["127.0.0.1 localhost", *(f"{each.address} {each.name}" for each in machines)]
    return "\n".join(lines) + "\n"
