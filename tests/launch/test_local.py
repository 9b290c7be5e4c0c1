"""One supervisor for each local run, one queue for each machine; whole runs are in tests/chaos."""

import fcntl
import pathlib
import sys

import pytest

from launch import steering
from launch.engines.engine import EngineError
from launch.engines.local import Local, LocalGang, open_queue
from launch.engines.local_queue import Ask
from launch.spec import Checkpoint, Job, JobSpec, Owner, Priority, Resources, Workload
from launch.steering import SteeringError


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    spec = JobSpec(
        name="tiny",
        owner=Owner(team="tests"),
        workload=Workload(command=("true",)),
        resources=Resources(accelerator="cpu"),
        checkpoint=Checkpoint(root=str(tmp_path)),
    )
    return Job(run_id="tiny-1", spec=spec, engine="local", job_dir=str(tmp_path),
               code_dir=str(tmp_path), python=sys.executable)  # fmt: skip


def lock(job: Job, kind: int) -> object:
    file = (pathlib.Path(job.job_dir) / "supervisor.lock").open("ab")
    fcntl.flock(file, kind)
    return file


def test_looking_at_a_run_does_not_keep_its_supervisor_from_starting(job, monkeypatch):
    looker = lock(job, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda seconds: looker.close())
    LocalGang(job)
    assert looker.closed


def test_a_second_supervisor_is_refused(job, monkeypatch):
    monkeypatch.setattr("launch.engines.local._LOCK_S", 0.0)
    first = LocalGang(job)
    with pytest.raises(EngineError, match="already has a supervisor"):
        LocalGang(job)
    assert "no supervisor" not in Local().standing(job).detail
    del first


def test_who_looks_is_not_taken_for_a_supervisor(job):
    looker = lock(job, fcntl.LOCK_SH)
    assert "no supervisor" in Local().standing(job).detail
    assert not looker.closed


def test_a_number_of_devices_that_is_none_is_named(job, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_LOCAL_DEVICES", "many")
    with pytest.raises(EngineError, match="LOCKSTEP_LOCAL_DEVICES='many' is no number"):
        Local().refusals(job.spec)


def test_a_run_is_not_resumed_where_it_no_longer_fits(job, monkeypatch):
    folder = pathlib.Path(job.job_dir)
    monkeypatch.setenv("LOCKSTEP_LOCAL_DEVICES", "0")
    with pytest.raises(SteeringError, match="this machine has 0"):
        steering.resume(job, engine=Local())
    assert not (folder / "journal.jsonl").exists()


def test_machines_that_share_a_home_have_queues_of_their_own(job, monkeypatch):
    ask = Ask(job.run_id, "tests", Priority.NORMAL, 1)
    for machine in ("one", "two"):
        monkeypatch.setattr("socket.gethostname", lambda machine=machine: machine)
        queue = open_queue("cpu")
        assert queue.line() == []
        assert queue.ask(ask).held == (0,)
