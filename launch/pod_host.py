"""One pod of a run: calls the supervisor, starts agents and ends when it is told to.

The container's first process. Knows no policy. Standard library only.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Self

from launch.agent import attempt_folder
from launch.engines.kubernetes_names import pod_count
from launch.exit_codes import ExitCode
from launch.pod_link import Kind, LinkError, Message, connect, keep_alive
from launch.pod_output import Output
from launch.records import ContractError
from launch.run_status import RunStatus
from launch.spec import Job

_LIBC = ctypes.CDLL(None)
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_LEFT_S = 10.0
_RESTART_S = 5.0
_TAKEN_IN_S = 1.0
_STATUS_S = 30.0
_FUTILE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodPlace:
    """Where a pod stands among the pods of its run.

    Attributes:
      index: number among all pods, slice by slice.
      node: name of its node.
      address: name at which other pods reach it.
      first: name of the first pod.
      incarnation: which set, and which restart of it.
    """

    index: int
    node: str
    address: str
    first: str
    incarnation: str

    @classmethod
    def read(cls, environ: Mapping[str, str], *, job: Job) -> Self:
        """Returns the place that labels and indices give (launch/engines/kubernetes_pod.py).

        Raises:
          ContractError: a variable is missing or not what it should be; this is no pod of a set.
        """
        try:
            slice_id = int(environ["LOCKSTEP_SLICE"])
            number = int(environ["JOB_COMPLETION_INDEX"])
            first = environ["LOCKSTEP_COORDINATOR_HOST"]
            node = environ["LOCKSTEP_NODE"]
            incarnation = f"{environ['LOCKSTEP_SET_UID']}/{environ['LOCKSTEP_RESTART']}"
        except KeyError as error:
            raise ContractError(f"{error.args[0]} is not set; is this a pod of a JobSet?") from None
        except ValueError as error:
            raise ContractError(f"A number of this pod is wrong: {error}") from None
        pods = pod_count(job.spec)
        each = pods // job.spec.topology.slices
        index = slice_id * each + number
        if not (0 <= number < each and 0 <= index < pods):
            raise ContractError(f"Pod {number} of slice {slice_id} is none of this run's pods.")
        host, _, domain = first.partition(".")
        stem = host.removesuffix("-0-0")
        return cls(
            index=index,
            node=node,
            address=first if index == 0 else f"{stem}-{slice_id}-{number}.{domain}",
            first=first,
            incarnation=incarnation,
        )


class PodHost:
    """The first process of a pod."""

    def __init__(
        self, job: Job, place: PodPlace, *, program: Sequence[str], port: int, output: Output
    ) -> None:
        """Nothing is started yet.

        Args:
          job: the run.
          place: this pod's.
          program: command of this launcher, to which roles and options are added.
          port: where the supervisor listens.
          output: shows what the processes write.
        """
        self._job, self._place, self._program = job, place, tuple(program)
        self._port, self._output = port, output
        self._signals: list[int] = []
        self._agent: subprocess.Popen[bytes] | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._supervisors = 0
        self._told: Message | None = None
        self._noticed = self._heard = False
        self._shown: RunStatus | None = None
        self._shown_at = 0.0

    def run(self) -> int:
        """Serves until it is told to end; returns the exit code."""
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda which, frame: self._signals.append(which))
        try:
            self._stay()
        except LinkError as error:
            code = ExitCode.PREEMPTED if self._signals or self._noticed else None
            self._told = Message(
                kind=Kind.EXIT, code=code or ExitCode.INFRASTRUCTURE, text=str(error)
            )
        assert self._told is not None
        self._end_children()
        self._output.show_rest()
        self._show_status(every_s=0.0)
        self._output.say(self._told.text)
        return self._told.code

    def _stay(self) -> None:
        """Calls the supervisor, and again when the connection ends, until it has this pod end.

        Raises:
          LinkError: it does not answer, or hangs up again and again.
        """
        until = time.monotonic() + self._job.spec.runtime.start_s
        while self._told is None:
            self._end_agent()
            self._look_after_supervisor()
            left = max(0.0, until - time.monotonic())
            began, self._heard = time.monotonic(), False
            self._serve(
                connect(
                    self._place.first,
                    port=self._port,
                    within_s=left,
                    wanted=lambda: not self._signals,
                )
            )
            now = time.monotonic()
            if self._heard or now - began > _TAKEN_IN_S:
                until = now + self._job.spec.recovery.watchdog.lost_after_s + _RESTART_S
            elif now > until:
                raise LinkError(f"{self._place.first} hangs up; this pod is not of its set")
            else:
                time.sleep(_POLL_S)

    def _serve(self, connection: socket.socket) -> None:
        """Does what the supervisor asks, until it hangs up or has this pod end."""
        hello = Message(
            kind=Kind.HELLO,
            incarnation=self._place.incarnation,
            index=self._place.index,
            node=self._place.node,
            address=self._place.address,
        )
        with connection, selectors.DefaultSelector() as selector:
            with contextlib.suppress(OSError):  # what is read next says so, too
                connection.sendall(hello.line())
            selector.register(connection, selectors.EVENT_READ)
            data = b""
            while self._told is None:
                for _ in selector.select(_POLL_S):
                    more = _received(connection)
                    if not more:
                        return
                    *lines, data = (data + more).split(b"\n")
                    for line in lines:
                        self._hear(Message.from_json(line.decode(), source="supervisor"))
                self._pass_on_signals(connection)
                self._output.tick()
                self._bury()
                self._show_status(every_s=_STATUS_S)

    def _hear(self, message: Message) -> None:
        self._heard = True
        if message.kind is Kind.EXIT:
            self._told = message
        elif message.kind is Kind.START:
            self._start_agent(message)

    def _start_agent(self, message: Message) -> None:
        """Starts an agent whose stdin and stdout lead to the supervisor, if that still listens."""
        self._end_agent()
        try:
            ends = [self._open(kind, message.token) for kind in (Kind.INPUT, Kind.OUTPUT)]
        except OSError as error:
            self._output.say(f"no agent was started: {error}")
            return
        options = ("--host", message.host, "--job_dir", str(job_folder()))
        try:
            self._agent = subprocess.Popen(
                [*self._program, "agent", *options],
                stdin=ends[0].fileno(),
                stdout=ends[1].fileno(),
                process_group=0,
            )
        finally:
            for end in ends:
                end.close()
        folder = attempt_folder(self._job, message.attempt) / "logs"
        self._output.follow({rank: folder / f"rank{rank}.log" for rank in message.ranks})

    def _open(self, kind: Kind, token: str) -> socket.socket:
        end = socket.create_connection((self._place.first, self._port), timeout=_LEFT_S)
        end.settimeout(None)
        keep_alive(end)
        message = Message(kind=kind, incarnation=self._place.incarnation, token=token)
        end.sendall(message.line())
        return end

    def _pass_on_signals(self, connection: socket.socket) -> None:
        """A pod that is told to stop tells the supervisor, which has all pods save and stop."""
        if not self._signals:
            return
        self._signals.clear()
        self._noticed = True
        text = f"{self._place.node} was told to stop"
        with contextlib.suppress(OSError):
            connection.sendall(Message(kind=Kind.NOTICE, text=text).line())
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def _look_after_supervisor(self) -> None:
        """In the first pod: starts the supervisor, and again when something has killed it."""
        if self._place.index != 0 or (self._supervisor and self._supervisor.poll() is None):
            return
        if self._supervisors >= _FUTILE:
            raise LinkError(f"the supervisor has died {self._supervisors} times")
        self._supervisors += 1
        self._supervisor = subprocess.Popen([*self._program, "supervisor"], process_group=0)

    def _show_status(self, *, every_s: float) -> None:
        """In the first pod: shows how the run stands, where that has changed."""
        now = time.monotonic()
        if self._place.index != 0 or now < self._shown_at + every_s:
            return
        self._shown_at = now
        status = RunStatus.read(self._job.job_dir)
        if status is not None and status != self._shown:
            self._shown = status
            self._output.show_status(status)

    def _bury(self) -> None:
        """Collects processes whose parents have died: in a container they come to the first one."""
        children = [child for child in (self._agent, self._supervisor) if child is not None]
        own = {child.pid for child in children if child.poll() is None}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in own:
                return  # ours are collected where they are waited for
            os.waitpid(found.si_pid, 0)

    def _end_agent(self) -> None:
        """An agent whose connections have ended has its processes save and then ends."""
        if self._agent is None:
            return
        grace = float(self._job.spec.runtime.grace_s)
        try:
            self._agent.wait(grace + _LEFT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._agent.pid, signal.SIGKILL)
            self._agent.wait()

    def _end_children(self) -> None:
        self._end_agent()
        if self._supervisor is None:
            return
        try:
            self._supervisor.wait(_LEFT_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()


def job_folder() -> pathlib.Path:
    """Returns where this pod finds its job."""
    return pathlib.Path(os.environ.get("LOCKSTEP_CONFIG", "/lockstep/config"))


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""
