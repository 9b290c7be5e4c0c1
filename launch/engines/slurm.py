"""The engine of Slurm: sbatch for the allocation, in which the run's own supervisor goes on.

Slurm queues, shares, preempts and places; recovery is the supervisor's (docs/slurm.md). Runs are
found by their own id, which is the job's name. Standard library only.
"""

import pathlib
import time

from launch import fabric
from launch.control import Control, Want, user_name
from launch.engines import slurm_accounting, slurm_commands, slurm_script, slurm_submission
from launch.engines.engine import EngineError, EngineState, Gang, Rendered, Standing
from launch.engines.slurm_submission import QueuedJob
from launch.journal import Journal
from launch.records import replace_file
from launch.recovery import History
from launch.run_status import RunState, RunStatus
from launch.spec import Job, JobSpec

_PATIENCE_S = 20.0
_LOOK_S = 3.0
_SILENT_S = 120.0
_HELD = ("JobHeld", "job requeued in held state", "launch failed requeued held")


class Slurm:
    """See launch.engines.engine.Engine."""

    def refusals(self, spec: JobSpec) -> list[str]:
        """Says what Slurm, as Lockstep uses it, does not do."""
        found = []
        if spec.code.image:
            found.append(
                "code.image: the engine slurm starts no containers, because agent and scontrol "
                "must see the host; use code.snapshot, or start the container in workload.command."
            )
        if "://" not in spec.checkpoint.root and "\\" in spec.checkpoint.root:
            found.append("checkpoint.root: Slurm does not take a path with a backslash.")
        kind = spec.resources.accelerator
        if kind != "cpu" and not fabric.is_gpu(kind):
            found.append(
                f"resources.accelerator: {kind} has no generic resource (--gres) that Slurm sites "
                "agree on; use a GPU or cpu."
            )
        found += [
            f"secrets.{secret.name}: {secret.ref} is a reference to Kubernetes; use file:/path."
            for secret in spec.secrets
            if secret.ref.startswith("k8s:")
        ]
        if spec.runtime.grace_s > 65000:
            found.append("runtime.grace_s: Slurm warns at most 65535 seconds ahead.")
        return found

    def render(self, job: Job) -> Rendered:
        """The script, and sbatch with all its options."""
        script = slurm_script.SCRIPT
        return Rendered(
            files={script: slurm_script.script(job)},
            command=("sbatch", "--parsable", *slurm_script.options(job), script),
        )

    def submit(self, job: Job) -> Standing:
        """Submits the run, unless a job of it is queued or runs."""
        folder = pathlib.Path(job.job_dir) / slurm_submission.RENDERED
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.render(job).files.items():
            replace_file(folder / name, text=text)
        history = History.of(Journal(job.job_dir).entries())
        avoided = history.avoided(now=time.time(), for_s=job.spec.recovery.exclude_s)
        job_id = slurm_submission.submit(job, patience_s=_PATIENCE_S, exclude=avoided)
        return Standing(state=EngineState.QUEUED, engine_id=job_id)

    def standing(self, job: Job) -> Standing:
        """What squeue says; where it has forgotten the run, its own records and sacct."""
        try:
            jobs = slurm_submission.queued(job, patience_s=_LOOK_S)
        except EngineError as error:
            return Standing(state=EngineState.UNKNOWN, detail=str(error))
        living = [each for each in jobs if each.lives or each.state == "COMPLETING"]
        if living:
            return _living(living[-1])
        return _ended(job, jobs)

    def cancel(self, job: Job) -> None:
        """The supervisor, which watches the file, saves and ends; what waits is taken back."""
        Control(want=Want.CANCEL, by=user_name(), time=time.time()).write(job.job_dir)
        silent = _supervisor_is_silent(job)
        for each in slurm_submission.queued(job, patience_s=_PATIENCE_S):
            if each.state == "PENDING" or (each.lives and silent):
                _scancel(each.id)

    def release(self, job: Job) -> Standing:
        """Releases a held job, or submits the run again."""
        for each in slurm_submission.queued(job, patience_s=_PATIENCE_S):
            if each.state == "PENDING" and each.reason.startswith(_HELD):
                command = ["scontrol", "release", each.id]
                slurm_commands.run(command, patience_s=_PATIENCE_S)
        return self.submit(job)

    def logs(self, job: Job) -> str | None:
        """They are in the job's folder."""
        del job
        return None

    def gang(self, job: Job) -> Gang:
        """Returns the allocation around this process."""
        from launch.engines.slurm_gang import SlurmGang

        return SlurmGang.around(job)


def _scancel(job_id: str) -> None:
    try:
        slurm_commands.run(["scancel", job_id], patience_s=_PATIENCE_S)
    except slurm_commands.Refused as error:
        if "invalid job id" not in str(error).lower() and "already" not in str(error).lower():
            raise


def _supervisor_is_silent(job: Job) -> bool:
    """Whether nobody is there to hear of a file."""
    status = RunStatus.read(job.job_dir)
    return status is None or time.time() - status.time > _SILENT_S


def _living(queued: QueuedJob) -> Standing:
    if queued.state != "PENDING":
        return Standing(state=EngineState.RUNNING, engine_id=queued.id, detail=f"on {queued.nodes}")
    held = queued.reason.startswith(_HELD)
    reason = "for Slurm to look at it" if queued.reason == "None" else queued.reason
    return Standing(
        state=EngineState.HELD if held else EngineState.QUEUED,
        engine_id=queued.id,
        detail=f"{'held' if held else 'waits'}: {reason}",
    )


def _ended(job: Job, jobs: list[QueuedJob]) -> Standing:
    """The run's own word first: an allocation ends more often than a run does."""
    engine_id = jobs[-1].id if jobs else ""
    status, control = RunStatus.read(job.job_dir), Control.read(job.job_dir)
    if status is not None and status.state.is_final:
        held = status.state in (RunState.HELD, RunState.STOPPED)
        state = EngineState.HELD if held else EngineState.ENDED
        return Standing(state=state, engine_id=engine_id, exit_code=status.exit_code)
    if control is not None and control.want is Want.CANCEL:
        return Standing(state=EngineState.ENDED, engine_id=engine_id, detail="cancelled")
    how = jobs[-1].state if jobs else slurm_accounting.last_end(job)
    if how is None:
        detail = "Slurm does not know this run; launch submit or resume hands it over"
        return Standing(state=EngineState.UNKNOWN, detail=detail)
    detail = f"Slurm ended its job ({how}); launch resume {job.run_id} goes on"
    return Standing(state=EngineState.HELD, engine_id=engine_id, detail=detail)
