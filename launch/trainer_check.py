"""What Lockstep's trainer says of a job before it starts, by ``python -m trainer.check``.

A program of its own, so that the launcher never loads what the trainer loads.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

from launch import findings
from launch.findings import Finding, Verdict
from launch.jobs import is_here
from launch.own_code import importable
from launch.run_checks import is_program
from launch.snapshot import Snapshot
from launch.spec import Job, JobSpec

CHECK_S = 180.0
_MANY = 16


def examine(
    job: Job, *, code: Snapshot | None, folder: pathlib.Path, directory: bool
) -> Iterator[Finding]:
    """Yields what the trainer finds for the sizes that the run may have.

    Args:
      job: a job of the trainer.
      code: the code that is to be copied; its folder is where gin files are looked up.
      folder: where they are looked up otherwise.
      directory: whether to look at the run directory, too.
    """
    seen = set()
    for hosts in sizes(job.spec):
        other = hosts != job.spec.resources.hosts
        flags = _directory(job) if directory and not other else ()
        for finding in _ask(job, hosts=hosts, folder=code.folder if code else folder, flags=flags):
            if finding in seen or (other and finding.verdict is not Verdict.ERROR):
                continue
            seen.add(finding)
            note = f"with {hosts} hosts: " if other else ""
            yield dataclasses.replace(finding, message=note + finding.message)


def sizes(spec: JobSpec) -> list[int]:
    """Returns the numbers of hosts that the run may go on with, the one it starts with first.

    Every number between the fewest and the most that the slices divide; only the ends where there
    are many.
    """
    need, slices = spec.resources, spec.topology.slices
    least, most = need.min_hosts or need.hosts, need.max_hosts or need.hosts
    between = [n for n in range(least, most + 1) if n % slices == 0]
    if len(between) > _MANY:
        between = [between[0], between[-1]]
    return list(dict.fromkeys([need.hosts, *reversed(between)]))


def _ask(job: Job, *, hosts: int, folder: pathlib.Path, flags: Iterable[str]) -> list[Finding]:
    spec = job.spec
    here = not spec.code.image and is_program(job.python, str(folder))
    command = [
        job.python if here else sys.executable,
        "-m",
        "trainer.check",
        "--json",
        f"--devices={hosts * spec.resources.per_host}",
        f"--processes={hosts * spec.workload.processes_per_host}",
        *(f"--gin_file={name}" for name in spec.workload.gin_files),
        *(f"--gin_bindings={binding}" for binding in spec.workload.gin_bindings),
        *flags,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=importable(os.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_S,
        )
    except OSError as failure:
        return [findings.error("code", f"{command[0]} cannot be started: {failure}.")]
    except subprocess.TimeoutExpired:
        return [findings.error("configuration", f"no answer from trainer.check in {CHECK_S:g} s.")]
    return _read(done)


def _directory(job: Job) -> Iterator[str]:
    """Flags by which the run directory is looked at, where this machine can see it."""
    root = job.spec.checkpoint.root
    if "://" in root or is_here(root, engine=job.engine):
        yield f"--run_dir={root}"
        yield f"--run_id={job.run_id}"
        flags = job.spec.workload.flags
        yield from (flag for flag in flags if flag.lstrip("-").startswith("allow_change="))


def _read(done: subprocess.CompletedProcess[str]) -> list[Finding]:
    try:
        found = json.loads(done.stdout)["findings"]
        return [Finding(**{**one, "verdict": Verdict(one["verdict"])}) for one in found]
    except (KeyError, TypeError, ValueError):
        told = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        message = f"trainer.check ended with {done.returncode}: {told}"
        return [findings.error("configuration", message)]
