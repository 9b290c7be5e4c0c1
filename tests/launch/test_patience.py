"""A scheduler is asked ever less often while nothing changes, and at once when something does."""

import pathlib

import pytest

from launch import jobs, spec_reader
from launch.engines.engine import EngineState, Standing
from launch.jobs import Options
from launch.patience import MOST, Patience
from launch.run_index import RunIndex
from launch.run_status import RunState, RunStatus
from launch.spec import Job
from tests.launch.job_files import write
from tests.launch.toy_engine import Toy


class Counting(Toy):
    """Counts how often it is asked."""

    state = EngineState.QUEUED
    asked = 0

    def standing(self, job: Job) -> Standing:
        """Returns its state."""
        self.asked += 1
        return Standing(state=self.state)


@pytest.fixture
def job(here: pathlib.Path) -> Job:
    options = Options(engine="toy", index=RunIndex(here), run_id="tiny-1")
    return jobs.resolve(spec_reader.load(write(here)).spec, options=options).jobs[0]


def test_the_same_answer_is_asked_for_ever_less_often(job: Job) -> None:
    engine = Counting()
    patience = Patience(job, engine=engine)
    looks = [patience.standing().state for _ in range(1000)]
    assert set(looks) == {EngineState.QUEUED}
    assert 1000 / MOST <= engine.asked <= 1000 / MOST + 6


def test_a_change_is_seen_within_the_longest_pause_and_watched_closely_again(job: Job) -> None:
    engine = Counting()
    patience = Patience(job, engine=engine)
    for _ in range(100):
        patience.standing()
    engine.state = EngineState.RUNNING
    looks = 1
    while patience.standing().state is not EngineState.RUNNING:
        looks += 1
    assert looks <= MOST
    asked = engine.asked
    patience.standing()
    assert engine.asked == asked + 1


@pytest.mark.parametrize("state", [EngineState.ENDED, EngineState.HELD])
def test_the_end_is_the_engines_or_the_supervisors(job: Job, state: EngineState) -> None:
    engine = Counting()
    assert not Patience(job, engine=engine).is_final()
    engine.state = state
    assert Patience(job, engine=engine).is_final()
    engine.state = EngineState.RUNNING
    pathlib.Path(job.job_dir).mkdir(parents=True)
    status = RunStatus(run_id="tiny-1", state=RunState.DONE, attempt=1, time=0.0, pid=1,
                       supervisor_host="a")  # fmt: skip
    status.write(job.job_dir)
    asked = engine.asked
    assert Patience(job, engine=engine).is_final()
    assert engine.asked == asked
