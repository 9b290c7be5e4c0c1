"""The commands as a user types them on the toy engine, and what a supervisor would write."""

import json
import pathlib
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from launch import main, submission
from launch.records import Phase
from launch.run_status import RunState, RunStatus
from tests.launch.job_files import SMALLEST, write

PROGRAM = SMALLEST.replace("gin_files: [configs/runs/quickstart.gin]", "command: ['true', $x]")


class Door:
    """Runs commands on the toy engine and gives what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: pathlib.Path) -> None:
        self._capsys, self.folder = capsys, folder
        self.file = write(folder, PROGRAM)

    def __call__(self, *argv: str, code: int = 0) -> str:
        """Returns what a command prints, on both streams, and checks its exit code."""
        found = main.main(argv)
        streams = self._capsys.readouterr()
        assert found == code, streams.out + streams.err
        return streams.out + streams.err

    def json(self, *argv: str, code: int = 0) -> dict[str, Any]:
        """Returns the one object that a command prints."""
        found = main.main([*argv, "--json"])
        streams = self._capsys.readouterr()
        assert found == code, streams.out + streams.err
        answer: dict[str, Any] = json.loads(streams.out)
        return answer

    def submitted(self, *argv: str) -> str:
        """Submits the job to the toy and returns its run id."""
        answer = self.json("submit", str(self.file), "--engine=toy", *argv)
        run_id: str = answer["runs"][0]["run_id"]
        return run_id


def on_sleep(monkeypatch: pytest.MonkeyPatch, act: Callable[[float], object]) -> None:
    """Something happens whenever the waiting command pauses; others sleep as ever."""
    clock = types.SimpleNamespace(sleep=act, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(submission, "time", clock)


def status_of(
    job_dir: pathlib.Path, state: RunState, *, code: int | None = None, time: float = 0.0
) -> RunStatus:
    """What a supervisor would have written."""
    status = RunStatus(
        run_id="tiny", state=state, attempt=2, time=time, pid=1, supervisor_host="a",
        hosts=("a",), phase=Phase.STEP, step=7, loss=2.5, saved_step=5,
        next_action="goes on", exit_code=code,
    )  # fmt: skip
    status.write(str(job_dir))
    return status
