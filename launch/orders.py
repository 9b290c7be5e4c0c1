"""What supervisor and agents say to one another: lines of JSON over the agent's pipes.

An agent needs no port, no address and no password: what starts it (this machine, ``srun``) carries
its stdin and stdout. The first line in is `Orders`; then come `Command`s. Lines out are `Event`s.
A closed stdin, or one that is silent for longer than the lease, means that the supervisor is gone
or cut off, and the agent stops its processes. Standard library only.
"""

import dataclasses
import enum

from launch.records import Phase, RankExit, Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of an allocation.

    Attributes:
      name: as the engine calls it; what is excluded.
      address: name or number at which other hosts reach it.
      failure_domain: rack or block that fails as one; empty where unknown.
      slice_id: which slice of the attempt it is in.
      devices: accelerators of it that the run may use; empty takes all.
    """

    name: str
    address: str
    failure_domain: str = ""
    slice_id: int = 0
    devices: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """One process's place.

    Attributes:
      rank: process id of the run.
      host: name of its host.
      local_rank: number on its host.
      devices: devices of the host that it may use; empty takes all.
    """

    rank: int
    host: str
    local_rank: int = 0
    devices: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orders(Schema):
    """One attempt, the same text for every agent; each takes the places on its own host.

    Attributes:
      run_id: name of the run.
      attempt: number of the attempt.
      job_dir: where job.json is; the agent reads the command and limits there.
      coordinator: host:port of process 0.
      hosts: hosts of the attempt, in order of ranks.
      places: places of all ranks.
    """

    run_id: str
    attempt: int
    job_dir: str
    coordinator: str
    hosts: tuple[Host, ...]
    places: tuple[Place, ...]


class Verb(enum.StrEnum):
    """What a supervisor asks for: a sign of life, stacks, an orderly stop, the end."""

    BEAT = "beat"
    DUMP = "dump"
    STOP = "stop"
    KILL = "kill"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Schema):
    """A line to an agent.

    Attributes:
      verb: what to do.
    """

    verb: Verb


class EventKind(enum.StrEnum):
    """What an agent reports; NOTICE: the engine has told its host to stop."""

    READY = "ready"
    BEAT = "beat"
    EXITED = "exited"
    NOTICE = "notice"
    STUCK = "stuck"
    STACKS = "stacks"
    UNHEALTHY = "unhealthy"
    DONE = "done"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankState:
    """A living process as its agent sees it.

    Attributes:
      rank: process id of the run.
      host: where it runs.
      phase: what it is busy with; None before it said anything.
      step: last completed step.
      saved_step: newest committed step.
      loss: last loss, where it is finite.
      idle_s: seconds since it last got on.
    """

    rank: int
    host: str
    phase: Phase | None
    step: int | None
    saved_step: int | None
    loss: float | None
    idle_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event(Schema):
    """A line from an agent.

    Attributes:
      kind: what happened.
      host: who says so.
      attempt: of which attempt.
      time: seconds since 1970 on that host.
      ranks: its living processes (READY, BEAT, STUCK).
      exits: processes that have ended (EXITED).
      message: for people: the deadline that passed, the device that failed.
      drain: nothing should run on the host any more (UNHEALTHY).
      stacks: rank as text -> text of its stacks (STACKS).
    """

    kind: EventKind
    host: str
    attempt: int
    time: float
    ranks: tuple[RankState, ...] = ()
    exits: tuple[RankExit, ...] = ()
    message: str = ""
    drain: bool = False
    stacks: dict[str, str] = dataclasses.field(default_factory=dict)
