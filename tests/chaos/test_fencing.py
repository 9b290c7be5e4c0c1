"""What a cut-off process writes never counts, even between its last check and its publish."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from launch.contract import Environment
from tests.chaos.harness import REPOSITORY
from tests.chaos.test_faults import rank_pids
from trainer.checkpoints import fencing, layout
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import open_root


def zombie(run, *, freeze_at: int) -> subprocess.Popen[bytes]:
    """A rank of attempt 1 that nobody supervises, frozen right before it publishes a step."""
    state = run.folder / "zombie"
    state.mkdir()
    environment = Environment(
        run_id=run.job.run_id,
        attempt=1,
        coordinator="127.0.0.1:1",
        num_processes=1,
        process_id=0,
        state_dir=str(state),
    )
    command = [
        sys.executable,
        "-m",
        "tests.chaos.fake_rank",
        f"--run_dir={run.folder}",
        "--steps=20",
        f"--fault=freeze@{freeze_at}:0:1",
    ]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **port_of(environment)},
        stdout=subprocess.DEVNULL,
    )
    run.processes.append(process)
    run.wait_for(lambda: (run.folder / "frozen").exists())
    return process


def port_of(environment: Environment) -> dict[str, str]:
    """Its variables, with a port that is free."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {**environment.variables(), "LAUNCH_COORDINATOR": f"127.0.0.1:{port}"}


@pytest.mark.parametrize("freeze_at", [5, 10])
def test_a_step_published_by_a_fenced_attempt_is_never_read(chaos, freeze_at):
    run = chaos(hosts=2, steps=30, faults=["sleep@23:1:2"])
    process = zombie(run, freeze_at=freeze_at)
    (run.folder / "attempts/1").mkdir(parents=True)
    supervised = run.start()
    run.wait_for(lambda: run.events("attempt_running"))
    run.wait_for_step(22)
    (run.folder / "thaw").touch()  # it had checked before; it publishes now
    process.wait(60)
    root = open_root(str(run.folder / layout.CHECKPOINTS))
    published = StepName(freeze_at, 1)
    assert published in fencing.written(root)
    assert published not in fencing.admitted(root, fencing.current(root))
    assert supervised.wait(60) == 0, run.story()
    final = json.loads((run.folder / "final.json").read_text())
    assert final["steps"] == 30
    assert [entry.attempt for entry in run.events("attempt_planned")] == [2, 3]
    seals = [fencing.Seal.from_json(record, attempt=n) for n, record in sealed(run.folder)]
    assert all(published not in seal.accepted for seal in seals)


def sealed(folder: pathlib.Path) -> list[tuple[int, dict]]:
    """All sealed lists."""
    paths = sorted((folder / layout.CHECKPOINTS / layout.SEALED).glob("*.json"))
    return [(int(path.stem), json.loads(path.read_text())) for path in paths]


def test_a_host_that_hears_nothing_ends_its_own_processes(chaos):
    run = chaos(steps=2000, step_s=0.05)
    run.start()
    run.wait_for_step(3)
    pids = rank_pids(run)
    supervisor = run.status().pid
    os.kill(supervisor, 19)  # silent, but its pipes stay open
    try:
        run.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    finally:
        os.kill(supervisor, 18)
