"""What the processes of a run printed, merged: ``logs``. The process that failed first comes first.

Reads ``attempts/<n>/logs/rank<r>.log`` in the folder of the job; where only the engine has the
output, the engine is asked.
"""

import collections
import dataclasses
import pathlib
import re
import time
from collections.abc import Callable, Iterator

from launch.agent import attempt_folder
from launch.engines.engine import Engine
from launch.records import ContractError, Reason
from launch.spec import Job

POLL_S = 0.5
_RANK = re.compile(r"rank(\d+)\.log")


class NoLogsError(ValueError):
    """There is nothing to show; says where to look."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankLog:
    """What one process printed.

    Attributes:
      rank: its rank.
      path: the file.
    """

    rank: int
    path: pathlib.Path


def attempts(job: Job) -> list[int]:
    """Returns the attempts that have logs, oldest first."""
    folder = pathlib.Path(job.job_dir) / "attempts"
    return sorted(int(p.parent.name) for p in folder.glob("*/logs") if p.parent.name.isdecimal())


def rank_logs(job: Job, *, attempt: int, rank: int | None = None) -> list[RankLog]:
    """Returns the logs of an attempt, the process that failed first in front, then by rank.

    Args:
      job: the run.
      attempt: the attempt.
      rank: only this process.
    """
    folder = attempt_folder(job, attempt)
    found = [
        RankLog(rank=int(match[1]), path=path)
        for path in (folder / "logs").glob("rank*.log")
        if (match := _RANK.fullmatch(path.name))
    ]
    first = _culprit(folder)
    kept = [log for log in found if rank is None or log.rank == rank]
    return sorted(kept, key=lambda log: (log.rank != first, log.rank))


def show(
    job: Job, *, engine: Engine, attempt: int | None, rank: int | None, lines: int | None
) -> Iterator[str]:
    """Yields the lines of an attempt, each with its rank in front.

    Args:
      job: the run.
      engine: where it is.
      attempt: the attempt; None takes the newest.
      rank: only this process.
      lines: only so many of the last lines of each process.

    Raises:
      NoLogsError: there are none.
      EngineError: the engine has them, and cannot be reached.
    """
    number = _newest(job, attempt)
    if number is None:
        yield from _of_engine(job, engine=engine, lines=lines)
        return
    logs = rank_logs(job, attempt=number, rank=rank)
    if not logs:
        there = ", ".join(str(log.rank) for log in rank_logs(job, attempt=number)) or "none"
        raise NoLogsError(f"Attempt {number} has no log of rank {rank}; it has: {there}.")
    for log in logs:
        for line in _lines(log.path, lines):
            yield f"[{log.rank}] {line}"


def follow(
    job: Job,
    *,
    engine: Engine,
    rank: int | None,
    ended: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Passes on lines as they are written, also those of later attempts, until the run has ended.

    Args:
      job: the run.
      engine: where it is; asked as long as the folder of the job has no logs.
      rank: only this process.
      ended: whether the run has ended.
      say: gets each line.
    """
    places: dict[pathlib.Path, int] = {}
    shown = told = 0
    while True:
        last = ended()  # before reading, so that nothing is missed
        if not attempts(job) and (text := engine.logs(job)) is not None:
            lines = text.splitlines()[: None if last or text.endswith("\n") else -1]
            for line in lines[told:]:
                say(line)
            told = max(told, len(lines))
        for number in attempts(job):
            if number > shown:
                say(f"--- attempt {number}")
                shown = number
            for log in rank_logs(job, attempt=number, rank=rank):
                for line in _new_lines(log.path, places, whole=last):
                    say(f"[{log.rank}] {line}")
        if last:
            return
        time.sleep(POLL_S)


def _new_lines(
    path: pathlib.Path, places: dict[pathlib.Path, int], *, whole: bool
) -> Iterator[str]:
    """Yields the lines of a file since last time; unless ``whole``, not one without an end."""
    with path.open("rb") as file:
        file.seek(places.get(path, 0))
        for line in file:
            if not line.endswith(b"\n") and not whole:
                return
            places[path] = places.get(path, 0) + len(line)
            yield _text(line)


def _of_engine(job: Job, *, engine: Engine, lines: int | None) -> Iterator[str]:
    text = engine.logs(job)
    if text is not None:
        yield from collections.deque(text.splitlines(), maxlen=lines)
        return
    supervisor = pathlib.Path(job.job_dir) / "supervisor.log"
    if not supervisor.is_file():
        raise NoLogsError(
            f"{job.run_id} has started no process yet. python -m launch.main status {job.run_id}"
        )
    for line in _lines(supervisor, lines):
        yield f"[supervisor] {line}"


def _newest(job: Job, attempt: int | None) -> int | None:
    there = attempts(job)
    if attempt is None:
        return there[-1] if there else None
    if attempt not in there:
        shown = ", ".join(map(str, there)) or "none"
        raise NoLogsError(f"{job.run_id} has no logs of attempt {attempt}; it has: {shown}.")
    return attempt


def _lines(path: pathlib.Path, count: int | None) -> Iterator[str]:
    """Yields the lines of a file, which may be far larger than memory, or the last of them."""
    with path.open("rb") as file:
        yield from map(_text, file if count is None else collections.deque(file, maxlen=count))


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _culprit(folder: pathlib.Path) -> int | None:
    try:
        reason = Reason.read_file(folder / "reason.json")
    except ContractError:
        return None  # of another version: then by rank
    return reason.rank if reason is not None else None
