"""Where a run stands, as its supervisor sees it: ``<job_dir>/status.json``, replaced every beat.

Standard library only.
"""

import dataclasses
import enum
import errno
import pathlib
from typing import Self

from launch.orders import RankState
from launch.records import ContractError, Phase, Reason, Schema, replace_file

FILE = "status.json"


class RunState(enum.StrEnum):
    """What a run is doing, or how it ended."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    DONE = "done"
    STOPPED = "stopped"
    HELD = "held"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in (RunState.DONE, RunState.STOPPED, RunState.HELD, RunState.FAILED)


FINAL = {
    "done": RunState.DONE,
    "failed": RunState.FAILED,
    "held": RunState.HELD,
    "stopped": RunState.STOPPED,
}
"""Event with which a run ends -> how it ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatus(Schema):
    """What ``status`` shows.

    Attributes:
      run_id: name of the run.
      state: what it is doing.
      attempt: newest attempt; 0 before the first.
      time: seconds since 1970 of writing; a supervisor that is alive writes every beat.
      pid: process id of the supervisor.
      supervisor_host: where that is.
      hosts: hosts of the attempt.
      spares: idle hosts of the allocation.
      excluded: hosts that the run avoids.
      phase: what the slowest process is busy with.
      step: last step that all processes have completed.
      saved_step: newest committed step.
      loss: last loss, where it is finite.
      ranks: living processes.
      reasons: why the last attempts ended, newest last.
      next_action: what happens next by itself, for people.
      exit_code: code of a run that has ended.
    """

    run_id: str
    state: RunState
    attempt: int
    time: float
    pid: int
    supervisor_host: str
    hosts: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    phase: Phase | None = None
    step: int | None = None
    saved_step: int | None = None
    loss: float | None = None
    ranks: tuple[RankState, ...] = ()
    reasons: tuple[Reason, ...] = ()
    next_action: str = ""
    exit_code: int | None = None

    @classmethod
    def read(cls, job_dir: str) -> Self | None:
        """Returns the newest; None before the first, and where a crash of the machine tore it."""
        try:
            return cls.read_file(pathlib.Path(job_dir) / FILE)
        except ContractError:
            return None  # the journal knows how the run stands, and this is written again

    def write(self, job_dir: str) -> None:
        """Replaces the file; where there is no room, the next beat tells it."""
        try:
            replace_file(pathlib.Path(job_dir) / FILE, text=self.to_json())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # a full disk ends no run before something has to be saved
