"""From jobs to what an engine runs: ``render``, ``submit``, and waiting for the end.

A run that is already queued or running is never submitted twice. One that was held, stopped or has
ended goes on, with the job file as it is now.
"""

import contextlib
import dataclasses
import fcntl
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

from launch import run_status
from launch.control import Control, Want, user_name
from launch.engines.engine import Engine, EngineState, Rendered, Standing
from launch.exit_codes import ExitCode
from launch.jobs import Resolved, prepare
from launch.journal import Journal
from launch.patience import Patience
from launch.records import replace_file
from launch.run_index import RunIndex
from launch.run_status import RunStatus
from launch.spec import Job

POLL_S = 0.5
LOST_S = 60.0
STALE_S = 30.0
"""After this long without a word of it, a supervisor may be gone."""
_LOCK = "submit.lock"
_ALIVE = (EngineState.QUEUED, EngineState.RUNNING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submitted:
    """What became of a job.

    Attributes:
      job: the job.
      standing: what its engine says.
      how: new, again (it went on after an end) or already (it was running; nothing was changed).
    """

    job: Job
    standing: Standing
    how: str


def submit(
    resolved: Resolved, *, engine: Engine, text: str, index: RunIndex, now: float
) -> list[Submitted]:
    """Submits every trial of a job file.

    Args:
      resolved: its jobs.
      engine: where to.
      text: the job file as it was written.
      index: where runs are recorded.
      now: seconds since 1970.

    Raises:
      EngineError: the engine cannot be reached or refused.
      SnapshotError: the code changed since it was looked at.
    """
    done = []
    for job in resolved.jobs:
        with _alone(job):
            done.append(_submit(job, resolved, engine=engine, text=text, index=index, now=now))
    return done


def _submit(
    job: Job, resolved: Resolved, *, engine: Engine, text: str, index: RunIndex, now: float
) -> Submitted:
    standing = engine.standing(job)
    if standing.state in _ALIVE or supervisor_lives(job, now=now):
        return Submitted(job=job, standing=standing, how="already")
    prepare(job, code=resolved.code, text=text, index=index)
    write_files(engine.render(job), folder=pathlib.Path(job.job_dir) / "rendered")
    if standing.state is not EngineState.UNKNOWN:
        standing, how = go_on(job, engine=engine, now=now), "again"
    elif RunStatus.read(job.job_dir) or Control.read(job.job_dir):  # it was on another engine
        reopen(job, now=now)
        standing, how = engine.submit(job), "again"
    else:
        standing, how = engine.submit(job), "new"
    note(job, "submitted", engine=job.engine, engine_id=standing.engine_id)
    return Submitted(job=job, standing=standing, how=how)


@contextlib.contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Keeps two submissions of the same job apart: the second one sees what the first has done."""
    folder = pathlib.Path(job.job_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def supervisor_lives(job: Job, *, now: float) -> bool:
    """Whether a supervisor has lately written the status of the run."""
    status = RunStatus.read(job.job_dir)
    if status is None or status.state.is_final:
        return False
    # A time far ahead was written before the clock was set back.
    return abs(now - status.time) < STALE_S + job.spec.recovery.watchdog.beat_s


def go_on(job: Job, *, engine: Engine, now: float) -> Standing:
    """Has a run go on that was held, stopped or has ended.

    Raises:
      EngineError: the engine cannot be reached or refused.
    """
    reopen(job, now=now)
    return engine.release(job)


def reopen(job: Job, *, now: float) -> None:
    """Takes back what a run has ended with, so that its next supervisor goes on."""
    note(job, "resumed", by=user_name())
    if Control.read(job.job_dir) is not None:
        Control(want=Want.GO_ON, by=user_name(), time=now).write(job.job_dir)
    # The status of the end would be taken for the status of what starts now.
    (pathlib.Path(job.job_dir) / run_status.FILE).unlink(missing_ok=True)


def write_files(rendered: Rendered, *, folder: pathlib.Path) -> None:
    """Writes what was rendered into a folder."""
    for name, text in rendered.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text=text)


def note(job: Job, event: str, **details: object) -> None:
    """Writes a line into the journal of a run, beside those of its supervisor."""
    journal = Journal(job.job_dir)
    attempt = max((entry.attempt for entry in journal.entries()), default=0)
    journal.append(event, attempt=attempt, **details)


def wait(jobs: Sequence[Job], *, engine: Engine, report: Callable[[str], None]) -> int:
    """Waits until every run has ended; returns the exit code of the first one that failed.

    Args:
      jobs: the runs.
      engine: where they are.
      report: gets a line whenever something changes.
    """
    codes = [_wait_for(job, engine=engine, report=report) for job in jobs]
    return next((code for code in codes if code), 0)


def _wait_for(job: Job, *, engine: Engine, report: Callable[[str], None]) -> int:
    patience = Patience(job, engine=engine)
    told, unknown_since = "", None
    while True:
        status = RunStatus.read(job.job_dir)
        if status is not None and status.state.is_final:
            report(f"{job.run_id}: {status.state}. {status.next_action}".rstrip(". ") + ".")
            return int(ExitCode.EXCEPTION) if status.exit_code is None else status.exit_code
        standing = patience.standing()
        if standing.state is EngineState.ENDED:
            report(_line(job, status, standing))
            return int(ExitCode.EXCEPTION) if standing.exit_code is None else standing.exit_code
        gone = standing.state is EngineState.HELD and status is not None
        if standing.state is EngineState.UNKNOWN or gone:
            unknown_since = unknown_since or time.monotonic()
            if time.monotonic() - unknown_since > LOST_S:
                known = standing.detail or f"{job.engine} has not known of this run"
                report(f"{job.run_id}: {known}, for {LOST_S:g} s.")
                return int(ExitCode.ENGINE_UNREACHABLE)
        else:
            unknown_since, line = None, _line(job, status, standing)
            if line != told:
                report(line)
                told = line
        time.sleep(POLL_S)


def _line(job: Job, status: RunStatus | None, standing: Standing) -> str:
    """What is worth a line when it changes: not the step, which always does."""
    if status is None:
        return f"{job.run_id}: {standing.state}{f', {standing.detail}' if standing.detail else ''}"
    detail = status.next_action or standing.detail
    attempt = f", attempt {status.attempt}" if status.attempt else ""
    return f"{job.run_id}: {status.state}{attempt}{f'. {detail}' if detail else ''}"


@contextlib.contextmanager
def leaving_it_running(jobs: Sequence[Job], *, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C inside ends the waiting and not the run, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        names = " ".join(job.run_id for job in jobs)
        say(
            f"\nThe run goes on. See it:  python -m launch.main status {names}\n"
            f"         End it:  python -m launch.main cancel {names}"
        )
        raise
