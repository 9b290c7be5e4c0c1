"""The engine of this machine: starts the gang here, as soon as all its devices are free.

Hosts are only names here: a job of several hosts gets an agent for each, all on this machine.
Standard library only.
"""

import fcntl
import os
import pathlib
import re
import shlex
import socket
import subprocess
import time
import zlib
from collections.abc import Sequence
from typing import BinaryIO

from launch import ranks
from launch.agent import attempt_folder
from launch.control import Control, Want, user_name
from launch.engines.engine import EngineError, EngineState, Rendered, Standing
from launch.engines.local_queue import Ask, LocalQueue
from launch.orders import Host, Orders
from launch.own_code import importable
from launch.run_index import RunIndex
from launch.run_status import RunState, RunStatus
from launch.spec import Job, JobSpec, SpotUse

_CPU_DEVICES = 8
_FIRST_PORT, _PORTS = 20000, 12000
_WAIT_S = 0.25
_AGENTS = "agents.pids"
_LOCK, _KEPT = "supervisor.lock", "keeper.lock"
_LOCK_S, _LEAVES_S = 2.0, 10.0
_SCRIPT = "supervise.sh"


class Local:
    """See launch.engines.engine.Engine."""

    def refusals(self, spec: JobSpec) -> list[str]:
        """Says what this machine does not have."""
        found = []
        need, there = _need(spec), capacity(spec.resources.accelerator)
        if need > there:
            found.append(
                f"resources: {need} {spec.resources.accelerator} are asked for, this machine has "
                f"{there}. Ask for fewer, or submit with --engine=slurm or --engine=kubernetes. "
                "(LOCKSTEP_LOCAL_DEVICES=N says how many there are.)"
            )
        if spec.code.image:
            found.append("code.image: the engine local runs no containers; use code.snapshot.")
        if spec.spot.use is SpotUse.REQUIRE:
            found.append("spot.use: this machine is nobody else's; use allow or never.")
        return found

    def render(self, job: Job) -> Rendered:
        """A script that does what `submit` does, for people."""
        command = shlex.join([job.python, "-m", "launch.keeper", "--job_dir", job.job_dir])
        script = f"#!/bin/sh\ncd {shlex.quote(job.code_dir)} || exit 64\nexec {command}\n"
        return Rendered(files={_SCRIPT: script}, command=("setsid", "sh", _SCRIPT))

    def submit(self, job: Job) -> Standing:
        """Starts the keeper, apart from this terminal; at once, though it may have to wait.

        Those of before have told the end of the run, and may take a moment to leave.
        """
        folder = pathlib.Path(job.job_dir)
        former = _locked(folder / _LOCK, patience_s=_LEAVES_S)
        lock = _locked(folder / _KEPT, patience_s=_LEAVES_S)
        if former is None or lock is None:
            return self.standing(job)
        former.close()
        with lock, (folder / "supervisor.log").open("ab") as output:
            process = subprocess.Popen(
                [job.python, "-m", "launch.keeper", "--job_dir", job.job_dir],
                cwd=job.code_dir,
                env=importable(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # the keeper holds the lock for as long as it lives
            )
        return Standing(state=EngineState.QUEUED, engine_id=str(process.pid))

    def standing(self, job: Job) -> Standing:
        """What the supervisor wrote, if it lives."""
        status = RunStatus.read(job.job_dir)
        lives = self._supervised(job)
        if status is None:
            state = EngineState.QUEUED if lives else EngineState.UNKNOWN
            return Standing(state=state, detail="" if lives else "no supervisor is running")
        pid = str(status.pid)
        if status.state.is_final:
            held = status.state in (RunState.HELD, RunState.STOPPED)
            state = EngineState.HELD if held else EngineState.ENDED
            return Standing(state=state, engine_id=pid, exit_code=status.exit_code)
        if not lives:
            detail = f"its supervisor is gone; python -m launch.main resume {job.run_id}"
            return Standing(state=EngineState.HELD, engine_id=pid, detail=detail)
        waiting = status.state is RunState.WAITING
        state = EngineState.QUEUED if waiting else EngineState.RUNNING
        return Standing(state=state, engine_id=pid, detail=status.next_action)

    def cancel(self, job: Job) -> None:
        """Tells the supervisor, which watches this file."""
        Control(want=Want.CANCEL, by=user_name(), time=time.time()).write(job.job_dir)

    def release(self, job: Job) -> Standing:
        """Starts a supervisor that goes on where the journal ends."""
        return self.submit(job)

    def logs(self, job: Job) -> str | None:
        """They are in the job's folder."""
        del job
        return None

    def gang(self, job: Job) -> "LocalGang":
        """Returns this machine, once the job has its devices."""
        return LocalGang(job)

    def _supervised(self, job: Job) -> bool:
        """Whether a supervisor lives, or a keeper that is about to start one."""
        for path in (pathlib.Path(job.job_dir) / name for name in (_KEPT, _LOCK)):
            if path.exists():
                lock = _locked(path, patience_s=0.0, kind=fcntl.LOCK_SH)
                if lock is None:
                    return True
                lock.close()
        return False


class LocalGang:
    """This machine, in as many hosts as the job has; see launch.engines.engine.Gang."""

    elsewhere = False

    def __init__(self, job: Job) -> None:
        """Stands for the run, of which there can be one at a time.

        Raises:
          EngineError: another supervisor of this run lives.
        """
        self._job = job
        self._lock = _locked(pathlib.Path(job.job_dir) / _LOCK, patience_s=_LOCK_S)
        if self._lock is None:
            raise EngineError(f"Run {job.run_id} already has a supervisor.")
        spec = job.spec
        self._queue = open_queue(spec.resources.accelerator)
        need = _need(spec)
        self._ask = Ask(job.run_id, spec.owner.team, spec.priority, need, agents=self._pids())
        self._devices: tuple[int, ...] = ()

    def waiting(self) -> str | None:
        """Stands in line until it is this job's turn."""
        if not self._devices:
            turn = self._queue.ask(self._ask)
            self._devices = turn.held
            return None if turn.held else turn.why
        return None

    def hosts(self) -> Sequence[Host]:
        """Virtual hosts of this machine, each with its share of the devices."""
        spec = self._job.spec
        size = spec.resources.per_host
        virtual = spec.resources.accelerator == "cpu"
        return [
            Host(
                name=f"{socket.gethostname()}-{index}",
                address="127.0.0.1",
                devices=() if virtual else self._devices[index * size : (index + 1) * size],
            )
            for index in range(_hosts(spec))
        ]

    def notice(self) -> str | None:
        """Another job's turn has come, and this one is preemptible."""
        other = self._queue.wanted_by(self._job.run_id)
        return f"{other} needs the devices" if other else None

    def start(self, orders: Orders) -> Sequence[subprocess.Popen[bytes]]:
        """One agent for each host."""
        logs = attempt_folder(self._job, orders.attempt) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        agents = []
        for host in orders.hosts:
            with (logs / f"agent-{host.name}.log").open("ab") as errors:
                agent = subprocess.Popen(
                    [self._job.python, "-m", "launch.agent", "--host", host.name],
                    env=importable(os.environ),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    process_group=0,
                )
            agents.append(agent)
            ranks.write_pids(self._pids(), [agent.pid for agent in agents])
        return agents

    def reachable(self, host: Host) -> bool:
        """This machine is; that is where this runs."""
        del host
        return True

    def end(self, *, timeout_s: float) -> None:
        """Agents of a dead supervisor have let their processes save; then they are killed."""
        until = time.monotonic() + timeout_s
        while ranks.living(self._pids()) and time.monotonic() < until:
            time.sleep(_WAIT_S)
        ranks.end_leftovers(self._pids())

    def requeue(self, *, exclude: Sequence[str], reason: str) -> None:
        """Gives the devices up; `waiting` stands in line again."""
        del exclude, reason
        self._queue.leave(self._job.run_id)
        self._devices = ()

    def address(self, host: Host, *, attempt: int) -> str:
        """A port of this run and attempt; the next one where something listens there already."""
        first = zlib.crc32(f"{self._job.run_id}/{attempt}".encode()) % _PORTS
        for step in range(_PORTS):
            port = _FIRST_PORT + (first + step) % _PORTS
            with socket.socket() as probe:
                try:
                    probe.bind((host.address, port))
                except OSError:
                    continue
            return f"{host.address}:{port}"
        raise EngineError("No port is free on this machine.")

    def _pids(self) -> pathlib.Path:
        return pathlib.Path(self._job.job_dir) / _AGENTS


def _locked(path: pathlib.Path, *, patience_s: float, kind: int = fcntl.LOCK_EX) -> BinaryIO | None:
    """Returns a file that is locked until it is closed; None where somebody else holds it.

    Whoever only looks whether it is locked shares it, for an instant.
    """
    file, until = path.open("ab"), time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= until:
                file.close()
                return None
            time.sleep(0.01)


def capacity(accelerator: str) -> int:
    """Returns how many accelerators of a kind this machine has.

    A CPU has as many as are asked for: they are made up, so eight may be used at a time, or
    LOCKSTEP_LOCAL_DEVICES.

    Raises:
      EngineError: that is no number.
    """
    given = os.environ.get("LOCKSTEP_LOCAL_DEVICES")
    if given is not None:
        if not re.fullmatch(r"[0-9]{1,6}", given):
            raise EngineError(f"LOCKSTEP_LOCAL_DEVICES={given!r} is no number of devices.")
        return int(given)
    if accelerator == "cpu":
        return _CPU_DEVICES
    devices = pathlib.Path("/dev")
    names = r"accel\d+" if accelerator.startswith("tpu") else r"nvidia\d+"
    return sum(bool(re.fullmatch(names, path.name)) for path in devices.iterdir())


def open_queue(accelerator: str) -> LocalQueue:
    """Opens this machine's queue of a kind of accelerator; other machines may share the folder."""
    kind = "cpu" if accelerator == "cpu" else "accelerators"
    path = RunIndex.of(os.environ).home / f"queue-{socket.gethostname()}-{kind}.sqlite"
    return LocalQueue(path, capacity=capacity(accelerator))


def _hosts(spec: JobSpec) -> int:
    return (spec.resources.max_hosts or spec.resources.hosts) + spec.recovery.spares


def _need(spec: JobSpec) -> int:
    return _hosts(spec) * spec.resources.per_host
