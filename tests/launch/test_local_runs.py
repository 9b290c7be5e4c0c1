"""The front door with a real engine behind it: processes start, stop, and go on on this machine."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.launch.kubernetes_jobs import HOSTILE

pytestmark = pytest.mark.slow

REPOSITORY = pathlib.Path(__file__).parents[2]
WAITS = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    "if int(os.environ['LAUNCH_ATTEMPT']) > 1: sys.exit(0)\n"
    "print('ready', flush=True)\n"
    "while True: signal.pause()\n"
)
"""A program that waits to be stopped, and is done when it is started again."""


class Desk:
    """A person at a terminal, with a home and a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "LOCKSTEP_HOME": str(folder / "home"),
            "PYTHONPATH": str(REPOSITORY),
        }

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Types a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "launch.main", *argv],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *argv: str, code: int = 0) -> str:
        """Types a command and reads what it prints."""
        process = self.start(*argv)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == code, text
        return text

    def job(self, *command: str, **more: Any) -> str:
        """Writes a job file."""
        work = {"command": list(command), **more.pop("workload", {})}
        spec = {
            "version": 1,
            "name": "tiny",
            "owner": {"team": "research"},
            "workload": work,
            "resources": {"accelerator": "cpu"},
            "runtime": {"grace_s": 20},
            "checkpoint": {"root": "runs/tiny"},
            **more,
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(spec))
        return "job.yaml"


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    for run in json.loads(desk.run("status", "--json"))["runs"]:
        if run["state"] not in ("done", "failed", "stopped", "held", "ended"):
            desk.run("cancel", run["run_id"])


def until(process: subprocess.Popen[str], words: str) -> str:
    """Reads lines until one holds ``words``."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if words in line:
            return "".join(read)
    raise AssertionError("".join(read))


def test_hostile_values_reach_the_program_as_they_are_written(desk: Desk) -> None:
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['X']]))"
    value = "".join(HOSTILE)
    file = desk.job(sys.executable, "-c", program, *HOSTILE, workload={"env": {"X": value}})
    desk.run("submit", file, "--run_id=tiny-1", "--wait")
    (line,) = json.loads(desk.run("logs", "tiny-1", "--json"))["lines"]
    assert json.loads(line.removeprefix("[0] ")) == [list(HOSTILE), value]


def test_interrupting_the_wait_leaves_the_run_running_until_it_is_cancelled(desk: Desk) -> None:
    file = desk.job(sys.executable, "-c", WAITS)
    waiting = desk.start("submit", file, "--run_id=tiny-1", "--wait")
    until(waiting, "attempt 1")
    waiting.send_signal(signal.SIGINT)
    text, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, text
    assert "The run goes on" in text
    following = desk.start("logs", "tiny-1", "--follow")
    until(following, "[0] ready")
    again = desk.start("submit", file, "--wait")
    until(again, "nothing was changed")
    desk.run("cancel", "tiny-1")
    again.communicate(timeout=60)
    assert again.returncode == 75
    following.communicate(timeout=60)
    assert following.returncode == 0
    assert json.loads(desk.run("status", "tiny-1", "--json"))["state"] == "stopped"


def test_a_drained_run_goes_on_when_it_is_resumed(desk: Desk) -> None:
    file = desk.job(sys.executable, "-c", WAITS)
    waiting = desk.start("submit", file, "--run_id=tiny-1", "--wait")
    until(waiting, "attempt 1")
    following = desk.start("logs", "tiny-1", "--follow")
    until(following, "[0] ready")
    desk.run("drain", "tiny-1")
    following.communicate(timeout=60)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 75
    assert "goes on" in desk.run("resume", "tiny-1")
    desk.run("submit", file, "--wait")
    story = desk.run("explain", "tiny-1")
    assert story.index("is stopped") < story.index("resumed by") < story.index("is complete")


def test_a_corrected_job_file_is_submitted_again_and_goes_on(desk: Desk) -> None:
    file = desk.job(sys.executable, "-c", "raise SystemExit(64)")
    desk.run("submit", file, "--run_id=tiny-1", "--wait", code=64)
    desk.job(sys.executable, "-c", "print('corrected')")
    assert "tiny-1 goes on" in desk.run("submit", file, "--wait")
    assert desk.run("logs", "tiny-1") == "[0] corrected\n"


def test_what_runs_is_the_snapshot_and_not_what_became_of_the_folder(desk: Desk) -> None:
    (desk.folder / "program.py").write_text("print('as submitted')\n")
    for command in (["init", "-q"], ["add", "program.py"]):
        subprocess.run(["git", "-C", str(desk.folder), *command], check=True, timeout=60)
    file = desk.job(sys.executable, "program.py", code={"snapshot": "."})
    desk.run("submit", file, "--run_id=tiny-1", "--wait")
    (desk.folder / "program.py").write_text("print('changed since')\n")
    assert desk.run("logs", "tiny-1") == "[0] as submitted\n"
    job = json.loads((desk.folder / "runs/tiny/job.json").read_text())
    assert job["code_digest"].startswith("sha256:")


def test_secrets_are_in_no_file_of_the_run(desk: Desk) -> None:
    secret = desk.folder / "key"
    secret.write_text("hunter2-hunter2")
    secret.chmod(0o600)
    program = "import os; text = open(os.environ['API_KEY_FILE']).read(); print(len(text))"
    references = [{"name": "API_KEY", "ref": f"file:{secret}"}]
    file = desk.job(sys.executable, "-c", program, secrets=references)
    desk.run("submit", file, "--run_id=tiny-1", "--wait")
    assert desk.run("logs", "tiny-1") == "[0] 15\n"
    for path in desk.folder.rglob("*"):
        if path.is_file() and path != secret:
            assert b"hunter2" not in path.read_bytes(), path
