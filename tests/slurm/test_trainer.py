"""The real trainer on a real Slurm: taken off its hosts and back, it ends with the same numbers."""

import dataclasses
import os
import pathlib

import pytest

from launch.exit_codes import RetryClass
from launch.spec import Resources, Runtime, Seconds, SlurmOptions
from tests.chaos.test_trainer import losses, trainer_run
from tests.slurm.lab import Lab
from tests.slurm.runs import SlurmRun

pytestmark = pytest.mark.slow


@pytest.fixture
def run_on(slurm: Lab, monkeypatch: pytest.MonkeyPatch):
    """Makes a run of the trainer on two of the nodes."""
    monkeypatch.setenv("PATH", str(slurm.user_bin), prepend=os.pathsep)
    cache = shared(slurm.shared / "cache")

    def make(name: str, *, without: tuple[str, ...]) -> SlurmRun:
        folder = shared(slurm.shared / name)
        spec = dataclasses.replace(
            trainer_run(folder, cache).spec,
            resources=Resources(accelerator="cpu", hosts=2, per_host=1),
            # Less than GraceTime, so that a save which does not come is ended by us.
            runtime=Runtime(grace_s=Seconds(8.0)),
            slurm=SlurmOptions(exclude=without),
        )
        return SlurmRun(folder, spec, steps=40, lab=slurm, patience_s=300.0)

    return make


def shared(folder: pathlib.Path) -> pathlib.Path:
    """A folder that every user can write to."""
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_a_preempted_run_saves_and_ends_with_the_losses_of_an_unbroken_one(
    slurm: Lab, run_on
) -> None:
    unbroken = run_on("unbroken", without=("n3", "n4"))
    preempted = run_on("preempted", without=("n1", "n2"))
    unbroken.submit()
    preempted.submit()
    preempted.wait_for_step(7)
    urgent = ["sbatch", "-phigh", "-N2", "-wn3,n4", "-o/dev/null", "--wrap=sleep 1"]
    slurm.run(urgent)
    for run in (preempted, unbroken):
        assert run.wait_for_end() == 0, run.story()
    assert losses(preempted) == losses(unbroken)
    first, _ = preempted.reasons()
    assert first.retry is RetryClass.PREEMPTION, preempted.story()
    assert first.saved_step == first.step
    assert len(preempted.job_ids()) == 2
