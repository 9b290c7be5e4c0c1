"""Runs of fake ranks on the laboratory, submitted by an ordinary user through the engine."""

import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Sequence
from typing import Any

from launch import submission
from launch.engines.engine import Standing
from launch.engines.slurm import Slurm
from launch.spec import Job, Seconds, SlurmOptions, Topology, Watchdog
from tests.chaos.harness import FakeRun, fake_run
from tests.slurm.lab import Lab, wait_until

# Longer silences than in tests on one machine: srun, four slurmd and the ranks share two cores with
# other tests, and a machine that stands still must not look like a fault.
WATCHDOG = Watchdog(
    step_factor=5.0,
    step_min_s=Seconds(12.0),  # a lost host is noticed before its peers are stuck
    step_max_s=Seconds(16.0),
    beat_s=Seconds(0.5),
    lost_after_s=Seconds(6.0),
)


@dataclasses.dataclass
class SlurmRun(FakeRun):
    """A run of fake ranks on a laboratory."""

    lab: Lab | None = None

    @property
    def job(self) -> Job:
        return dataclasses.replace(super().job, engine="slurm", run_id=self.folder.name)

    def submit(self) -> Standing:
        """Hands the run over, as the command does."""
        (self.folder / "job.json").write_text(self.job.to_json())
        return Slurm().submit(self.job)

    def standing(self) -> Standing:
        return Slurm().standing(self.job)

    def cancel(self) -> None:
        Slurm().cancel(self.job)

    def resume(self) -> None:
        submission.go_on(self.job, engine=Slurm(), now=time.time())

    def wait_for_end(self) -> int:
        """Returns the run's exit code."""

        def ended() -> bool:
            status = self.status()
            return status is not None and status.state.is_final

        self.wait_for(ended)
        status = self.status()
        assert status is not None
        assert status.exit_code is not None
        return status.exit_code

    def finish(self) -> int:
        """Submits the run, and returns its exit code."""
        self.submit()
        return self.wait_for_end()

    def job_ids(self) -> list[str]:
        """Slurm's jobs of the run, oldest first."""
        text = self._lab.run(
            ["squeue", "-h", "-t", "all", f"--name={self.job.run_id}", "-o", "%i"]
        ).stdout
        return sorted(text.split(), key=int)

    def show(self, field: str) -> str:
        """A field of the newest job, as Slurm has it."""
        job = self._lab.run(["scontrol", "-o", "show", "job", self.job_ids()[-1]]).stdout
        found = re.search(rf"(?:^|\s){field}=(\S*)", job)
        return found[1] if found else ""

    def wait_for_state(self, state: str) -> None:
        """Returns when the newest job is in a state."""
        wait_until(lambda: self.show("JobState") == state, what=f"{state} of {self.job.run_id}")

    def rank_host(self, rank: int) -> str:
        """The node of a rank of the newest attempt."""
        return self.events("attempt_planned")[-1].details["hosts"][rank]

    @property
    def _lab(self) -> Lab:
        assert self.lab is not None
        return self.lab


def slurm_run(
    lab: Lab,
    name: str,
    *,
    hosts: int = 3,
    steps: int = 40,
    step_s: float = 0.05,
    faults: Sequence[str] = (),
    options: SlurmOptions = SlurmOptions(),  # noqa: B008 - frozen
    runtime: dict[str, Any] | None = None,
    resources: dict[str, Any] | None = None,
    recovery: dict[str, Any] | None = None,
    topology: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    folder: pathlib.Path | None = None,
) -> SlurmRun:
    """Describes a run whose folder every user of the laboratory can write to."""
    folder = folder or lab.shared / name
    folder.mkdir()
    os.chmod(folder, 0o777)
    base = fake_run(
        folder, hosts=hosts, steps=steps, step_s=step_s, faults=faults, spec={"slurm": options}
    ).spec
    made = dataclasses.replace(
        base,
        runtime=dataclasses.replace(base.runtime, **(runtime or {})),
        resources=dataclasses.replace(base.resources, **(resources or {})),
        topology=Topology(**(topology or {})),
        recovery=dataclasses.replace(base.recovery, watchdog=WATCHDOG, **(recovery or {})),
        **(spec or {}),
    )
    return SlurmRun(folder, made, steps, lab=lab)
