"""A job file made one run's: names, folders, interpreter and code are settled here, once.

`resolve` decides and writes nothing, so that ``render`` shows what ``submit`` does; `prepare`
writes the folder of the job. A job file whose checkpoint root holds a run already goes on with that
run, under its name.
"""

import dataclasses
import json
import os
import pathlib
import secrets
import shlex
import sys
import time

from launch import snapshot
from launch.control import user_name
from launch.records import RunRecord, replace_file
from launch.run_index import RUN_ID, RunIndex
from launch.snapshot import Snapshot
from launch.spec import JOB_FILE, Job, JobSpec

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
_RANDOM = 6


class JobError(ValueError):
    """A job file cannot be made a run; says what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says beside the job file.

    Attributes:
      engine: name of the engine.
      index: where runs are recorded.
      run_id: name of the run; None takes the one that the checkpoint root has, or a new one.
      job_dir: folder of the job; None takes the run directory where that is a path, else one in
        the index's home.
      folder: what relative paths are relative to.
    """

    engine: str
    index: RunIndex
    run_id: str | None = None
    job_dir: str | None = None
    folder: pathlib.Path = dataclasses.field(default_factory=pathlib.Path.cwd)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a job file comes to.

    Attributes:
      jobs: one for each trial.
      code: the code that is to be copied; None where it runs where it is.
    """

    jobs: tuple[Job, ...]
    code: Snapshot | None


def resolve(spec: JobSpec, *, options: Options) -> Resolved:
    """Returns the jobs of a job file; writes nothing.

    Raises:
      JobError: a name cannot be used.
      SnapshotError: the code cannot be copied.
      ContractError: the checkpoint root holds a record that cannot be read.
    """
    source = spec.code.snapshot and _absolute(spec.code.snapshot, options.folder)
    code = snapshot.describe(pathlib.Path(source)) if source else None
    spec = _settled(spec, folder=options.folder, code=code)
    if options.run_id is not None:
        _check_run_id(options.run_id, trials=spec.trials)
    fresh = options.run_id or new_run_id(spec.name)
    jobs = tuple(
        _job(spec, trial=trial, base=fresh, code=code, options=options)
        for trial in range(spec.trials)
    )
    return Resolved(jobs=jobs, code=code)


def new_run_id(name: str) -> str:
    """Returns a name that no run has: the job's, and six random letters without vowels."""
    return f"{name}-{''.join(secrets.choice(_LETTERS) for _ in range(_RANDOM))}"


