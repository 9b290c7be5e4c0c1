"""The run directory: which run it belongs to, which attempt this is, and who is writing now.

Imports no jax. Process 0 decides and the others hear the decision, so that a refusal ends all of
them alike. A directory of another run, a configuration that changes what the run computes, or an
owner that still lives are refused before anything is written.
"""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from launch.contract import ContractError, Environment, ExitCode, JournalEntry, RunRecord
from trainer import config_record, software
from trainer.checkpoints.root import FULL, UNWRITABLE, Root, open_root
from trainer.config import LoadedConfig
from trainer.config_errors import ConfigError
from trainer.config_record import Difference
from trainer.coordination import Coordination, agree
from trainer.endings import UserError
from trainer.owner import Owner, OwnerFile
from trainer.run_records import (
    RunDirectoryError,
    append_line,
    attempts,
    has_steps,
    last_resolved,
    read_run,
)

CLAIM_S = 300.0


class Resume(enum.StrEnum):
    """What to do with what a run directory already holds."""

    AUTO = "auto"
    NEVER = "never"
    MUST = "must"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """How the user wants to open a directory.

    Attributes:
      resume: AUTO goes on where there is something, NEVER refuses then, MUST refuses otherwise.
      allow_change: identity keys that may differ from the last attempt.
      take_over: the owner on another host is known to be dead.
    """

    resume: Resume = Resume.AUTO
    allow_change: tuple[str, ...] = ()
    take_over: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """An attempt on a run directory, as one process sees it.

    Attributes:
      root: where the run's records are.
      local: folder of this machine for what must be a local file (metrics, profiles); the run
        directory itself where that is local.
      run_id: name of the run.
      attempt: number of this attempt.
      resumed: whether the directory held this run already.
      changes: permitted differences to the last attempt's configuration.
      owner: the claim of process 0; None in the others.
    """

    root: Root
    local: pathlib.Path
    run_id: str
    attempt: int
    resumed: bool
    changes: tuple[Difference, ...] = ()
    owner: OwnerFile | None = None

    @property
    def folder(self) -> str:
        """Key of this attempt's records, with a slash at the end."""
        return f"attempts/{self.attempt}/"

    def journal(self, event: str, **details: Any) -> None:
        """Appends to the run's journal; process 0 only, the others return at once."""
        if self.owner is None:
            return
        entry = JournalEntry(time=time.time(), event=event, attempt=self.attempt, details=details)
        append_line(self.root, "journal.jsonl", entry.to_json())

    def close(self) -> None:
        """Gives the directory up, so that the next attempt need not wait."""
        if self.owner is not None:
            self.owner.release()


def open_run(
    location: str,
    *,
    loaded: LoadedConfig,
    environment: Environment | None,
    coordination: Coordination,
    request: Request | None = None,
    root: Root | None = None,
) -> RunDirectory:
    """Claims the next attempt on a run directory, in all processes alike.

    Args:
      location: the run directory.
      loaded: this attempt's configuration.
      environment: what the launcher said; its attempt number is taken where there is one.
      coordination: the other processes.
      request: how the user wants to open it.
      root: the store behind ``location``; None opens it.

    Raises:
      RunDirectoryError: it holds another run, or an owner still lives, or the request does not fit,
        or it cannot be written.
      UserError: the disk is full.
      ConfigError: the configuration changes what the run computes.
    """
    root = root or open_root(location)
    local = _local_folder(location, environment)
    if coordination.process_index != 0:
        return _hear(root, local=local, coordination=coordination)
    try:
        with _writable(location):
            opened = _Claim(location, root, local, loaded, environment, request or Request()).take()
    except (RunDirectoryError, UserError, ConfigError, ContractError) as error:
        agree(coordination, "run_directory", {"refused": str(error)}, timeout_s=CLAIM_S)
        raise
    told = {"run_id": opened.run_id, "attempt": opened.attempt, "resumed": opened.resumed}
    told["changes"] = [dataclasses.asdict(change) for change in opened.changes]
    agree(coordination, "run_directory", told, timeout_s=CLAIM_S)
    return opened


def check_readable(root: Root, *, loaded: LoadedConfig, request: Request) -> list[Difference]:
    """Checks that a directory holds the run that a configuration describes; writes nothing.

    Returns:
      Permitted differences to the last attempt's configuration.

    Raises:
      RunDirectoryError: it holds no run.
      ConfigError: the configuration is another one than the run's.
    """
    if read_run(root) is None:
        raise RunDirectoryError(f"{root.url} holds no run. Check --run_dir.")
    return _changes(root, loaded=loaded, request=request)


def _changes(root: Root, *, loaded: LoadedConfig, request: Request) -> list[Difference]:
    """Differences to the last attempt; before the first save nothing stands in their way."""
    last = last_resolved(root)
    if last is None:
        return []
    resolved = config_record.resolved(loaded)
    if not has_steps(root):
        return config_record.differences(last, resolved, schema=loaded.schema)
    return config_record.check_resume(
        last, resolved, allow_change=request.allow_change, schema=loaded.schema
    )


