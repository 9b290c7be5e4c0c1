"""An engine in one file: a folder is its cluster, and tests move its jobs along."""

import os
import pathlib
import shlex

from launch.engines.engine import EngineError, EngineState, Rendered, Standing
from launch.spec import Job, JobSpec

FOLDER = "TOY_ENGINE"
"""Environment variable that names the folder."""
NAME = "tests.launch.toy_engine:Toy"


class Toy:
    """See launch.engines.engine.Engine; it runs no supervisor."""

    def refusals(self, spec: JobSpec) -> list[str]:
        """It has no image."""
        return ["code.image: the toy has none."] if spec.code.image else []

    def render(self, job: Job) -> Rendered:
        """One script."""
        text = f"#!/bin/sh\n# {job.run_id}\nexec {shlex.join(job.command())}\n"
        return Rendered(files={"toy.sh": text}, command=("sh", "toy.sh"))

    def submit(self, job: Job) -> Standing:
        """Queues a job, once."""
        if not self._path(job).exists():
            move(job.run_id, EngineState.QUEUED)
        return self.standing(job)

    def standing(self, job: Job) -> Standing:
        """What the folder says."""
        if _is_down():
            return Standing(state=EngineState.UNKNOWN, detail="no answer")
        path = self._path(job)
        if not path.exists():
            return Standing(state=EngineState.UNKNOWN)
        state, _, code = path.read_text().partition(" ")
        exit_code = int(code) if code else None
        return Standing(state=EngineState(state), engine_id="toy-1", exit_code=exit_code)

    def cancel(self, job: Job) -> None:
        """Ends it."""
        _check_up()
        move(job.run_id, EngineState.ENDED, code=75)

    def release(self, job: Job) -> Standing:
        """Queues it again."""
        _check_up()
        move(job.run_id, EngineState.QUEUED)
        return self.standing(job)

    def logs(self, job: Job) -> str | None:
        """It keeps none."""
        return f"first of {job.run_id}\nlast\n" if (_folder() / "logs").exists() else None

    def _path(self, job: Job) -> pathlib.Path:
        _check_up()
        return _folder() / job.run_id


class SupervisedToy(Toy):
    """One whose allocation runs a supervisor; the tests are that."""

    def gang(self, job: Job) -> None:
        """Only asked whether it is there; that alone says that a supervisor runs."""
        raise EngineError(f"{job.run_id}: no allocation of a toy can be entered.")


def move(run_id: str, state: EngineState, *, code: int | None = None) -> None:
    """Puts a job into a state."""
    (_folder() / run_id).write_text(f"{state} {'' if code is None else code}".strip())


def go_down() -> None:
    """From now on nothing can reach the engine."""
    (_folder() / "down").touch()


def _is_down() -> bool:
    return (_folder() / "down").exists()


def _check_up() -> None:
    if _is_down():
        raise EngineError("The toy does not answer. Start it, then run the command again.")


def _folder() -> pathlib.Path:
    return pathlib.Path(os.environ[FOLDER])
