"""The pods of a run as the supervisor's gang; see launch.engines.engine.Gang.

The supervisor restarts processes in pods that stay. What it cannot do from inside, getting other
hosts, it leaves to JobSet: all pods end with a code that has the set started again
(launch/engines/kubernetes_objects.py). Standard library only.
"""

import contextlib
import dataclasses
import os
import secrets
import select
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Sequence
from typing import IO

from launch.engines.engine import LeftAllocation
from launch.engines.kubernetes_names import pod_count
from launch.exit_codes import ExitCode
from launch.orders import Host, Orders
from launch.pod_link import Kind, Message, keep_alive, read_line
from launch.records import ContractError
from launch.spec import Job

_FIRST_PORT, _PORTS = 20000, 12000
_HEADER_S = 10.0
_AGENTS_S = 30.0


@dataclasses.dataclass
class _Pod:
    """A pod that has said hello.

    Attributes:
      hello: what it said.
      connection: to it.
      over: the connection has ended.
      hung_up: it has ended it, or its kernel has: the node still answers.
    """

    hello: Message
    connection: socket.socket
    over: bool = False
    hung_up: bool = False


class RemoteAgent:
    """An agent in another pod, as far as the supervisor needs it to be a process."""

    def __init__(self, to_agent: socket.socket, from_agent: socket.socket) -> None:
        """Takes the connections that are the agent's stdin and stdout."""
        self.stdin: IO[bytes] = os.fdopen(to_agent.detach(), "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(from_agent.detach(), "rb", buffering=0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns when the agent has closed its stdout.

        Raises:
          subprocess.TimeoutExpired: it has not in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.stdout.closed:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired("agent", timeout or 0.0)
            try:
                if not os.read(self.stdout.fileno(), 65536):
                    break
            except BlockingIOError:
                continue
            except ConnectionResetError:
                break
        return 0

    def kill(self) -> None:
        """Closes what leads to it; an agent without a supervisor ends by itself."""
        self.stdout.close()


class PodsGang:
    """All pods of one incarnation of a set."""

    elsewhere = True

    def __init__(self, job: Job, *, listener: socket.socket, incarnation: str) -> None:
        """Begins to listen.

        Args:
          job: the run.
          listener: where pods call.
          incarnation: which set of pods may.
        """
        self._job, self._incarnation = job, incarnation
        self._pods: dict[int, _Pod] = {}
        self._connections: dict[tuple[str, Kind], socket.socket] = {}
        self._changed = threading.Condition()
        self._notice: str | None = None
        self._attempted = False
        self._until = time.monotonic() + job.spec.runtime.start_s
        self.code: ExitCode | None = None
        self.why = ""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def waiting(self) -> str | None:
        """Waits for all pods to call.

        Raises:
          LeftAllocation: they did not in time.
        """
        with self._changed:
            here = len(self._pods)
        wanted = pod_count(self._job.spec)
        if here >= wanted:
            return None
        why = f"{here} of {wanted} pods have started"
        if time.monotonic() > self._until:
            self._leave(ExitCode.INFRASTRUCTURE, f"{why} within runtime.start_s")
        return why

    def hosts(self) -> Sequence[Host]:
        """Pods that still are there, in their order, by the names of their nodes."""
        with self._changed:
            pods = [pod for _, pod in sorted(self._pods.items())]
        nodes = [pod.hello.node for pod in pods]
        return [
            Host(name=_name(pod.hello, nodes), address=pod.hello.address)
            for pod in pods
            if not pod.over
        ]

    def notice(self) -> str | None:
        """A pod was told to stop: the set is suspended, or a node is drained."""
        return self._notice

    def start(self, orders: Orders) -> Sequence[RemoteAgent]:
        """Has each pod start an agent, and waits for the agents' connections."""
        self._attempted = True
        tokens = {host.name: secrets.token_hex(16) for host in orders.hosts}
        for host in orders.hosts:
            ranks = tuple(place.rank for place in orders.places if place.host == host.name)
            message = Message(
                kind=Kind.START,
                token=tokens[host.name],
                host=host.name,
                attempt=orders.attempt,
                ranks=ranks,
            )
            self._send(self._pod(host), message)
        return [self._agent(host, tokens[host.name]) for host in orders.hosts]

    def reachable(self, host: Host) -> bool:
        """Whether a pod has hung up, which only a node that still answers can do for it."""
        pod = self._pod(host)
        return pod is not None and pod.hung_up

    def end(self, *, timeout_s: float) -> None:
        """Agents end when their supervisor's connection does; pods start one at a time."""
        del timeout_s

    def requeue(self, *, exclude: Sequence[str], reason: str) -> None:
        """Ends all pods, so that JobSet makes new ones.

        Hosts that are avoided and come all the same cannot be avoided from inside: a person, or
        whatever watches over nodes, has to cordon them.

        Raises:
          LeftAllocation: always.
        """
        back = sorted(set(exclude) & {host.name for host in self.hosts()})
        if back and not self._attempted:
            self._leave(
                ExitCode.HOLD,
                f"{', '.join(back)} must be avoided, but the cluster gives it again: cordon it, or "
                "name it in kubernetes.exclude and submit again",
            )
        displaced = self._notice is not None
        self._leave(ExitCode.PREEMPTED if displaced else ExitCode.INFRASTRUCTURE, reason)

    def address(self, host: Host, *, attempt: int) -> str:
        """A port of this run and attempt in the host's pod."""
        offset = zlib.crc32(f"{self._job.run_id}/{attempt}".encode()) % _PORTS
        return f"{host.address}:{_FIRST_PORT + offset}"

    def finish(self, code: int, *, text: str) -> None:
        """Has all pods end with a code, also those that are still to come, and waits a while."""
        wanted, left = pod_count(self._job.spec), self._until - time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: len(self._pods) >= wanted, timeout=max(0.0, left))
            pods = list(self._pods.values())
        for pod in pods:
            self._send(pod, Message(kind=Kind.EXIT, code=int(code), text=text))
        with self._changed:
            self._changed.wait_for(lambda: all(pod.over for pod in pods), timeout=_HEADER_S)

    def _leave(self, code: ExitCode, why: str) -> None:
        self.code, self.why = code, why
        raise LeftAllocation(why)

    def _pod(self, host: Host) -> _Pod | None:
        with self._changed:
            found = (pod for pod in self._pods.values() if pod.hello.address == host.address)
            return next(found, None)

    def _send(self, pod: _Pod | None, message: Message) -> None:
        if pod is not None and not pod.over:
            with contextlib.suppress(OSError):  # whoever reads from it notices
                pod.connection.sendall(message.line())

    def _agent(self, host: Host, token: str) -> RemoteAgent:
        """Returns an agent; one that has not come in time is one whose connections are closed."""
        keys = (token, Kind.INPUT), (token, Kind.OUTPUT)
        pod = self._pod(host)

        def settled() -> bool:
            return set(keys) <= set(self._connections) or pod is None or pod.over

        with self._changed:
            self._changed.wait_for(settled, timeout=_AGENTS_S)
            found = [self._connections.pop(key, None) for key in keys]
        return RemoteAgent(*(connection or _closed() for connection in found))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed: the run is over
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Takes a connection in by its first line."""
        keep_alive(connection)
        try:
            message = read_line(connection, within_s=_HEADER_S)
        except ContractError:
            message = None
        if message is None or message.incarnation != self._incarnation:
            connection.close()
        elif message.kind in (Kind.INPUT, Kind.OUTPUT):
            with self._changed:
                self._connections[message.token, message.kind] = connection
                self._changed.notify_all()
        elif message.kind is Kind.HELLO:
            self._serve(_Pod(message, connection))

    def _serve(self, pod: _Pod) -> None:
        """Listens to a pod until it hangs up."""
        with self._changed:
            self._pods[pod.hello.index] = pod
            self._changed.notify_all()
        hung_up = True
        try:
            with pod.connection.makefile("rb") as lines:
                for line in lines:
                    self._hear(Message.from_json(line.decode(), source="pod"))
        except TimeoutError:
            hung_up = False  # the kernel has given it up: nothing came any more
        except (ConnectionError, ContractError):
            pass
        with self._changed:
            pod.over, pod.hung_up = True, hung_up
            self._changed.notify_all()

    def _hear(self, message: Message) -> None:
        if message.kind is Kind.NOTICE:
            self._notice = message.text


def _name(hello: Message, nodes: Sequence[str]) -> str:
    """Returns a host's name; pods that share a node are told apart by their number."""
    return hello.node if nodes.count(hello.node) == 1 else f"{hello.node}#{hello.index}"


def _closed() -> socket.socket:
    """Returns a connection whose other side has hung up."""
    one, other = socket.socketpair()
    other.close()
    return one
