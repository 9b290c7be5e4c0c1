"""What an engine is: one file that turns a job into an engine's own objects, and one line here.

An engine allocates, queues, shares and places; Lockstep renders, supervises and recovers. Engines
whose allocation runs the supervisor also give it a `Gang`: this machine, a batch job's nodes, or
the pods of a set, where the engine's own controller is only needed to get other hosts.
"""

import dataclasses
import enum
import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from launch.orders import Host, Orders
from launch.spec import Job, JobSpec

ENGINES: dict[str, str] = {
    "local": "launch.engines.local:Local",
    "slurm": "launch.engines.slurm:Slurm",
    "kubernetes": "launch.engines.kubernetes:Kubernetes",
}
"""Engine name -> where its class is; imported only when it is used."""


class EngineError(RuntimeError):
    """The engine cannot be reached or refused; not the fault of the job file (exit code 69)."""


class EngineRefused(EngineError):
    """The engine was reached and said no: something in the job file must change (exit code 64)."""


class LeftAllocation(Exception):
    """The allocation was given back; a new supervisor goes on in the next one."""


class EngineState(enum.StrEnum):
    """What an engine says of a job; UNKNOWN is not a failure: it may not have been reached."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """A job as its engine sees it.

    Attributes:
      state: what it is.
      engine_id: the engine's own name of the job, as its commands take it; empty before.
      detail: one line for people: why it waits, where it runs.
      exit_code: code of an ended job, where the engine tells.
    """

    state: EngineState
    engine_id: str = ""
    detail: str = ""
    exit_code: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """Exactly what is submitted.

    Attributes:
      files: file name -> text, written to <job_dir>/rendered/.
      command: program and arguments that submit them, for people; files are named relative to
        rendered/.
    """

    files: Mapping[str, str]
    command: tuple[str, ...]


class Engine(Protocol):
    """The side that the commands use. Constructed without arguments; no work in __init__."""

    def refusals(self, spec: JobSpec) -> list[str]:
        """Returns what of a job file this engine cannot do, each with what to do instead."""

    def render(self, job: Job) -> Rendered:
        """Returns exactly what `submit` would hand over; pure, no access to the engine."""

    def submit(self, job: Job) -> Standing:
        """Renders, writes and submits; a job whose run_id is already there is not submitted twice.

        Raises:
          EngineError: the engine cannot be reached or refused.
        """

    def standing(self, job: Job) -> Standing:
        """Returns what the engine says now; never raises because a command failed once."""

    def cancel(self, job: Job) -> None:
        """Ends the job for good, with its grace.

        Raises:
          EngineError: the engine cannot be reached.
        """

    def release(self, job: Job) -> Standing:
        """Has a held or ended job run again, with the next attempt (``resume``).

        Raises:
          EngineError: the engine cannot be reached or refused.
        """

    def logs(self, job: Job) -> str | None:
        """Returns the processes' output where only the engine has it; None: it is in job_dir."""


class Pipe(Protocol):
    """One end of a pipe or a connection."""

    def fileno(self) -> int:
        """Returns its descriptor."""

    def close(self) -> None:
        """Closes it."""


class AgentProcess(Protocol):
    """What starts an agent, or stands for one: as much of subprocess.Popen as is used of it."""

    @property
    def stdin(self) -> Pipe | None:
        """What the agent reads."""

    @property
    def stdout(self) -> Pipe | None:
        """What the agent writes."""

    def wait(self, timeout: float | None = None) -> int:
        """Returns when it has ended.

        Raises:
          subprocess.TimeoutExpired: it has not in time.
        """

    def kill(self) -> None:
        """Ends it."""


class Gang(Protocol):
    """The side that the supervisor uses, inside an allocation.

    Attributes:
      elsewhere: whether the engine has hosts beside those of the allocation.
    """

    elsewhere: bool

    def waiting(self) -> str | None:
        """Returns what the allocation waits for, for people; None once it is there."""

    def hosts(self) -> Sequence[Host]:
        """Returns the hosts of the allocation, spares included, in topology order."""

    def notice(self) -> str | None:
        """Returns why the engine wants the allocation back; None while it does not."""

    def start(self, orders: Orders) -> Sequence[AgentProcess]:
        """Starts an agent on each host of ``orders``.

        Returns:
          Processes whose stdin takes and whose stdout gives lines (launch/orders.py), one per host
          or one for all. Orders are not sent yet.
        """

    def reachable(self, host: Host) -> bool:
        """Returns whether a host answers whose agent does not; a lost one is replaced."""

    def end(self, *, timeout_s: float) -> None:
        """Ends what an earlier attempt, also one of a dead supervisor, left on reachable hosts."""

    def requeue(self, *, exclude: Sequence[str], reason: str) -> None:
        """Gives the allocation back and queues again.

        Args:
          exclude: hosts that the next allocation avoids.
          reason: for people.

        Raises:
          LeftAllocation: the next allocation runs a supervisor of its own.
        """

    def address(self, host: Host, *, attempt: int) -> str:
        """Returns host:port at which process 0 on ``host`` listens; differs between attempts."""


@runtime_checkable
class SupervisedEngine(Engine, Protocol):
    """An engine whose allocation runs Lockstep's supervisor."""

    def gang(self, job: Job) -> Gang:
        """Returns the allocation that this process runs in."""


def engine_named(name: str) -> Engine:
    """Returns an engine.

    Raises:
      ValueError: there is none of that name.
    """
    if name not in ENGINES:
        raise ValueError(f"There is no engine {name!r}; there are {', '.join(sorted(ENGINES))}.")
    module, _, attribute = ENGINES[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine
