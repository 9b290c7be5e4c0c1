"""Which runs there are, and where: one small file for each under ``~/.lockstep/runs``.

A run is named by its run id or by its folder. LOCKSTEP_HOME replaces ``~/.lockstep``. Imports the
standard library only.
"""

import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Self

from launch.records import ContractError, Schema, replace_file
from launch.spec import JOB_FILE, Job

RUN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


class UnknownRunError(ValueError):
    """No run is known by that name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEntry(Schema):
    """``<home>/runs/<run_id>.json``.

    Attributes:
      run_id: name of the run.
      job_dir: folder of its job.json.
      root: its run directory.
      engine: engine that it was submitted to.
      submitted: seconds since 1970.
    """

    run_id: str
    job_dir: str
    root: str
    engine: str
    submitted: float


@dataclasses.dataclass(frozen=True)
class RunIndex:
    """The runs that were submitted from this account.

    Attributes:
      home: folder of all that Lockstep keeps for a person.
    """

    home: pathlib.Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Returns the index of whoever runs this process."""
        home = environ.get("LOCKSTEP_HOME") or os.path.join("~", ".lockstep")
        return cls(pathlib.Path(os.path.abspath(os.path.expanduser(home))))

    def add(self, job: Job, *, time: float) -> None:
        """Records a run that is about to be submitted."""
        entry = RunEntry(
            run_id=job.run_id,
            job_dir=job.job_dir,
            root=job.spec.checkpoint.root,
            engine=job.engine,
            submitted=time,
        )
        path = self._folder / f"{job.run_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text=entry.to_json() + "\n")

    def entries(self) -> list[RunEntry]:
        """Returns all runs, the newest first; a file that cannot be read is left out."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(RunEntry.read_file(path))
            except (ContractError, OSError):
                continue  # written by another version
        return sorted(filter(None, found), key=lambda entry: -entry.submitted)

    def elsewhere(self, run_id: str, *, job_dir: str) -> str | None:
        """Returns another folder that holds a run of that name; None where there is none."""
        try:
            entry = RunEntry.read_file(self._folder / f"{run_id}.json")
            if entry is None or os.path.realpath(entry.job_dir) == os.path.realpath(job_dir):
                return None
            job = Job.read_file(pathlib.Path(entry.job_dir) / JOB_FILE)
            return entry.job_dir if job is not None and job.run_id == run_id else None
        except ContractError:
            return None  # no supervisor can read it, either

    def find(self, name: str) -> Job:
        """Returns the job that is meant by a run id, a folder, a run directory or a job.json.

        Raises:
          UnknownRunError: there is none, or its folder is gone.
          ContractError: its job.json cannot be read.
        """
        given = pathlib.Path(name)
        for path in (given / JOB_FILE, given):
            if path.name == JOB_FILE and path.is_file():
                return Job.of_folder(path.parent)
        entries = self.entries()
        named = [e for e in entries if e.run_id == name] or [e for e in entries if e.root == name]
        if not named:
            raise UnknownRunError(self._unknown(name, known=[e.run_id for e in entries]))
        path = pathlib.Path(named[0].job_dir) / JOB_FILE
        job = Job.read_file(path)
        if job is None:
            raise UnknownRunError(f"Run {name!r} was submitted, but {path} is no longer there.")
        return job

    @property
    def _folder(self) -> pathlib.Path:
        return self.home / "runs"

    def _unknown(self, name: str, *, known: list[str]) -> str:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        meant = f" Did you mean {', '.join(close)}?" if close else " None was submitted from here."
        return (
            f"There is no run {name!r}: it is neither a run id nor a folder with {JOB_FILE}.{meant}"
        )
