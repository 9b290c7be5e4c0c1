"""The JSON files that launcher and trainer share, each with a version.

Part of the contract: imports the standard library only; import it through launch.contract.
"""

import dataclasses
import enum
import json
import math
import os
import pathlib
import signal
import types
import typing
from collections.abc import Sequence
from typing import Any, Self

from launch.exit_codes import RetryClass, ending

STACKS_SIGNAL = signal.SIGRTMIN + 1
"""Asks a process for its stacks. Free elsewhere: NCCL and Slurm use SIGUSR1 and SIGUSR2."""


_LARGEST = 2**63 - 1
"""No counter and no clock goes further, and no float is asked to."""


class ContractError(ValueError):
    """The environment or a file is not what this version of the contract says."""


class Phase(enum.StrEnum):
    """What a process is busy with; each has its own deadline."""

    START = "start"
    JOIN = "join"
    RESTORE = "restore"
    COMPILE = "compile"
    STEP = "step"
    EVALUATE = "evaluate"
    SAVE = "save"
    EXIT = "exit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """Base of everything that is stored: one JSON object with a ``version``."""

    version: int = 1

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str) -> Self:
        """Reads what `to_json` wrote; fields that a later version added are ignored.

        What is no finite number is read as None: Python and C write NaN where JSON has none.

        Raises:
          ContractError: not JSON, another version, or a field is missing or has the wrong type;
            names ``source`` and the field.
        """
        try:
            data = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
        except (ValueError, RecursionError) as error:  # digits and brackets without end, too
            raise ContractError(f"{source} is not JSON ({error}).") from None
        return cls.from_object(data, source=source)

    @classmethod
    def read_file(cls, path: pathlib.Path) -> Self | None:
        """Reads a file of what `to_json` wrote; None where there is none.

        Raises:
          ContractError: see `from_json`.
        """
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls.from_json(text, source=str(path))

    @classmethod
    def from_object(cls, data: Any, *, source: str) -> Self:
        """Like `from_json`, for what was parsed already."""
        if not isinstance(data, dict):
            raise ContractError(f"{source} holds no JSON object.")
        current = next(f.default for f in dataclasses.fields(cls) if f.name == "version")
        if data.get("version") != current:
            raise ContractError(
                f"{source} has version {data.get('version')!r}; this software reads {current}."
            )
        return _build(cls, data, source)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _build[T](cls: type[T], data: dict[str, Any], source: str) -> T:
    """Makes a dataclass of a JSON object."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is a dataclass
        if field.name in data:
            where = f"{source}: {field.name}"
            values[field.name] = _read(data[field.name], hints[field.name], where)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ContractError(f"{source} lacks {field.name!r}.")
    return cls(**values)


