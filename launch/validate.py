"""The dry run: everything that can be known of a job before anything is submitted, at once.

The job file, what the engine cannot do, code and interpreter, the trainer's configuration on the
job's devices, data and its licence, the checkpoint root, secrets, times. Writes nothing.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator

from launch import findings, run_checks, spec_reader, trainer_check
from launch.engines.engine import engine_named
from launch.findings import Finding, Report, Verdict
from launch.jobs import JobError, Options, Resolved, resolve
from launch.records import ContractError
from launch.snapshot import SnapshotError
from launch.spec import Job
from launch.spec_problems import SpecError
from launch.spec_reader import JobFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validated:
    """What a dry run gives.

    Attributes:
      report: what was found.
      resolved: the jobs; None where the job file does not come to any.
      text: the job file as it was written; empty where it cannot be used.
    """

    report: Report
    resolved: Resolved | None
    text: str


def validate(
    path: pathlib.Path,
    *,
    options: Options,
    slow: bool = True,
    compiling: Callable[[str], None] | None = None,
) -> Validated:
    """Looks at everything, also after something was wrong.

    Args:
      path: the job file.
      options: what the command line says.
      slow: also what starts programs or reads large files.
      compiling: compile the trainer's step for the job's devices, too, if their compiler is here;
        told before that begins.
    """
    run = _DryRun(options, compiling)
    file = run.job_file(path)
    resolved = run.resolved(file) if file else None
    if resolved is not None:
        run.look(resolved, slow=slow)
    report = Report(
        job=str(path), engine=options.engine, findings=tuple(run.found), seconds=run.seconds
    )
    return Validated(report=report, resolved=resolved, text=file.text if file else "")


_BESIDE_THE_STEP = {"data", "memory", "checkpoint", "init_from"}
"""What may be wrong with a run whose step can be compiled all the same."""


class _DryRun:
    def __init__(self, options: Options, compiling: Callable[[str], None] | None) -> None:
        self.options = options
        self.compiling = compiling
        self.found: list[Finding] = []
        self.seconds: dict[str, float] = {}

    def job_file(self, path: pathlib.Path) -> JobFile | None:
        with self._timed("spec"):
            try:
                file = spec_reader.load(path, engine=self.options.engine)
            except SpecError as error:
                self.found += [findings.error("spec", str(p)) for p in error.problems]
                return None
            self.found += [findings.warning("spec", str(problem)) for problem in file.warnings]
            self.found.append(findings.ok("spec", f"{file.spec.name}: every key is understood."))
        return file

    def resolved(self, file: JobFile) -> Resolved | None:
        with self._timed("engine"):
            engine = engine_named(self.options.engine)
            refused = engine.refusals(file.spec)
            self.found += [findings.error("engine", text) for text in refused]
            if not refused:
                self.found.append(findings.ok("engine", f"{self.options.engine} can do all of it."))
        with self._timed("code"):
            try:
                return resolve(file.spec, options=self.options)
            except SnapshotError as error:
                self.found.append(findings.error("code", str(error)))
            except (JobError, ContractError, OSError) as error:
                self.found.append(findings.error("checkpoint", str(error)))
        return None

    def look(self, resolved: Resolved, *, slow: bool) -> None:
        """Everything that needs a run; trials differ in nothing but their names."""
        job = resolved.jobs[0]
        with self._timed("code"):
            self.found += run_checks.code(job, resolved.code)
        with self._timed("checkpoint"):
            for one in resolved.jobs:
                self.found += run_checks.checkpoint(one, given=self.options.run_id is not None)
        if not job.spec.is_trainer:
            self.found.append(
                findings.info("configuration", "not checked: not Lockstep's trainer.")
            )
        elif slow:
            self.found += self._of_trainer(job, resolved)
        with self._timed("data"):
            self.found += (_elsewhere(finding, job) for finding in data(job))
        with self._timed("secrets"):
            self.found += run_checks.secrets(job)
        self.found += run_checks.times(job)

    def _of_trainer(self, job: Job, resolved: Resolved) -> list[Finding]:
        """Asks the trainer, and for its step the compiler, whose word on memory is the last."""
        wrong = any(f.about == "checkpoint" and f.verdict is Verdict.ERROR for f in self.found)
        code, folder = resolved.code, self.options.folder
        with self._timed("trainer"):
            answer = trainer_check.examine(job, code=code, folder=folder, directory=not wrong)
        said = "://" not in job.spec.checkpoint.root  # by run_checks
        found = [
            _elsewhere(finding, job)
            for finding in answer.findings
            if not (said and (finding.about, finding.verdict) == ("checkpoint", Verdict.OK))
        ]
        cluster = answer.compiles_for
        refused = {f.about for f in answer.findings if f.verdict is Verdict.ERROR}
        if self.compiling is None or cluster is None or refused - _BESIDE_THE_STEP:
            return found
        self.compiling(cluster)
        with self._timed("compile"):
            compiled = trainer_check.compiled(job, cluster=cluster, code=code, folder=folder)
        if any(finding.about == "memory" for finding in compiled):
            found = [finding for finding in found if finding.about != "memory"]
        return [*found, *(finding for finding in compiled if finding not in found)]

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + took, 3)


def _elsewhere(finding: Finding, job: Job) -> Finding:
    """What is missing on this machine may be there in a pod, whose folders are its own."""
    if (finding.about, finding.verdict, job.engine) != ("data", Verdict.ERROR, "kubernetes"):
        return finding
    message = f"{finding.message} (Looked at on this machine; pods have other folders.)"
    return findings.warning("data", message)


def data(job: Job) -> Iterator[Finding]:
    """Looks at the dataset that the job file names, its manifest and its licence."""
    dataset = job.spec.dataset
    if dataset is None:
        return
    if "://" in dataset.path:
        yield findings.info("data", f"{dataset.path} is not looked at: an object store.")
        return
    path = pathlib.Path(dataset.path) / "manifest.json"
    try:
        licence = str(json.loads(path.read_text("utf-8"))["manifest"]["licence"]).strip()
    except FileNotFoundError:
        yield findings.error(
            "data",
            f"dataset.path: {path} does not exist. Write the dataset with python -m "
            "input_pipeline.prepare, or correct the path.",
        )
        return
    except (OSError, KeyError, TypeError, ValueError) as error:
        yield findings.error("data", f"dataset.path: {path} has no licence field ({error!r}).")
        return
    if not licence:
        yield findings.error("data", f"dataset.path: {path} names no licence.")
    elif dataset.license and licence != dataset.license:
        yield findings.error(
            "data",
            f"dataset.license: {dataset.license!r} is asked for, but {path} says {licence!r}.",
        )
    else:
        yield findings.ok("data", f"{dataset.path}, licence {licence}.")
