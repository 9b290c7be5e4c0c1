"""Starts runs of fake ranks under a real supervisor with real agents, and looks at what became.

A run's own folder holds everything, its queue and its state included, so that runs of one test
machine do not meet.
"""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from launch.journal import Journal
from launch.records import JournalEntry, Reason
from launch.run_status import RunStatus
from launch.spec import (
    Budgets,
    Checkpoint,
    Job,
    JobSpec,
    Owner,
    Recovery,
    Resources,
    Runtime,
    Seconds,
    Watchdog,
    Workload,
)
from tests.chaos.fake_rank import final_value

REPOSITORY = pathlib.Path(__file__).parents[2]
FAKE_RANK = pathlib.Path(__file__).with_name("fake_rank.py")
WATCHDOG = Watchdog(
    step_factor=5.0,
    step_min_s=Seconds(1.5),
    step_max_s=Seconds(3.0),
    beat_s=Seconds(0.2),
    lost_after_s=Seconds(4.0),
)
PATIENCE_S = 90.0


@dataclasses.dataclass
class FakeRun:
    """A job of fake ranks in a folder of its own.

    Attributes:
      folder: job folder and run directory.
      spec: the job.
      steps: its length.
      home: where the queue for devices is; empty: in the run's own folder.
      devices: how many devices this machine is said to have.
      patience_s: after which a wait has failed.
    """

    folder: pathlib.Path
    spec: JobSpec
    steps: int
    home: str = ""
    devices: int = 64
    patience_s: float = PATIENCE_S
    processes: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)

    @property
    def job(self) -> Job:
        return Job(
            run_id=f"chaos-{zlib.crc32(str(self.folder).encode()):08x}",
            spec=self.spec,
            engine="local",
            job_dir=str(self.folder),
            code_dir=str(REPOSITORY),
            python=sys.executable,
        )

    def start(self, *, module: str = "launch.keeper") -> subprocess.Popen[bytes]:
        """Starts the keeper (or the bare supervisor)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "job.json").write_text(self.job.to_json())
        command = [sys.executable, "-m", module, "--job_dir", str(self.folder)]
        with (self.folder / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self) -> int:
        """Runs to the end; returns the exit code."""
        return self.start().wait(self.patience_s)

    def environ(self) -> dict[str, str]:
        state = self.folder / "state"
        state.mkdir(parents=True, exist_ok=True)
        for index in range(_hosts(self.spec)):
            self.kernel_log(index).touch()
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "LOCKSTEP_HOME": self.home or str(self.folder / "home"),
            "LOCKSTEP_STATE": str(state),
            "LOCKSTEP_LOCAL_DEVICES": str(self.devices),
            "LOCKSTEP_MIN_RUN_S": "0",
            "LOCKSTEP_KERNEL_LOG": str(self.folder / "kernel-{host}.log"),
        }

    def kernel_log(self, index: int) -> pathlib.Path:
        """The kernel's log of a host of this machine."""
        return self.folder / f"kernel-{socket.gethostname()}-{index}.log"

    def journal(self) -> list[JournalEntry]:
        return Journal(self.folder).entries()

    def events(self, name: str) -> list[JournalEntry]:
        return [entry for entry in self.journal() if entry.event == name]

    def reasons(self) -> list[Reason]:
        return [
            Reason.from_object(entry.details["reason"], source="journal")
            for entry in self.events("attempt_ended")
        ]

    def status(self) -> RunStatus | None:
        return RunStatus.read(str(self.folder))

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Returns the first true answer."""
        until = time.monotonic() + self.patience_s
        while not (found := what()):
            assert time.monotonic() < until, self.story()
            time.sleep(0.02)
        return found

    def wait_for_step(self, step: int) -> None:
        def reached() -> bool:
            status = self.status()
            return status is not None and (status.step or 0) >= step

        self.wait_for(reached)

    def story(self) -> str:
        """All that helps to see why a test failed."""
        parts = [entry.to_json() for entry in self.journal()]
        for path in [self.folder / "supervisor.log", *self.folder.glob("attempts/*/logs/*")]:
            if path.exists():
                parts.append(f"--- {path.name}\n{path.read_text()[-2000:]}")
        return "\n".join(parts)

    def check_end(self) -> None:
        """Holds for every run that was completed, whatever happened to it."""
        final = json.loads((self.folder / "final.json").read_text())
        assert final == {"value": final_value(self.steps), "steps": self.steps}, self.story()
        self.check_attempts()
        self.check_values()

    def check_attempts(self) -> None:
        planned = [entry.attempt for entry in self.events("attempt_planned")]
        assert planned == sorted(set(planned)), "attempts do not grow strictly"

    def check_values(self) -> None:
        """A step that was computed again gave the same; nothing committed was computed again."""
        seen: dict[int, int] = {}
        lines = (self.folder / "values.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            assert seen.setdefault(record["step"], record["value"]) == record["value"]
        assert set(seen) == set(range(1, self.steps + 1))

    def end(self) -> None:
        """Leaves nothing behind, whatever the test did."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        status = self.status()
        if status is not None:
            _kill_tree(status.pid)


def fake_run(
    folder: pathlib.Path,
    *,
    hosts: int = 2,
    steps: int = 20,
    save_every: int = 5,
    step_s: float = 0.02,
    faults: Sequence[str] = (),
    spares: int = 0,
    budgets: Budgets = Budgets(),  # noqa: B008 - frozen
    recovery: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
) -> FakeRun:
    """Describes a run of one rank per host."""
    command = [
        sys.executable,
        "-m",
        "tests.chaos.fake_rank",
        f"--run_dir={folder}",
        f"--steps={steps}",
        f"--save_every={save_every}",
        f"--step_s={step_s}",
        *(f"--fault={fault}" for fault in faults),
    ]
    made = JobSpec(
        name="chaos",
        owner=Owner(team="tests"),
        workload=Workload(command=tuple(command)),
        resources=Resources(accelerator="cpu", hosts=hosts, per_host=1),
        checkpoint=Checkpoint(root=str(folder)),
        runtime=Runtime(grace_s=Seconds(10.0), start_s=Seconds(30.0)),
        recovery=Recovery(
            watchdog=WATCHDOG,
            spares=spares,
            budgets=budgets,
            backoff_s=Seconds(0.1),
            **(recovery or {}),
        ),
        **(spec or {}),
    )
    return FakeRun(folder, made, steps)


def _hosts(spec: JobSpec) -> int:
    return (spec.resources.max_hosts or spec.resources.hosts) + spec.recovery.spares


def _kill_tree(pid: int) -> None:
    """Ends a process and its children, children first."""
    try:
        listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in listed:
        _kill_tree(int(child))
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