def _read(value: Any, annotation: Any, where: str) -> Any:
    """Checks ``value`` against an annotation; turns lists into tuples and names into enums."""
    annotation = getattr(annotation, "__supertype__", annotation)  # of a NewType
    if annotation is Any:
        return value
    arguments = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(value, next(a for a in arguments if a is not type(None)), where)
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and dataclasses.is_dataclass(origin) and type(value) is dict:
        return _build(origin, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(item, arguments[0], where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(item, arguments[1], where) for key, item in value.items()}
    if issubclass(origin, enum.Enum) and value in [member.value for member in origin]:
        return origin(value)
    if origin is float and type(value) is int:
        return float(value)
    if type(value) is origin and not (origin is int and abs(value) > _LARGEST):
        return value
    raise ContractError(f"{where} is {value!r}, expected {getattr(origin, '__name__', origin)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(Schema):
    """``run.json``: which run a directory belongs to.

    Attributes:
      run_id: name of the run.
      created: seconds since 1970.
      identity: digest of the part of the configuration that decides the result.
      software: package -> version, at creation.
    """

    run_id: str
    created: float
    identity: str
    software: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankExit(Schema):
    """``attempts/<n>/ranks/<r>.json``: how one process ended.

    Attributes:
      attempt: attempt it belonged to.
      rank: process id.
      host: host name.
      pid: operating-system process id.
      code: exit code.
      cause: exception class, or name of the signal.
      message: first line for people.
      time: seconds since 1970 at which the cause was seen.
      cascade: it ended because another process did.
      step: last completed step; None before the first.
      saved_step: newest committed step; None where there is none.
      traceback: text of the original traceback.
    """

    attempt: int
    rank: int
    host: str
    pid: int
    code: int
    cause: str
    message: str
    time: float
    cascade: bool = False
    step: int | None = None
    saved_step: int | None = None
    traceback: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reason(Schema):
    """``attempts/<n>/reason.json``: why an attempt ended, by its first cause.

    Attributes:
      attempt: the attempt.
      code: exit code of the attempt.
      retry: budget that it counts against.
      rank: process that failed first; None where it left no word.
      host: host of that process.
      cause: exception class, or name of the signal.
      message: first line for people.
      action: what happens next.
      time: seconds since 1970 of the first cause.
      step: last completed step.
      saved_step: step from which the next attempt goes on.
    """

    attempt: int
    code: int
    retry: RetryClass
    rank: int | None
    host: str
    cause: str
    message: str
    action: str
    time: float
    step: int | None = None
    saved_step: int | None = None


def reason_of(ranks: Sequence[RankExit]) -> Reason:
    """Returns why an attempt ended: the earliest failure that was not a consequence of another.

    A rank that finished counts only where all did. Where every process that left word is a
    survivor, the one that failed left none: the reason then has no rank, and the code is the
    survivors'.
    """
    first = min(ranks, key=lambda rank: (rank.code == 0, rank.cascade, rank.time, rank.rank))
    what = ending(first.code)
    steps = [rank.step for rank in ranks if rank.step is not None]
    saved = [rank.saved_step for rank in ranks if rank.saved_step is not None]
    return Reason(
        attempt=first.attempt,
        code=first.code,
        retry=what.retry,
        rank=None if first.cascade else first.rank,
        host="" if first.cascade else first.host,
        cause=first.cause,
        message=first.message,
        action=what.action,
        time=first.time,
        step=max(steps, default=None),
        saved_step=max(saved, default=None),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress(Schema):
    """``LAUNCH_STATE_DIR/rank<r>.json``: that a process is alive and what it is busy with.

    Attributes:
      attempt: attempt it belongs to.
      phase: what it is busy with.
      step: last completed step; None before the first.
      monotonic_ns: the host's monotonic clock at the time of writing.
      saved_step: newest committed step; None where there is none.
      loss: last loss; None before the first, or where it is not finite.
    """

    attempt: int
    phase: Phase
    step: int | None
    monotonic_ns: int
    saved_step: int | None = None
    loss: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JournalEntry(Schema):
    """One line of ``journal.jsonl``: something that happened to the run.

    Attributes:
      time: seconds since 1970.
      event: what happened ("attempt_started", "config_changed", ...).
      attempt: during which attempt.
      details: anything else, as JSON.
    """

    time: float
    event: str
    attempt: int
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def progress_path(state_dir: str, *, rank: int) -> pathlib.Path:
    """Where a process writes its `Progress`."""
    return pathlib.Path(state_dir) / f"rank{rank}.json"


def exit_path(state_dir: str, *, rank: int) -> pathlib.Path:
    """Where a process leaves its `RankExit` for the agent of its host."""
    return pathlib.Path(state_dir) / f"rank{rank}.exit.json"


def stacks_path(state_dir: str, *, rank: int) -> pathlib.Path:
    """Where a process writes the stacks of its threads when it gets `STACKS_SIGNAL`."""
    return pathlib.Path(state_dir) / f"rank{rank}.stacks"


def replace_file(path: pathlib.Path, *, text: str) -> None:
    """Writes a file so that a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # what is full must not get fuller
        raise