@contextlib.contextmanager
def _writable(location: str) -> Iterator[None]:
    """Says what to do where the directory is no place to write to."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"{location}: the disk is full. Free some and start again. {error}"
            raise UserError(message, ExitCode.HOLD) from error
        if error.errno in UNWRITABLE:
            raise RunDirectoryError(
                f"{location} cannot be written: {error}. Take another --run_dir."
            ) from error
        raise


def _hear(root: Root, *, local: pathlib.Path, coordination: Coordination) -> RunDirectory:
    """Every process but 0."""
    told = agree(coordination, "run_directory", None, timeout_s=CLAIM_S)
    if "refused" in told:
        raise RunDirectoryError(told["refused"])
    changes = (
        Difference(**{**change, "kind": config_record.Kind(change["kind"])})
        for change in told["changes"]
    )
    return RunDirectory(
        root=root,
        local=local,
        run_id=told["run_id"],
        attempt=told["attempt"],
        resumed=told["resumed"],
        changes=tuple(changes),
    )


@dataclasses.dataclass(frozen=True)
class _Claim:
    """Process 0's decision."""

    location: str
    root: Root
    local: pathlib.Path
    loaded: LoadedConfig
    environment: Environment | None
    request: Request

    def take(self) -> RunDirectory:
        record = read_run(self.root)
        resolved = config_record.resolved(self.loaded)
        self._check_request(record)
        self._changes(record)  # refuse before anything is written
        owner = self._claim()
        try:
            changes = self._changes(record)  # another attempt may have come between
            return self._begin(record, resolved, changes, owner)
        except BaseException:
            owner.release()
            raise

    def _changes(self, record: RunRecord | None) -> list[Difference]:
        if record is None:
            return []
        return _changes(self.root, loaded=self.loaded, request=self.request)

    def _check_request(self, record: RunRecord | None) -> None:
        if record is None:
            if self.request.resume is Resume.MUST:
                raise RunDirectoryError(
                    f"--resume=must, but {self.location} holds no run. Check --run_dir."
                )
            return
        if self.request.resume is Resume.NEVER:
            raise RunDirectoryError(
                f"--resume=never, but {self.location} holds run {record.run_id}. Take another "
                "--run_dir, or --resume=auto to go on with it."
            )
        if self.environment is not None and self.environment.run_id != record.run_id:
            raise RunDirectoryError(
                f"{self.location} belongs to run {record.run_id}, not to "
                f"LAUNCH_RUN_ID={self.environment.run_id}. Take another --run_dir."
            )

    def _claim(self) -> OwnerFile:
        """Creates the owner file of an attempt that nobody has; exactly one process can.

        A folder without an owner file counts as nothing: its maker may be about to write one.
        """
        while True:
            newest = self._newest_owned()
            if newest is not None:
                self._check_previous(newest)
            number = self._next(newest)
            own = OwnerFile(self.root, f"attempts/{number}/owner.json")
            if own.claim(attempt=number, launched=self.environment is not None):
                break
            if self.environment is not None:
                raise RunDirectoryError(
                    f"Attempt {number} of {self.location} was already begun by {own.read()}. "
                    "Two launchers use one directory, or LAUNCH_ATTEMPT did not grow."
                )
        try:  # another number may have been claimed at the same time; then neither goes on
            newest = self._newest_owned(other_than=number)
            if newest is not None:
                self._check_previous(newest)
        except RunDirectoryError:
            own.release()
            raise
        return own

    def _newest_owned(self, *, other_than: int | None = None) -> Owner | None:
        for attempt in reversed(attempts(self.root)):
            owner = OwnerFile(self.root, f"attempts/{attempt}/owner.json").read()
            if owner is not None and attempt != other_than:
                return owner
        return None

    def _next(self, newest: Owner | None) -> int:
        if self.environment is not None:
            return self.environment.attempt
        return newest.attempt + 1 if newest else 1

    def _check_previous(self, owner: Owner) -> None:
        if not owner.lives():
            return
        launched = self.environment is not None and owner.launched
        if launched and self.environment and self.environment.attempt > owner.attempt:
            return  # the launcher says that it is gone, and its steps no longer count
        if self.request.take_over and not owner.is_here():
            return
        raise RunDirectoryError(
            f"{self.location} is in use by {owner}. Stop that process, or take another "
            f"--run_dir.{owner.advice()}"
        )

    def _begin(
        self,
        record: RunRecord | None,
        resolved: dict[str, Any],
        changes: Sequence[Difference],
        owner: OwnerFile,
    ) -> RunDirectory:
        resumed = record is not None
        if record is None:
            record = self._create_run(resolved)
        assert owner.attempt is not None
        opened = RunDirectory(
            root=self.root,
            local=self.local,
            run_id=record.run_id,
            attempt=owner.attempt,
            resumed=resumed,
            changes=tuple(changes),
            owner=owner,
        )
        text = config_record.describe(self.loaded)
        self.root.write(f"{opened.folder}config/operative.gin", text.encode())
        data = json.dumps(resolved, indent=1).encode()
        self.root.write(f"{opened.folder}config/resolved.json", data)
        opened.journal(
            "attempt_started",
            owner=str(owner.read()),
            digest=resolved["digest"],
            changes=[str(change) for change in changes],
        )
        owner.keep_alive()
        return opened

    def _create_run(self, resolved: dict[str, Any]) -> RunRecord:
        run_id = self.environment.run_id if self.environment else _run_id(self.location)
        record = RunRecord(
            run_id=run_id,
            created=time.time(),
            identity=resolved["identity"],
            software=software.versions(),
        )
        if not self.root.create("run.json", record.to_json().encode()):
            return read_run(self.root) or record
        return record


def _local_folder(location: str, environment: Environment | None) -> pathlib.Path:
    if "://" not in location:
        return pathlib.Path(location).expanduser()
    base = environment.state_dir if environment else os.path.expanduser("~/.cache/lockstep")
    return pathlib.Path(base) / "runs" / location.replace("://", "/").strip("/")


def _run_id(location: str) -> str:
    return f"{pathlib.PurePosixPath(location).name or 'run'}-{uuid.uuid4().hex[:8]}"
