"""Hands a run to Slurm, once: for the first time, again after its end, or as its own successor.

A run that needs other hosts is not requeued under its id: Slurm would keep it for two minutes, the
change of its excluded nodes would need a process that outlives its own job (which process tracking
by cgroups does not allow), and a restart on a node that is still clearing up drains that node. A
successor has none of these. Jobs of a run are found by their name, which is the run's id; the
newest one that lives is the run's, and every older one leaves it alone. Standard library only.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from launch.engines import slurm_commands as commands
from launch.engines import slurm_script
from launch.engines.engine import EngineError
from launch.engines.slurm_commands import Refused
from launch.spec import Job

RENDERED = "rendered"

LIVE = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
"""States of a job that still has its hosts, or will get some."""

_ADVICE = {
    "qos": "set slurm.qos to one that the account has (sacctmgr show assoc where user=$USER)",
    "account": "set owner.account to one of yours (sacctmgr show assoc where user=$USER)",
    "partition": "set slurm.partition to one of sinfo's",
    "node count": "ask for fewer hosts, or for another slurm.partition",
    "requested node configuration": "see sinfo -o '%P %D %G %m %c' for what the nodes have",
    "gres": "see sinfo -o '%P %G' for the accelerators that nodes have",
    "feature": "see sinfo -o '%P %f' for the features that nodes have",
    "time limit": "set runtime.max_walltime_s within the partition's limit",
}


@dataclasses.dataclass(frozen=True)
class QueuedJob:
    """A job of a run as squeue has it, also for a while after its end.

    Attributes:
      id: Slurm's number.
      state: long name, such as PENDING.
      reason: why it waits or ended.
      nodes: its host list.
    """

    id: str
    state: str
    reason: str
    nodes: str

    @property
    def lives(self) -> bool:
        """Whether it runs or will run; one that is ending does not."""
        return self.state in LIVE


def queued(job: Job, *, patience_s: float) -> list[QueuedJob]:
    """Returns the jobs of a run that Slurm remembers, newest last.

    Raises:
      EngineError: Slurm cannot be asked.
    """
    text = commands.run(
        [
            "squeue",
            "--noheader",
            "--states=all",
            "--me",
            f"--name={job.run_id}",
            "--format=%i|%T|%r|%N",
        ],
        patience_s=patience_s,
        always_again=True,
    )
    found = [QueuedJob(*line.split("|", 3)) for line in text.splitlines() if line.count("|") >= 3]
    return sorted((each for each in found if each.id.isdecimal()), key=lambda each: int(each.id))


def newest_living(job: Job, *, patience_s: float, besides: str = "") -> str | None:
    """Returns the id of the newest job of a run that lives; None where there is none.

    Raises:
      EngineError: Slurm cannot be asked.
    """
    jobs = queued(job, patience_s=patience_s)
    living = [each.id for each in jobs if each.lives and each.id != besides]
    return living[-1] if living else None


def submit(job: Job, *, patience_s: float, succeeds: str = "", exclude: Sequence[str] = ()) -> str:
    """Submits a run unless a job of it lives already; returns Slurm's id of the job.

    Args:
      job: the run; its rendered script is there.
      patience_s: how long an unreachable controller is waited for.
      succeeds: job that lives, but is about to leave the run to this one.
      exclude: nodes to avoid.

    Raises:
      EngineError: Slurm cannot be reached or refuses; says what to change.
    """

    def submitted() -> str | None:
        return newest_living(job, patience_s=patience_s, besides=succeeds)

    job_id = submitted()
    if job_id is not None:
        return job_id
    command = [
        "sbatch",
        "--parsable",
        *slurm_script.options(job, again=bool(succeeds), exclude=tuple(exclude)),
        str(pathlib.Path(job.job_dir) / RENDERED / slurm_script.SCRIPT),
    ]
    try:
        said = commands.run(command, patience_s=patience_s, between=submitted)
    except Refused as error:
        raise Refused(f"{error}{_advice(str(error))}") from None
    job_id = said.strip().partition(";")[0]
    if not job_id.isdecimal():
        raise EngineError(f"sbatch answered {job_id!r}, which is no job id.")
    return job_id


def _advice(message: str) -> str:
    lowered = message.lower()
    found = next((advice for word, advice in _ADVICE.items() if word in lowered), None)
    return f"; {found}." if found else ""
