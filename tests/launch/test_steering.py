"""A person's wish reaches the supervisor where one lives, and the engine where none does."""

import pathlib
import time

import pytest

from launch import jobs, spec_reader, steering
from launch.control import Control, Want
from launch.engines.engine import EngineError, EngineState
from launch.jobs import Options
from launch.journal import Journal
from launch.run_index import RunIndex
from launch.run_status import RunState, RunStatus
from launch.spec import Job
from launch.steering import SteeringError
from tests.launch import toy_engine
from tests.launch.job_files import write
from tests.launch.toy_engine import SupervisedToy, Toy


@pytest.fixture
def job(here: pathlib.Path) -> Job:
    """A job that was submitted to the toy."""
    index = RunIndex(here)
    options = Options(engine="supervised_toy", index=index, run_id="tiny-1")
    job = jobs.resolve(spec_reader.load(write(here)).spec, options=options).jobs[0]
    jobs.prepare(job, code=None, text="", index=index)
    toy_engine.move(job.run_id, EngineState.RUNNING)
    return job


def supervised(job: Job, *, age: float = 0.0, state: RunState = RunState.RUNNING) -> None:
    RunStatus(
        run_id=job.run_id, state=state, attempt=1, time=time.time() - age, pid=1,
        supervisor_host="a",
    ).write(job.job_dir)  # fmt: skip


def wanted(job: Job) -> Want | None:
    control = Control.read(job.job_dir)
    return control.want if control else None


def state(job: Job) -> EngineState:
    return Toy().standing(job).state


def test_a_living_supervisor_is_asked_and_the_engine_is_left_alone(job: Job) -> None:
    supervised(job)
    assert "saves and ends, within 120 s" in steering.cancel(job, engine=SupervisedToy())
    assert (wanted(job), state(job)) == (Want.CANCEL, EngineState.RUNNING)
    assert "saves and stops" in steering.drain(job, engine=SupervisedToy())
    assert (wanted(job), state(job)) == (Want.DRAIN, EngineState.RUNNING)


@pytest.mark.parametrize("final", [RunState.HELD, RunState.STOPPED])
def test_what_has_stopped_already_is_not_drained(job: Job, final: RunState) -> None:
    supervised(job, state=final)
    toy_engine.move(job.run_id, EngineState.HELD)
    with pytest.raises(SteeringError, match=f"is {final} already"):
        steering.drain(job, engine=SupervisedToy())
    assert wanted(job) is None


@pytest.mark.parametrize("age", [None, 3600.0])
def test_without_a_supervisor_the_engine_cancels(job: Job, age: float | None) -> None:
    if age is not None:
        supervised(job, age=age)
    assert "was running and is cancelled" in steering.cancel(job, engine=SupervisedToy())
    assert (wanted(job), state(job)) == (Want.CANCEL, EngineState.ENDED)


def test_an_engine_without_supervisors_drains_by_its_own_means(job: Job) -> None:
    supervised(job)
    assert "resume tiny-1" in steering.drain(job, engine=Toy())
    assert (wanted(job), state(job)) == (Want.DRAIN, EngineState.ENDED)


@pytest.mark.parametrize("command", [steering.cancel, steering.drain])
def test_what_has_ended_cannot_be_ended_again(job: Job, command: object) -> None:
    toy_engine.move(job.run_id, EngineState.ENDED, code=0)
    with pytest.raises(SteeringError, match="has ended already with 0"):
        command(job, engine=SupervisedToy())  # type: ignore[operator]
    assert wanted(job) is None


def test_a_held_run_goes_on_and_its_old_status_is_not_believed(job: Job) -> None:
    supervised(job, state=RunState.HELD)
    steering.drain(job, engine=SupervisedToy())
    toy_engine.move(job.run_id, EngineState.HELD)
    assert steering.resume(job, engine=SupervisedToy()).state is EngineState.QUEUED
    assert wanted(job) is Want.GO_ON
    assert RunStatus.read(job.job_dir) is None
    assert [entry.event for entry in Journal(job.job_dir).entries()] == ["resumed"]


def test_a_running_run_cannot_be_resumed(job: Job) -> None:
    with pytest.raises(SteeringError, match=r"is running already\.$"):
        steering.resume(job, engine=SupervisedToy())
    supervised(job)
    steering.drain(job, engine=SupervisedToy())
    with pytest.raises(SteeringError, match="wait until it has"):
        steering.resume(job, engine=SupervisedToy())


def test_a_stop_that_nobody_has_heard_of_is_taken_back(job: Job) -> None:
    toy_engine.move(job.run_id, EngineState.QUEUED)
    steering.drain(job, engine=SupervisedToy())
    assert steering.resume(job, engine=SupervisedToy()).state is EngineState.QUEUED
    assert wanted(job) is Want.GO_ON
    with pytest.raises(SteeringError, match="is queued already"):
        steering.resume(job, engine=SupervisedToy())


def test_an_engine_that_does_not_answer_is_not_taken_for_an_end(job: Job) -> None:
    toy_engine.go_down()
    with pytest.raises(EngineError, match="does not answer"):
        steering.cancel(job, engine=Toy())
