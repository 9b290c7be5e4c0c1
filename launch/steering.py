"""What a person asks of a run that is there: ``cancel``, ``drain``, ``resume``.

The supervisor hears of it through control.json within a beat; where there is none yet, or none at
all, the engine is asked.
"""

import time

from launch.control import Control, Want, user_name
from launch.engines.engine import Engine, EngineState, Standing, SupervisedEngine
from launch.run_status import RunStatus
from launch.spec import Job
from launch.submission import go_on, supervisor_lives


class SteeringError(ValueError):
    """What is asked for makes no sense as the run stands; says what to do."""


def cancel(job: Job, *, engine: Engine) -> str:
    """Ends a run for good, after a save; returns what was done, for people.

    Raises:
      SteeringError: it has ended already.
      EngineError: the engine cannot be reached.
    """
    standing = _alive(job, engine)
    _ask(job, Want.CANCEL)
    if isinstance(engine, SupervisedEngine) and supervisor_lives(job, now=time.time()):
        return f"{job.run_id} saves and ends, within {job.spec.runtime.grace_s:g} s."
    engine.cancel(job)
    return f"{job.run_id} was {standing.state} and is cancelled."


def drain(job: Job, *, engine: Engine) -> str:
    """Saves and stops a run, which may go on later; returns what was done, for people.

    Raises:
      SteeringError: it has ended or stopped already.
      EngineError: the engine cannot be reached.
    """
    standing, status = _alive(job, engine), RunStatus.read(job.job_dir)
    if standing.state is EngineState.HELD and status is not None and status.state.is_final:
        raise SteeringError(f"{job.run_id} is {status.state} already; nothing was changed.")
    _ask(job, Want.DRAIN)
    if not isinstance(engine, SupervisedEngine):
        engine.cancel(job)
    return (
        f"{job.run_id} saves and stops, within {job.spec.runtime.grace_s:g} s. Later: python -m "
        f"launch.main resume {job.run_id}"
    )


def resume(job: Job, *, engine: Engine) -> Standing:
    """Has a run go on that was held, stopped or has ended.

    Raises:
      SteeringError: it is running, or the engine no longer has what it needs.
      EngineError: the engine cannot be reached or refused.
    """
    standing = engine.standing(job)
    control = Control.read(job.job_dir)
    stopping = control is not None and control.want is not Want.GO_ON
    if standing.state is EngineState.QUEUED and stopping:
        _ask(job, Want.GO_ON)  # nobody has acted on it yet
        return standing
    if standing.state in (EngineState.QUEUED, EngineState.RUNNING):
        wait = " It was asked to stop; wait until it has." if stopping else ""
        raise SteeringError(f"{job.run_id} is {standing.state} already.{wait}")
    if refused := engine.refusals(job.spec):
        raise SteeringError(" ".join(refused))
    return go_on(job, engine=engine, now=time.time())


def _alive(job: Job, engine: Engine) -> Standing:
    standing = engine.standing(job)
    if standing.state is EngineState.ENDED:
        code = "" if standing.exit_code is None else f" with {standing.exit_code}"
        raise SteeringError(f"{job.run_id} has ended already{code}.")
    return standing


def _ask(job: Job, want: Want) -> None:
    Control(want=want, by=user_name(), time=time.time()).write(job.job_dir)
