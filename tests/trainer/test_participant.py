"""What a process tells the agent of its host, while it works and when it leaves."""

import os
import signal
import subprocess
import sys
import time

import pytest

from launch.contract import (
    STACKS_SIGNAL,
    Environment,
    Phase,
    Progress,
    RankExit,
    exit_path,
    progress_path,
    stacks_path,
)
from trainer.distributed import Participant

PROGRAM = """
import time
from trainer.distributed import run_guarded

def stuck_here(participant):
    participant.progress("step", step=3)
    print("ready", flush=True)
    time.sleep(60)

run_guarded(stuck_here)
"""


@pytest.fixture
def environment(tmp_path) -> Environment:
    return Environment(
        run_id="r",
        attempt=4,
        coordinator="127.0.0.1:1",
        num_processes=1,
        process_id=0,
        state_dir=str(tmp_path / "state"),
        host_id="node7",
    )


def written(environment: Environment) -> Progress:
    path = progress_path(environment.state_dir, rank=0)
    return Progress.from_json(path.read_text(), source=str(path))


@pytest.fixture
def participant(environment) -> Participant:
    os.makedirs(environment.state_dir)
    return Participant(environment)


def test_progress_has_step_loss_and_what_is_saved(participant, environment):
    participant.progress(Phase.STEP, step=5, loss=2.5)
    participant.committed(4)
    found = written(environment)
    assert (found.step, found.loss, found.saved_step, found.attempt) == (5, 2.5, 4, 4)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_none(participant, environment, loss):
    participant.progress(Phase.STEP, step=5, loss=2.5)
    participant.progress(Phase.SAVE, loss=loss)
    assert written(environment).loss is None


def test_a_phase_is_told_at_once_and_steps_now_and_then(participant, environment):
    participant.progress(Phase.COMPILE)
    for step in range(100):
        participant.progress(Phase.STEP, step=step)
    assert written(environment).step == 0
    participant.progress(Phase.EVALUATE)
    assert (written(environment).phase, written(environment).step) == (Phase.EVALUATE, 99)


def test_a_busy_process_shows_its_stacks_and_tells_how_it_left(environment):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment.variables()},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, STACKS_SIGNAL)
        path = stacks_path(environment.state_dir, rank=0)
        until = time.monotonic() + 60
        while "in stuck_here" not in path.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 75
    finally:
        process.kill()
    path = exit_path(environment.state_dir, rank=0)
    ended = RankExit.from_json(path.read_text(), source=str(path))
    assert (ended.code, ended.host, ended.pid) == (75, "node7", process.pid)
