"""What lies about a run may be damaged, gone or full: the run goes on, or says what it lacks."""

import dataclasses
import errno
import os
import pathlib
import subprocess
import sys
from unittest import mock

import pytest

from launch.engines.engine import engine_named
from launch.exit_codes import ExitCode
from launch.run_status import RunState
from launch.supervisor import Supervisor
from tests.chaos.harness import PATIENCE_S, REPOSITORY

TORN = (b"", b"\xff\xfe", b'{"version": 1, "wa', b"[]", b"12\nx y\n")


@pytest.mark.parametrize("content", TORN)
@pytest.mark.parametrize("name", ["control.json", "status.json", "agents.pids"])
def test_a_torn_file_ends_no_run(chaos, name, content):
    run = chaos(steps=40)
    keeper = run.start()
    run.wait_for_step(5)
    (run.folder / name).write_bytes(content)
    os.kill(supervisor(run), 9)
    (run.folder / name).write_bytes(content)
    assert keeper.wait(PATIENCE_S) == 0, run.story()
    run.check_end()
    assert run.status().state is RunState.DONE


def supervisor(run) -> int:
    return run.events("supervisor_started")[-1].details["pid"]


def without_python(run) -> None:
    job = dataclasses.replace(run.job, python=str(run.folder / "python"))
    run.folder.joinpath("job.json").write_text(job.to_json())


def without_a_folder_for_logs(run) -> None:
    (run.folder / "attempts").write_text("a file")


def with_somebody_elses_state(run) -> None:
    (run.folder / "state").mkdir()
    (run.folder / "state" / f"lockstep-{os.getuid()}").write_text("a file")


@pytest.mark.parametrize(
    ("take", "told"),
    [
        (without_python, "python"),
        (without_a_folder_for_logs, "attempts/1"),
        (with_somebody_elses_state, "lockstep-"),
    ],
)
def test_a_host_that_lacks_something_is_held_at_once_and_says_what(chaos, take, told):
    run = chaos()
    run.folder.joinpath("job.json").write_text(run.job.to_json())
    take(run)
    command = [sys.executable, "-m", "launch.keeper", "--job_dir", str(run.folder)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=run.environ(),
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
    )
    assert done.returncode == ExitCode.HOLD, done.stderr.decode()
    assert run.status().state is RunState.HELD
    assert told in run.status().next_action
    assert len(run.events("attempt_planned")) == 1


def test_a_status_that_has_no_room_ends_no_run(chaos, monkeypatch):
    run = chaos(steps=10)
    run.folder.joinpath("job.json").write_text(run.job.to_json())
    for name, text in run.environ().items():
        monkeypatch.setenv(name, text)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("launch.run_status.replace_file", mock.Mock(side_effect=full))
    gang = engine_named("local").gang(run.job)
    assert Supervisor(run.job, gang, interrupted=lambda: False).run() == 0
    run.check_end()


def test_an_end_that_only_the_journal_knows_is_told_by_the_next_supervisor(chaos):
    run = chaos(steps=5)
    assert run.run() == 0
    before = run.status()
    for state in (RunState.RUNNING, None):
        path = pathlib.Path(run.folder / "status.json")
        path.unlink()
        if state is not None:
            dataclasses.replace(before, state=state, exit_code=None).write(str(run.folder))
        assert run.run() == 0
        after = run.status()
        assert (after.state, after.exit_code) == (RunState.DONE, 0)
        assert after.next_action == before.next_action
