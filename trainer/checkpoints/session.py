"""What saving and restoring share: the root, the attempt, the other processes, and where files go.

May import jax only through the modules that it names. Promises: on a path every process works in
the step's own directory; for an object store each host works in one local staging directory that
only it uses, and only files that this attempt staged are removed from it.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence

from launch.contract import ExitCode
from trainer.checkpoints import manifest
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.manifest import FileRecord, Manifest
from trainer.checkpoints.root import Root
from trainer.coordination import Coordination, agree
from trainer.run_config import CheckpointConfig

_OF_PROCESS = re.compile(r"process_(\d+)(?:/|$)")
_ARRAY_PIECE = re.compile(r"(?:^|/)c(?:/|$)")


class CheckpointError(RuntimeError):
    """A step could not be written, or none could be read."""


class DiskFullError(CheckpointError):
    """There was no room for a step; trying again helps only when a person has made some."""

    exit_code = ExitCode.HOLD


class NoWholeStepError(CheckpointError):
    """There are steps, and each one is damaged; a person decides what to go on from."""

    exit_code = ExitCode.HOLD


@dataclasses.dataclass
class Deadline:
    """A limit shared by several waits.

    Attributes:
      seconds: the whole limit.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Starts the clock."""
        self._end = time.monotonic() + self.seconds

    def left(self) -> float:
        """Seconds left, never less than a millisecond."""
        return max(0.001, self._end - time.monotonic())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """One process's part in the checkpoints of one run.

    Attributes:
      root: the ``checkpoints`` directory of the run.
      attempt: the attempt that this process belongs to; None only reads.
      config: when and how to save.
      peers: the other processes.
      leader: the lowest rank of those that share this host's staging directory.
      staging: local directory for object stores; None where the root is a path.
      host_ranks: the ranks that share this host's staging directory.
    """

    root: Root
    attempt: int | None
    config: CheckpointConfig
    peers: Coordination
    leader: int = 0
    staging: pathlib.Path | None = None
    host_ranks: tuple[int, ...] = (0,)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.peers.process_index

    def directory(self, name: StepName) -> pathlib.Path:
        """The local directory in which a step is written or read."""
        if self.staging:
            return self.staging / str(name)
        path = self.root.local_path(str(name))
        assert path is not None, "a root without local paths has a staging directory"
        return path

    def own_files(self, name: StepName) -> list[str]:
        """Files that this process answers for, by their path in the step's directory.

        Each is some process's, and no process needs to see what another has just written.
        """
        base = self.directory(name)
        found = sorted(p.relative_to(base).as_posix() for p in base.rglob("*") if p.is_file())
        if self.staging:
            if self.rank != self.leader:
                return []
            # Other hosts have written the same descriptions of arrays as the first one.
            return [p for p in found if self.rank == 0 or _is_part(p)]
        return [p for p in found if _owner(p) == self.rank]

    def drop_staged(self, name: StepName) -> None:
        """Removes this host's staged files of a step."""
        if self.staging and self.rank == self.leader:
            shutil.rmtree(self.staging / str(name), ignore_errors=True)

    def drop_all_staged(self) -> None:
        """Removes this host's staging directory."""
        if self.staging and self.rank == self.leader:
            shutil.rmtree(self.staging, ignore_errors=True)

    def fetch(self, found: Manifest, *, tag: str, deadline: Deadline) -> list[str]:
        """Brings a step onto this machine, verified; returns what is wrong with it.

        Each process takes a share of the files: of all where the root is a path, of this host's
        copy where it is staged. The lists of all processes are put together.
        """
        if self.staging:
            part, parts = self.host_ranks.index(self.rank), len(self.host_ranks)
            mine = manifest.share(found.files, part=part, parts=parts)
            wrong = self._download(found, mine)
        else:
            parts = self.peers.process_count
            mine = manifest.share(found.files, part=self.rank, parts=parts)
            wrong = manifest.faults(self.root, found, mine, contents=self.config.verify)
        return self.agree(f"{tag}/verified", wrong, deadline=deadline)

    def agree(self, tag: str, mine: list[str], *, deadline: Deadline) -> list[str]:
        """The lists of all processes, put together, alike on all."""
        gathered = self.peers.gather(f"{tag}/in", json.dumps(mine), timeout_s=deadline.left())
        together = [line for part in gathered for line in json.loads(part)]
        agreed: list[str] = agree(self.peers, f"{tag}/out", together, timeout_s=deadline.left())
        return agreed

    def _download(self, found: Manifest, paths: tuple[str, ...]) -> list[str]:
        wrong = []
        for path in paths:
            target = self.directory(found.name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                record = _copy(self.root, found.name.key(path), target)
            except FileNotFoundError:
                wrong.append(f"{path} is missing")
                continue
            if record != found.files[path]:
                wrong.append(f"{path} has changed since it was written")
        return wrong


def join_hosts(session: Session, *, base: pathlib.Path) -> Session:
    """Finds out which processes share a staging directory below ``base``."""
    mark = hashlib.sha256(session.root.url.encode()).hexdigest()[:16]
    staging = base / f"lockstep-{mark}-{'read' if session.attempt is None else session.attempt}"
    identity = f"{socket.gethostname()} {_boot_id()} {staging}"
    limit = Deadline(session.config.save_timeout_s)
    tag = f"{session.attempt}/hosts"
    hosts = session.agree(tag, [f"{session.rank} {identity}"], deadline=limit)
    ranks = sorted(int(h.split(" ", 1)[0]) for h in hosts if h.split(" ", 1)[1] == identity)
    joined = dataclasses.replace(session, staging=staging, leader=ranks[0], host_ranks=tuple(ranks))
    if session.rank == ranks[0]:
        shutil.rmtree(staging, ignore_errors=True)  # ours, from a process that was killed
    session.peers.barrier(f"{tag}/ready", timeout_s=limit.left())
    return joined


def merge(parts: Sequence[Mapping[str, FileRecord]]) -> dict[str, FileRecord]:
    """Puts the records of all processes together.

    Raises:
      ValueError: two processes wrote different contents under one name.
    """
    files: dict[str, FileRecord] = {}
    for part in parts:
        for path, record in part.items():
            if files.setdefault(path, record) != record:
                raise ValueError(f"two processes wrote different contents of {path}")
    return files


def _copy(root: Root, key: str, target: pathlib.Path) -> FileRecord:
    with target.open("wb") as out:

        def written() -> Iterator[bytes]:
            for chunk in root.chunks(key):
                out.write(chunk)
                yield chunk

        return manifest.digest(written())


def _owner(path: str) -> int:
    match = _OF_PROCESS.search(path)
    return int(match[1]) if match else 0


def _is_part(path: str) -> bool:
    return bool(_OF_PROCESS.search(path) or _ARRAY_PIECE.search(path))


def _boot_id() -> str:
    path = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else os.uname().nodename
