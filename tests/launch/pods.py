"""Pods of a set as processes of this machine, with the variables that Kubernetes gives them."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from launch.engines.kubernetes_names import pod_count
from launch.journal import Journal
from launch.spec import Job
from tests.launch import kubernetes_jobs as jobs

REPOSITORY = pathlib.Path(__file__).parents[2]
PATIENCE_S = 60.0


class Pods:
    """The pods of one run."""

    def __init__(self, job: Job, folder: pathlib.Path, *, program: Sequence[str] = ()) -> None:
        """Nothing is started yet; ``program`` runs instead of the module launch.pod."""
        self.job, self.folder = job, folder
        self._program = tuple(program) or (sys.executable, "-m", "launch.pod")
        self._port = free_port()
        (folder / "config").mkdir(parents=True)
        (folder / "config" / "job.json").write_text(job.to_json())
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, uid: str = "set-1", restart: int = 0) -> None:
        """Starts all pods of an incarnation."""
        self.processes = [
            self._start(index, uid=uid, restart=restart)
            for index in range(pod_count(self.job.spec))
        ]

    def _start(self, index: int, *, uid: str, restart: int) -> subprocess.Popen[bytes]:
        each = pod_count(self.job.spec) // self.job.spec.topology.slices
        state = self.folder / f"state{index}"
        state.mkdir(exist_ok=True)
        variables = {
            "PYTHONPATH": str(REPOSITORY),
            "LOCKSTEP_PORT": str(self._port),
            "LOCKSTEP_CONFIG": str(self.folder / "config"),
            "LOCKSTEP_STATE": str(state),
            "LOCKSTEP_COORDINATOR_HOST": "127.0.0.1",
            "LOCKSTEP_NODE": f"node-{index}",
            "LOCKSTEP_SET_UID": uid,
            "LOCKSTEP_RESTART": str(restart),
            "LOCKSTEP_SLICE": str(index // each),
            "JOB_COMPLETION_INDEX": str(index % each),
        }
        with self.output_path(index).open("ab") as output:
            return subprocess.Popen(
                self._program,
                cwd=self.folder,
                env={**os.environ, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def codes(self) -> list[int]:
        """Waits until all pods have ended; returns their exit codes."""
        return [process.wait(PATIENCE_S) for process in self.processes]

    def end(self) -> None:
        """Ends what is left, with all that it has started."""
        for process in self.processes:
            kill_container(process)

    def output_path(self, index: int) -> pathlib.Path:
        return self.folder / f"pod{index}.out"

    def output(self, index: int) -> str:
        """Returns what a pod has shown."""
        return self.output_path(index).read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the details of the journal's entries of a kind."""
        entries = Journal(self.job.job_dir).entries()
        return [{**e.details, "attempt": e.attempt} for e in entries if e.event == name]

    def wait_for(self, what: Callable[[], object]) -> None:
        """Returns when something is so."""
        until = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < until, f"not in time; {[self.output(0)]}"
            time.sleep(0.02)


def free_port() -> int:
    """Returns a port that nobody listens at, none of those that the kernel gives to others."""
    while True:
        port = random.randrange(10_000, 19_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def kill_container(process: subprocess.Popen[bytes]) -> None:
    """Ends a pod with all that is in it, the first process first: it would start others again."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def descendants(pid: int) -> list[int]:
    """Returns all descendants of a process."""
    found = []
    tasks = pathlib.Path(f"/proc/{pid}/task")
    for path in tasks.glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def child_of(pid: int, *, role: str) -> int:
    """Returns the process id of a child that plays a role."""
    for child in descendants(pid):
        words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if role.encode() in words:
            return child
    raise LookupError(role)


def job(folder: pathlib.Path, program: str, *, hosts: int = 2, **changes: Any) -> Job:
    """Returns a run of a Python program whose folder outlives its pods."""
    spec = jobs.spec(
        resources=dataclasses.replace(jobs.spec().resources, accelerator="cpu", hosts=hosts),
        workload=dataclasses.replace(
            jobs.spec().workload, gin_files=(), command=(sys.executable, "-c", program)
        ),
    )
    spec = dataclasses.replace(spec, **changes)
    return jobs.job(spec, job_dir=str(folder / "run"), code_dir=".")


def described(text: str) -> list[dict[str, Any]]:
    """Returns the JSON objects among lines of output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
