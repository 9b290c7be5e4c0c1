"""A run has one keeper, whoever asks for another and whoever looks, and a moment later as well."""

import fcntl
import threading
from collections.abc import Callable, Iterator

import pytest

from launch.engines.engine import EngineState
from launch.engines.local import Local
from launch.run_status import RunState
from tests.chaos.harness import FakeRun


@pytest.fixture
def run(chaos: Callable[..., FakeRun], monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    made = chaos(hosts=1, steps=10)
    made.folder.joinpath("job.json").write_text(made.job.to_json())
    for name, text in made.environ().items():
        monkeypatch.setenv(name, text)
    return made


@pytest.fixture
def held(run: FakeRun) -> Iterator[Callable[[str], None]]:
    """Holds a lock of the run until somebody has had to wait for it."""
    threads = []

    def hold(name: str) -> None:
        file = (run.folder / name).open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        threads.append(threading.Timer(0.3, file.close))
        threads[-1].start()

    yield hold
    for thread in threads:
        thread.join()


def done(run: FakeRun) -> bool:
    status = run.status()
    return status is not None and status.state is RunState.DONE


def test_from_the_moment_of_its_submission_a_run_is_there(run):
    for _ in range(3):
        assert Local().submit(run.job).state is EngineState.QUEUED
        assert Local().standing(run.job).state in (EngineState.QUEUED, EngineState.RUNNING)
        run.wait_for(lambda: done(run))
        (run.folder / "status.json").unlink()
    assert "already has a supervisor" not in (run.folder / "supervisor.log").read_text()


@pytest.mark.parametrize("name", ["supervisor.lock", "keeper.lock"])
def test_a_run_that_has_just_ended_is_waited_for(run, held, name):
    held(name)
    Local().submit(run.job)
    run.wait_for(lambda: done(run))
