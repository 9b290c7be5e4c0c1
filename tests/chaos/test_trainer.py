"""The real trainer under a real supervisor: after any fault it ends with the very same numbers."""

import dataclasses
import json
import os
import pathlib
import signal
import sys

import pytest

from launch.exit_codes import ExitCode
from launch.spec import Budgets, Recovery, Resources, Runtime, Seconds, Watchdog, Workload
from tests.chaos.harness import FakeRun, fake_run
from tests.chaos.test_faults import rank_pids

pytestmark = pytest.mark.slow

STEPS = 40
GIN = """
TrainConfig.steps = 40
DataConfig.sequence_length = 32
DataConfig.global_batch = 4
ScheduleConfig.peak = 1e-3
RunConfig.task = @LanguageModel()
include 'configs/models/tiny.gin'
include 'configs/partitioning/fsdp.gin'
include 'configs/data/stdlib_bytes.gin'
include 'configs/optimizers/adamw.gin'
EvaluationConfig.max_batches = 1
CheckpointConfig.every = 5
"""
WATCHDOG = Watchdog(step_min_s=Seconds(4.0), step_max_s=Seconds(15.0), beat_s=Seconds(0.5))


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("cache")


def trainer_run(folder: pathlib.Path, cache: pathlib.Path, *faults: str) -> FakeRun:
    """Two ranks of the real trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.gin").write_text(GIN)
    command = (
        sys.executable,
        "-m",
        "tests.chaos.faulty_trainer",
        f"--gin_file={folder / 'run.gin'}",
        f"--run_dir={folder}",
        f"--cache_dir={cache}",
        *(f"--fault={fault}" for fault in faults),
    )
    made = fake_run(folder)
    made.spec = dataclasses.replace(
        made.spec,
        workload=Workload(command=command),
        resources=Resources(accelerator="cpu", hosts=2, per_host=1),
        recovery=Recovery(watchdog=WATCHDOG, budgets=Budgets(), backoff_s=Seconds(0.1)),
        runtime=Runtime(grace_s=Seconds(30.0)),
    )
    made.patience_s = 300.0
    return made


def losses(run: FakeRun) -> dict[int, str]:
    """Step -> row, of what decides whether two runs are the same."""
    rows = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    kept = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in kept] == list(range(1, STEPS + 1))
    return {row["step"]: json.dumps([row["loss"], row["param_norm"]]) for row in kept}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, cache) -> dict[int, str]:
    run = trainer_run(tmp_path_factory.mktemp("unbroken"), cache)
    try:
        assert run.run() == 0, run.story()
        return losses(run)
    finally:
        run.end()


FAULTS = (
    ("kill@8:1:1", 1, 128 + signal.SIGKILL),
    ("sleep@14:0:2", 0, ExitCode.HANG),
    ("raise@18:1:3", 1, ExitCode.EXCEPTION),
    ("kill@23:0:4", 0, 128 + signal.SIGKILL),
    ("stop@28:1:5", 1, ExitCode.HANG),
    ("vanish@33:0:6", None, ExitCode.INFRASTRUCTURE),
)


def test_six_faults_in_a_row_change_no_bit_and_each_is_named(tmp_path, cache, unbroken):
    run = trainer_run(tmp_path / "run", cache, *(fault for fault, _, _ in FAULTS))
    try:
        assert run.run() == 0, run.story()
        assert losses(run) == unbroken
        *reasons, done = run.reasons()
        found = [(reason.rank, reason.code) for reason in reasons]
        assert found == [(rank, code) for _, rank, code in FAULTS], run.story()
        assert done.code == 0
        run.check_attempts()
        saved = [reason.saved_step or 0 for reason in reasons]
        assert saved == sorted(saved)
        assert all(step % 5 == 0 for step in saved)
        assert len(run.events("recovered")) == len(FAULTS)
    finally:
        run.end()


def test_a_preempted_wave_and_a_dead_supervisor_lose_no_step(tmp_path, cache, unbroken):
    run = trainer_run(tmp_path / "run", cache)
    try:
        keeper = run.start()
        run.wait_for_step(7)
        for pid in rank_pids(run):
            os.kill(pid, signal.SIGTERM)
        run.wait_for(lambda: len(run.events("attempt_running")) == 2)
        saved = run.reasons()[0].saved_step
        assert saved == run.reasons()[0].step
        run.wait_for_step(saved + 5)
        os.kill(run.status().pid, signal.SIGKILL)
        assert keeper.wait(run.patience_s) == 0, run.story()
        assert losses(run) == unbroken
        assert run.reasons()[1].cause == "SupervisorLost"
    finally:
        run.end()


def test_a_mistake_of_the_user_is_told_and_not_repeated(tmp_path, cache):
    run = trainer_run(tmp_path / "run", cache)
    (run.folder / "run.gin").write_text(GIN + "DataConfig.global_batch = 5\n")
    try:
        assert run.run() == ExitCode.CONFIGURATION, run.story()
        assert len(run.events("attempt_planned")) == 1
        assert "global_batch" in run.status().next_action
    finally:
        run.end()
