"""What slurmdbd remembers of a run, on clusters that have it. Standard library only."""

import dataclasses

from launch.engines import slurm_commands as commands
from launch.engines.engine import EngineError
from launch.spec import Job

_SINCE = "now-90days"
_PATIENCE_S = 3.0
_FIELDS = "JobIDRaw,State,ExitCode,ElapsedRaw,NodeList"


@dataclasses.dataclass(frozen=True)
class AccountedJob:
    """One allocation of a run, long after squeue has forgotten it.

    Attributes:
      id: Slurm's number.
      state: how it ended, such as COMPLETED, NODE_FAIL, PREEMPTED, TIMEOUT.
      exit_code: code of the batch script.
      elapsed_s: seconds that it had its nodes.
      nodes: host list.
    """

    id: str
    state: str
    exit_code: int
    elapsed_s: int
    nodes: str


def jobs(job: Job) -> list[AccountedJob] | None:
    """Returns the allocations of a run, oldest first; None where there is no accounting."""
    command = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",
        f"--name={job.run_id}",
        f"--starttime={_SINCE}",
        f"--format={_FIELDS}",
    ]
    try:
        text = commands.run(command, patience_s=_PATIENCE_S)
    except EngineError:
        return None
    return [_read(line) for line in text.splitlines() if line.count("|") == 4]


def last_end(job: Job) -> str | None:
    """Returns how the newest allocation ended; None where nothing is known."""
    found = jobs(job)
    return found[-1].state if found else None


def _read(line: str) -> AccountedJob:
    job_id, state, code, elapsed, nodes = line.split("|")
    # "CANCELLED by 1000" names who did; the exit code is code:signal.
    return AccountedJob(
        job_id, state.split()[0], int(code.partition(":")[0]), int(elapsed or 0), nodes
    )
