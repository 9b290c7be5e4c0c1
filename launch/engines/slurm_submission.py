"""Hands a run to Slurm, once: for the first time, again after its end, or as its own successor.

A run that needs other hosts is not requeued under its id: Slurm would keep it for two minutes, the
change of its excluded nodes would need a process that outlives its own job (which process tracking
by cgroups does not allow), and a restart on a node that is still clearing up drains that node. A
successor that starts when this job has ended has none of these. It is found by its name, the run's
id, whatever id Slurm gave it. Standard library only.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Self

from launch.engines import slurm_commands as commands
from launch.engines import slurm_script
from launch.engines.engine import EngineError
from launch.engines.slurm_commands import Refused
from launch.records import Schema, replace_file
from launch.spec import Job

FILE = "slurm.json"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submissions(Schema):
    """``<job_dir>/slurm.json``: which job of Slurm the run is.

    Attributes:
      job_id: the newest.
      superseded: those before it, which must not run again, though Slurm may try.
    """

    job_id: str
    superseded: tuple[str, ...] = ()

    @classmethod
    def read(cls, job_dir: str) -> Self | None:
        """Returns what was written last; None before the first."""
        return cls.read_file(pathlib.Path(job_dir) / FILE)


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
            f"--name={job.run_id}",
            "--format=%i|%T|%r|%N",
        ],
        patience_s=patience_s,
        always_again=True,
    )
    found = [QueuedJob(*line.split("|", 3)) for line in text.splitlines() if line.count("|") >= 3]
    return sorted(found, key=lambda each: int(each.id))


def submit(
    job: Job, *, patience_s: float, after: str | None = None, exclude: Sequence[str] = ()
) -> str:
    """Submits a run unless a job of it lives already; returns Slurm's id of the job.

    Args:
      job: the run; its rendered script is there.
      patience_s: how long an unreachable controller is waited for.
      after: job that must have ended before, and that this one succeeds.
      exclude: nodes to avoid.

    Raises:
      EngineError: Slurm cannot be reached or refuses; says what to change.
    """

    def submitted() -> str | None:
        jobs = queued(job, patience_s=patience_s)
        living = [each.id for each in jobs if each.lives and each.id != after]
        return living[-1] if living else None

    job_id = submitted()
    if job_id is None:
        command = [
            "sbatch",
            "--parsable",
            *slurm_script.options(job, again=after is not None, exclude=tuple(exclude)),
            *([f"--dependency=afterany:{after}"] if after else []),
            str(pathlib.Path(job.job_dir) / RENDERED / slurm_script.SCRIPT),
        ]
        try:
            said = commands.run(command, patience_s=patience_s, between=submitted)
        except Refused as error:
            raise Refused(f"{error}{_advice(str(error))}") from None
        job_id = said.strip().partition(";")[0]
    if not job_id.isdecimal():
        raise EngineError(f"sbatch answered {job_id!r}, which is no job id.")
    _record(job, job_id, after=after)
    return job_id


def _record(job: Job, job_id: str, *, after: str | None) -> None:
    before = Submissions.read(job.job_dir)
    superseded = before.superseded if before else ()
    if after is not None and after not in superseded:
        superseded = (*superseded, after)
    # An id that Slurm uses again is not the job that had it.
    superseded = tuple(each for each in superseded if each != job_id)
    record = Submissions(job_id=job_id, superseded=superseded)
    replace_file(pathlib.Path(job.job_dir) / FILE, text=record.to_json())


def _advice(message: str) -> str:
    lowered = message.lower()
    found = next((advice for word, advice in _ADVICE.items() if word in lowered), None)
    return f"; {found}." if found else ""
