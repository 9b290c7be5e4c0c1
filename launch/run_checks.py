"""What a job finds on this machine: its code, its checkpoint root, its secrets, its time limits.

Part of `launch.validate`; writes nothing that stays.
"""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator

from launch import findings
from launch.findings import Finding
from launch.jobs import is_here
from launch.records import ContractError, RunRecord
from launch.snapshot import Snapshot
from launch.spec import JOB_FILE, Job

_SHOWN = 5
_RECORDS = ("checkpoints", "metrics.jsonl")


def code(job: Job, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Looks at interpreter, program, snapshot and image."""
    spec = job.spec
    if spec.code.image:
        if "@sha256:" in spec.code.image:
            yield findings.ok("code", f"image {spec.code.image}.")
        else:
            yield findings.warning(
                "code",
                f"code.image={spec.code.image!r} has no digest: a restart may get another image. "
                "Name it as name@sha256:....",
            )
        return
    say = findings.error if job.engine == "local" else findings.warning
    if not is_program(job.python, job.code_dir):
        yield say("code", f"code.python={job.python!r} is no program on this machine.")
    elif not _is_new_enough(job.python):
        yield say("code", f"code.python={job.python!r} is no Python 3.12 or newer.")
    if snapshot is None:
        yield findings.info("code", f"runs where it is, in {job.code_dir}; its digest is not kept.")
    else:
        yield findings.ok("code", f"{len(snapshot.files)} files, {job.code_digest[:19]}.")
        if snapshot.untracked:
            names = ", ".join(snapshot.untracked[:_SHOWN])
            more = len(snapshot.untracked) - _SHOWN
            yield findings.warning(
                "code",
                f"git does not track {names}{f' and {more} more' if more > 0 else ''}; they are "
                "not copied. Add them with git add, or ignore them.",
            )
    if spec.workload.command:
        yield from _command(job, snapshot)


def _is_new_enough(python: str) -> bool:
    """Whether an interpreter can run supervisor and agents."""
    test = "import sys; sys.exit(sys.version_info < (3, 12))"
    try:
        done = subprocess.run([python, "-c", test], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _command(job: Job, snapshot: Snapshot | None) -> Iterator[Finding]:
    program = job.spec.workload.command[0]
    folder = str(snapshot.folder) if snapshot else job.code_dir
    if is_program(program, folder):
        return
    message = f"workload.command: {program!r} is no program on this machine."
    if job.engine == "local":
        yield findings.error("code", message)
    else:
        yield findings.warning("code", f"{message} It must be one on the hosts.")


def is_program(name: str, folder: str) -> bool:
    """Whether something can be started by that name from that folder, on this machine."""
    if "/" in name:
        name = os.path.join(folder, name)
    return shutil.which(name) is not None


def checkpoint(job: Job, *, given: bool) -> Iterator[Finding]:
    """Looks whether the run directory can be written and is this run's.

    Args:
      job: the job.
      given: the run id was named by a person, who means it.
    """
    root = job.spec.checkpoint.root
    if not is_here(root, engine=job.engine):
        if "://" in root and job.spec.is_trainer:
            return  # the trainer is asked
        where = "an object store" if "://" in root else "a volume of the cluster"
        yield findings.info("checkpoint", f"{root} is not looked at: {where}.")
        return
    path = pathlib.Path(root)
    try:
        whose = _whose(job, path, given=given)
    except (ContractError, OSError) as failure:
        whose = f"{path} holds a record that cannot be read: {failure}"
    if whose is not None:
        yield findings.error("checkpoint", whose)
        return
    if reason := _unwritable(path):
        yield findings.error("checkpoint", f"checkpoint.root={root!r} cannot be written: {reason}.")
        return
    goes_on = (path / "run.json").exists()
    yield findings.ok(
        "checkpoint", f"{root}: {f'goes on with run {job.run_id}' if goes_on else 'a new run'}."
    )


def _whose(job: Job, path: pathlib.Path, *, given: bool) -> str | None:
    """Says whose directory it is, where it is not this run's."""
    record, other = RunRecord.read_file(path / "run.json"), Job.read_file(path / JOB_FILE)
    elsewhere = "Take another checkpoint.root"
    if record is not None:
        if record.run_id != job.run_id:
            held = f"{path} holds run {record.run_id!r}, not {job.run_id!r}"
            return f"{held}. {elsewhere}, or --run_id={record.run_id} to go on with it."
    elif strangers := [name for name in _RECORDS if (path / name).exists()]:
        held = f"{path} holds {' and '.join(strangers)} but no run.json"
        return f"{held}: it is no run of Lockstep. {elsewhere}."
    if other is not None:
        if other.run_id != job.run_id:
            held = f"{path} belongs to run {other.run_id!r}, not {job.run_id!r}"
            return f"{held}. {elsewhere}, or --run_id={other.run_id} to go on with it."
        if other.spec.name != job.spec.name and not given:
            made = f"{path} was made by job {other.spec.name!r}, not {job.spec.name!r}"
            return f"{made}. {elsewhere}, or --run_id={other.run_id} to go on with it."
    return None


def _unwritable(path: pathlib.Path) -> str | None:
    """Says why no file can be made there, by making one where the path ends so far."""
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not there.is_dir():
        return f"{there} is no folder"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as failure:
        return f"{there}: {failure.strerror}"


def secrets(job: Job) -> Iterator[Finding]:
    """Looks at the references, never at the values; other engines' hosts may have other files."""
    say = findings.error if job.engine == "local" else findings.warning
    wrong = 0
    for secret in job.spec.secrets:
        kind, _, where = secret.ref.partition(":")
        problem = None
        if kind == "file":
            problem = _unreadable(pathlib.Path(where))
        elif kind == "env" and where not in os.environ:
            problem = f"variable {where} is not set here"
        if problem:
            wrong += 1
            yield say("secrets", f"{secret.name}: {problem}.")
    if job.spec.secrets and not wrong:
        yield findings.ok("secrets", f"{len(job.spec.secrets)} by reference.")


def _unreadable(path: pathlib.Path) -> str | None:
    if not path.is_file() or not os.access(path, os.R_OK):
        return f"{path} cannot be read here"
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"{path} may be read by others; run chmod 600 on it"
    return None


def times(job: Job) -> Iterator[Finding]:
    """Says how long an allocation lasts, and what is left of it to work."""
    run = job.spec.runtime
    if not run.max_walltime_s:
        yield findings.info("times", "runtime.max_walltime_s is the engine's own limit.")
        return
    share = run.grace_s / run.max_walltime_s
    text = f"{run.max_walltime_s:g} s an allocation, {run.grace_s:g} s of them to save and stop"
    if share > 0.2:
        yield findings.warning("times", f"{text}: {share:.0%} of the time is kept for stopping.")
    else:
        yield findings.ok("times", f"{text}.")