def prepare(job: Job, *, code: Snapshot | None, text: str, index: RunIndex) -> None:
    """Writes the folder of a job, and records the run.

    Args:
      job: the job.
      code: code to copy.
      text: the job file as it was written, kept for people.
      index: where runs are recorded.

    Raises:
      SnapshotError: the code changed since `resolve`.
      JobError: another run was submitted into that folder meanwhile.
    """
    folder = pathlib.Path(job.job_dir)
    former = Job.read_file(folder / JOB_FILE)
    if former is not None and former.run_id != job.run_id:
        raise JobError(
            f"{folder} belongs to run {former.run_id!r}. Submit again to go on with it, or take "
            "another checkpoint.root."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if code is not None:
        (folder / "code").mkdir(exist_ok=True)
        snapshot.copy(code, into=folder / "code")
    replace_file(folder / "job.yaml", text=text)
    replace_file(folder / JOB_FILE, text=job_text(job))
    index.add(job, time=time.time())


def job_text(job: Job) -> str:
    """Returns job.json, one value a line."""
    return json.dumps(dataclasses.asdict(job), indent=1, allow_nan=False) + "\n"


def existing_run(root: str, *, index: RunIndex) -> str | None:
    """Returns the run that a run directory belongs to; None where it belongs to none yet.

    An object store is not asked: what was submitted from this account is looked up instead.

    Raises:
      ContractError: run.json or job.json is there and cannot be read.
    """
    if "://" in root:
        return next((entry.run_id for entry in index.entries() if entry.root == root), None)
    folder = pathlib.Path(root)
    owner = RunRecord.read_file(folder / "run.json") or Job.read_file(folder / JOB_FILE)
    return owner.run_id if owner is not None else None


def _job(spec: JobSpec, *, trial: int, base: str, code: Snapshot | None, options: Options) -> Job:
    given = f"{base}-{trial}" if spec.trials > 1 else base
    root = spec.checkpoint.root
    run_id = options.run_id and given
    if run_id is None and "{run_id}" not in root:
        run_id = existing_run(root.replace("{trial}", str(trial)), index=options.index)
    run_id = run_id or given
    spec = _replaced(spec, run_id=run_id, trial=trial)
    job_dir = _job_dir(spec, run_id=run_id, trial=trial, options=options)
    if other := options.index.elsewhere(run_id, job_dir=job_dir):
        raise JobError(
            f"Run {run_id!r} is in {other}; another of that name in {job_dir} would end its "
            f"processes. Take another --run_id, or --job_dir={shlex.quote(other)} to go on with "
            "that one; a copy of a run directory is no run of its own."
        )
    return Job(
        run_id=run_id,
        spec=spec,
        engine=options.engine,
        job_dir=job_dir,
        code_dir=_code_dir(spec, job_dir=job_dir, code=code, options=options),
        code_digest=f"sha256:{code.digest}" if code else spec.code.image.partition("@")[2],
        python=spec.code.python or ("python3" if spec.code.image else sys.executable),
        trial=trial,
    )


def _job_dir(spec: JobSpec, *, run_id: str, trial: int, options: Options) -> str:
    if options.job_dir is not None:
        given = os.path.abspath(options.folder / os.path.expanduser(options.job_dir))
        return f"{given}/{trial}" if spec.trials > 1 else given
    root = spec.checkpoint.root
    return (
        root if is_here(root, engine=options.engine) else str(options.index.home / "runs" / run_id)
    )


def is_here(root: str, *, engine: str) -> bool:
    """Whether a run directory is a folder of this machine.

    A path in a cluster's volume is one only where the volume is mounted here, too.
    """
    return "://" not in root and (engine != "kubernetes" or os.path.isdir(os.path.dirname(root)))


def _code_dir(spec: JobSpec, *, job_dir: str, code: Snapshot | None, options: Options) -> str:
    if code is not None:
        return f"{job_dir}/code/{code.name}"
    return "" if spec.code.image else str(options.folder)


def _settled(spec: JobSpec, *, folder: pathlib.Path, code: Snapshot | None) -> JobSpec:
    """Returns the spec with its owner and absolute paths."""
    files = tuple(_gin_file(name, spec, folder, code) for name in spec.workload.gin_files)
    data, root = spec.dataset, _absolute(spec.checkpoint.root, folder)
    if data is not None:
        data = dataclasses.replace(data, path=_absolute(data.path, folder))
    return dataclasses.replace(
        spec,
        owner=dataclasses.replace(spec.owner, user=spec.owner.user or user_name()),
        workload=dataclasses.replace(spec.workload, gin_files=files),
        checkpoint=dataclasses.replace(spec.checkpoint, root=root),
        code=dataclasses.replace(spec.code, snapshot=str(code.folder) if code else ""),
        dataset=data,
    )


def _absolute(path: str, folder: pathlib.Path) -> str:
    if "://" in path:
        return path.rstrip("/")
    return os.path.abspath(folder / os.path.expanduser(path))


def _gin_file(name: str, spec: JobSpec, folder: pathlib.Path, code: Snapshot | None) -> str:
    """Returns a gin file as the processes name it: absolute, but relative where it is copied.

    One that is not here is left as it is written: it may lie in an image, and the trainer looks
    in its own folder, too.
    """
    path = os.path.abspath(folder / os.path.expanduser(name))
    if spec.code.image or not os.path.exists(path):
        return name
    inside = os.path.relpath(path, code.folder) if code else ""
    return inside if code and inside in code.files else path


def _replaced(spec: JobSpec, *, run_id: str, trial: int) -> JobSpec:
    """Returns the spec with {run_id} and {trial} replaced in the root and in bindings."""

    def replaced(text: str) -> str:
        return text.replace("{run_id}", run_id).replace("{trial}", str(trial))

    bindings = tuple(replaced(binding) for binding in spec.workload.gin_bindings)
    return dataclasses.replace(
        spec,
        checkpoint=dataclasses.replace(spec.checkpoint, root=replaced(spec.checkpoint.root)),
        workload=dataclasses.replace(spec.workload, gin_bindings=bindings),
    )


def _check_run_id(run_id: str, *, trials: int) -> None:
    if not RUN_ID.fullmatch(run_id) or (trials > 1 and len(run_id) > 56):
        raise JobError(
            f"--run_id={run_id!r}: a run id is at most 64 letters, digits and . _ -, and starts "
            "and ends with a letter or a digit."
        )
