"""The allocation of a Slurm job, as the run's supervisor uses it from inside.

One ``srun`` per attempt starts an agent on each host and carries the lines of all of them. A second
one starts beside the first when that still waits for a host that is gone. Standard library only.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Self

from launch import ranks
from launch.agent import attempt_folder
from launch.engines import slurm_commands as commands
from launch.engines import slurm_nodes, slurm_script, slurm_submission
from launch.engines.engine import EngineError, LeftAllocation
from launch.orders import Host, Orders
from launch.own_code import importable
from launch.spec import Job

PATIENCE_S = 900.0
"""How long a controller may be away while a run that needs it waits."""

_FIRST_PORT, _PORTS = 20000, 12000
_SLURMD_PORT = 6818
_PROBE_S = 1.0
_PROBES = 2
_PING_S = 4.0
_WAIT_S = 0.25
_STEP_S, _STEP_PAUSE_S = 60.0, 1.0
_NODE = "SLURMD_NODENAME"
_LOOKOUT = "lookout"


class SlurmGang:
    """See launch.engines.engine.Gang."""

    elsewhere = True

    def __init__(self, job: Job, *, environ: Mapping[str, str]) -> None:
        """Knows the allocation from the variables of a batch script.

        Raises:
          EngineError: not inside an allocation, or the run goes on in another one.
        """
        self._job, self._environ = job, dict(environ)
        self._job_id = environ.get("SLURM_JOB_ID", "")
        self._names = slurm_nodes.expand(environ.get("SLURM_JOB_NODELIST", ""))
        if not self._job_id or not self._names:
            raise EngineError("There is no allocation around this process; use launch submit.")
        self._restart = environ.get("SLURM_RESTART_COUNT", "0")
        self._domains: dict[str, str] | None = None
        self._seen: Sequence[Host] = ()
        self._port = 0
        self._signals: list[int] = []
        if self._superseded():
            raise EngineError(
                f"Run {job.run_id} goes on in another job of Slurm; job {self._job_id} ends."
            )

    @classmethod
    def around(cls, job: Job) -> Self:
        """Returns the allocation around this process, and listens to its signals."""
        gang = cls(job, environ=os.environ)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda which, frame: gang._signals.append(which))
        return gang

    def waiting(self) -> str | None:
        """The batch script starts when everything is there."""
        return None

    def hosts(self) -> Sequence[Host]:
        """The allocation's nodes that live, those of one leaf switch side by side."""
        self._slurmd_port()  # asked while all is well
        shown = self._scontrol("--oneliner", "show", "node", ",".join(self._allocated()))
        nodes = slurm_nodes.nodes(shown)
        if self._domains is None:
            self._domains = slurm_nodes.domains(self._scontrol("show", "topology"))
        living = [name for name, node in nodes.items() if node.lives]
        self._seen = [
            Host(
                name=name,
                address=nodes[name].address,
                failure_domain=self._domains.get(name, ""),
            )
            for name in slurm_nodes.ordered(living, domain=self._domains)
        ]
        return self._seen

    def notice(self) -> str | None:
        """Slurm signals the batch script where no agent is there to hear it."""
        if not self._signals:
            return None
        return f"Slurm sent {signal.Signals(self._signals[0]).name}"

    def start(self, orders: Orders) -> Sequence[subprocess.Popen[bytes]]:
        """One srun for all hosts."""
        self._watch_this_host(orders)
        logs = attempt_folder(self._job, orders.attempt) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        agent = [self._job.python, "-m", "launch.agent", "--host_variable", _NODE]
        name = f"attempt{orders.attempt}"
        command = [*_srun([host.name for host in orders.hosts], name=name), *agent]
        until = time.monotonic() + _STEP_S
        while True:
            process = self._launch(command, log=logs / "srun.log")
            if self._runs(process, name=name) or time.monotonic() > until:
                return [process]
            # After a restart the controller does not yet know which steps have ended.
            time.sleep(_STEP_PAUSE_S)

    def reachable(self, host: Host) -> bool:
        """Whether the node's slurmd, or at least its kernel, answers.

        Where nothing answers it is this host that is cut off, and nobody is to blame.
        """
        if host.name == self._environ.get(_NODE):
            return True
        if any(_answers(host.address, self._slurmd_port()) for _ in range(_PROBES)):
            return True
        return self._is_cut_off(besides=host)

    def end(self, *, timeout_s: float) -> None:
        """Waits for an orphaned srun and its step; agents let their processes save."""
        until = time.monotonic() + timeout_s
        while ranks.living(self._pids()) and time.monotonic() < until:
            time.sleep(_WAIT_S)
        ranks.end_leftovers(self._pids())
        while (steps := self._steps()) and time.monotonic() < until:
            time.sleep(_WAIT_S)
        for step in steps:  # those that are still there
            commands.run(["scancel", "--signal=KILL", step], patience_s=0, always_again=True)

    def requeue(self, *, exclude: Sequence[str], reason: str) -> None:
        """Submits the successor of this job, which ends right after.

        A job that Slurm is ending already gets none: it was cancelled, or Slurm requeues it.
        """
        del reason
        if self._superseded() or self._state() != "RUNNING":
            raise LeftAllocation
        try:
            slurm_submission.submit(
                self._job, patience_s=PATIENCE_S, succeeds=self._job_id, exclude=exclude
            )
        except commands.Refused as error:
            # A site may not let nodes submit, or a limit is reached: slower, and without exclusion.
            print(f"No successor ({error}); asking for a requeue instead.", file=sys.stderr)  # noqa: T201
            commands.run(["scontrol", "requeue", self._job_id], patience_s=PATIENCE_S)
        raise LeftAllocation

    def address(self, host: Host, *, attempt: int) -> str:
        """A port of this run, allocation and attempt: an older process may still have its own."""
        seed = f"{self._job.run_id}/{self._job_id}/{attempt}"
        port = _FIRST_PORT + zlib.crc32(seed.encode()) % _PORTS
        name = f"[{host.address}]" if ":" in host.address else host.address
        return f"{name}:{port}"

    def _launch(self, command: Sequence[str], *, log: pathlib.Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                env=importable(self._environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        ranks.write_pids(self._pids(), [process.pid])
        return process

    def _runs(self, process: subprocess.Popen[bytes], *, name: str) -> bool:
        """Whether Slurm has made the step of an srun, which otherwise ends."""
        while process.poll() is None:
            if name in self._steps().values():
                return True
            time.sleep(_WAIT_S / 5)
        return False

    def _watch_this_host(self, orders: Orders) -> None:
        """In an allocation that outlives hosts, another host looks out for this one."""
        if not slurm_script.keeps_allocation(self._job.spec):
            return
        pids = self._pids(_LOOKOUT)
        if ranks.living(pids):
            return
        here = self._environ.get(_NODE)
        others = [host for host in self._allocated() if host != here]
        if not others:
            return
        module = [self._job.python, "-m", "launch.engines.slurm_lookout"]
        arguments = ["--job_dir", self._job.job_dir, "--host", str(here)]
        active = {host.name for host in orders.hosts}
        # Better one that the attempt does not use; it is there for what it is not.
        other = next((name for name in others if name not in active), others[0])
        lookout = subprocess.Popen(
            [*_srun([other], name=_LOOKOUT), *module, *arguments],
            env=importable(self._environ),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        ranks.write_pids(pids, [lookout.pid])

    def _is_cut_off(self, *, besides: Host) -> bool:
        """Whether nothing else answers either; a controller may only be busy with the lost host."""
        here = (self._environ.get(_NODE), besides.name)
        others = [host for host in self._seen if host.name not in here]
        if any(_answers(host.address, self._slurmd_port()) for host in others[:_PROBES]):
            return False
        try:
            commands.run(["scontrol", "ping"], patience_s=_PING_S, always_again=True)
        except commands.Unreached:
            return True
        return False

    def _allocated(self) -> list[str]:
        """Nodes that the job still has; one that Slurm gave up is no longer among them."""
        shown = self._scontrol("--oneliner", "show", "job", self._job_id)
        now = slurm_nodes.field(shown, "NodeList")
        return slurm_nodes.expand(now) if now and now != "(null)" else self._names

    def _state(self) -> str:
        shown = self._scontrol("--oneliner", "show", "job", self._job_id)
        return slurm_nodes.field(shown, "JobState")

    def _steps(self) -> dict[str, str]:
        """Numbered steps of this job that run, agents of some attempt; id -> name."""
        command = ["squeue", "--steps", "--noheader", f"--jobs={self._job_id}", "--format=%i %j"]
        text = commands.run(command, patience_s=PATIENCE_S, always_again=True)
        pairs = [line.split(" ", 1) for line in text.splitlines() if " " in line]
        return {
            step: name.strip()
            for step, name in pairs
            if step.rpartition(".")[2].isdecimal() and name.strip() != _LOOKOUT
        }

    def _scontrol(self, *words: str) -> str:
        return commands.run(["scontrol", *words], patience_s=PATIENCE_S, always_again=True)

    def _slurmd_port(self) -> int:
        if not self._port:
            found = slurm_nodes.setting(self._scontrol("show", "config"), "SlurmdPort")
            self._port = int(found) if found.isdecimal() else _SLURMD_PORT
        return self._port

    def _superseded(self) -> bool:
        """Whether a newer job has the run; Slurm may have started this one a second time."""
        newest = slurm_submission.newest_living(
            self._job, patience_s=PATIENCE_S, besides=self._job_id
        )
        return newest is not None and int(newest) > int(self._job_id)

    def _pids(self, what: str = "srun") -> pathlib.Path:
        name = f"{what}-{self._job_id}-{self._restart}.pids"
        return pathlib.Path(self._job.job_dir) / name


def _srun(names: Sequence[str], *, name: str) -> list[str]:
    """A step on each of the nodes. Options win over variables and over a site's defaults."""
    return [
        "srun",
        f"--job-name={name}",
        f"--nodes={len(names)}",
        f"--ntasks={len(names)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(names)}",
        "--overlap",  # beside a step that still waits for a lost host
        "--no-kill",
        # Agents judge and stop together; srun must not end the others when one has died.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mem=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--input=all",
        "--export=ALL",
    ]


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_PROBE_S):
            return True
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
