"""What Lockstep's trainer says of a job before it starts: ``trainer.check``, and its dry run.

Programs of their own, so that the launcher never loads what the trainer loads.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

from launch import findings
from launch.findings import Finding, Verdict
from launch.jobs import is_here
from launch.own_code import importable
from launch.run_checks import is_program
from launch.snapshot import Snapshot
from launch.spec import Job, JobSpec

CHECK_S = 180.0
COMPILE_S = 1800.0
_MANY = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program of the trainer says.

    Attributes:
      findings: what it found.
      compiles_for: devices that the step can be compiled for here, as --cluster takes them; None
        if there is no compiler for them.
    """

    findings: tuple[Finding, ...]
    compiles_for: str | None = None


def examine(job: Job, *, code: Snapshot | None, folder: pathlib.Path, directory: bool) -> Answer:
    """Returns what the trainer finds for the sizes that the run may have.

    Args:
      job: a job of the trainer.
      code: the code that is to be copied; its folder is where gin files are looked up.
      folder: where they are looked up otherwise.
      directory: whether to look at the run directory, too.
    """
    first, *others = sizes(job.spec)
    folder = code.folder if code else folder
    answer = _ask(job, hosts=first, folder=folder, flags=_directory(job) if directory else ())
    found = list(answer.findings)
    for hosts in others:
        for finding in _ask(job, hosts=hosts, folder=folder, flags=()).findings:
            if finding.verdict is Verdict.ERROR and finding not in answer.findings:
                message = f"with {hosts} hosts: {finding.message}"
                found.append(dataclasses.replace(finding, message=message))
    return Answer(findings=tuple(dict.fromkeys(found)), compiles_for=answer.compiles_for)


def compiled(
    job: Job, *, cluster: str, code: Snapshot | None, folder: pathlib.Path
) -> tuple[Finding, ...]:
    """Returns what compiling the step for the job's devices finds; they need not be here.

    Args:
      job: a job of the trainer.
      cluster: its devices, as ``Answer.compiles_for`` names them.
      code: see ``examine``.
      folder: see ``examine``.
    """
    flags = ("--mode=dry_run", f"--cluster={cluster}")
    folder = code.folder if code else folder
    return _run(job, "trainer.main", flags, folder=folder, timeout=COMPILE_S).findings


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


def _ask(job: Job, *, hosts: int, folder: pathlib.Path, flags: Iterable[str]) -> Answer:
    spec = job.spec
    sizes_flags = (
        f"--devices={hosts * spec.resources.per_host}",
        f"--accelerator={spec.resources.accelerator}",
        f"--processes={hosts * spec.workload.processes_per_host}",
    )
    return _run(job, "trainer.check", (*sizes_flags, *flags), folder=folder, timeout=CHECK_S)


def _run(
    job: Job, module: str, flags: Iterable[str], *, folder: pathlib.Path, timeout: float
) -> Answer:
    spec = job.spec
    here = not spec.code.image and is_program(job.python, str(folder))
    command = [
        job.python if here else sys.executable,
        "-m",
        module,
        "--json",
        *(f"--gin_file={name}" for name in spec.workload.gin_files),
        *(f"--gin_bindings={binding}" for binding in spec.workload.gin_bindings),
        *flags,
    ]
    try:
        with tempfile.TemporaryDirectory() as left:  # by a compiler that is stopped
            done = subprocess.run(
                command,
                cwd=folder,
                env={**importable(os.environ), "TMPDIR": left},
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
    except OSError as failure:
        return _wrong("code", f"{command[0]} cannot be started: {failure}.")
    except subprocess.TimeoutExpired:
        return _wrong("configuration", f"no answer from {module} in {timeout:g} s.")
    return _read(done, module)


def _directory(job: Job) -> Iterator[str]:
    """Flags by which the run directory is looked at, where this machine can see it."""
    root = job.spec.checkpoint.root
    if "://" in root or is_here(root, engine=job.engine):
        yield f"--run_dir={root}"
        yield f"--run_id={job.run_id}"
        flags = job.spec.workload.flags
        yield from (flag for flag in flags if flag.lstrip("-").startswith("allow_change="))


def _read(done: subprocess.CompletedProcess[str], module: str) -> Answer:
    try:
        plain = json.loads(done.stdout)
        found = [Finding(**{**f, "verdict": Verdict(f["verdict"])}) for f in plain["findings"]]
        return Answer(findings=tuple(found), compiles_for=plain.get("compiles_for"))
    except (KeyError, TypeError, ValueError):
        told = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return _wrong("configuration", f"{module} ended with {done.returncode}: {told}")


def _wrong(about: str, message: str) -> Answer:
    return Answer(findings=(findings.error(about, message),))
