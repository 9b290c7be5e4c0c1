"""What the pods of a run say to one another: lines of JSON over TCP to the first pod.

Every pod keeps one connection to the supervisor, which the first pod runs; for each attempt it
opens two more and gives them to its agent as stdin and stdout (launch/orders.py). Only pods of the
run can reach the port (NetworkPolicy), and a connection of another set or restart is closed.
Standard library only.
"""

import dataclasses
import enum
import socket
import time
from collections.abc import Callable

from launch.records import Schema

PORT = 19990
"""Where the first pod's supervisor listens; below the ports of coordinators."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_CONNECT_S = 5.0
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class LinkError(OSError):
    """The first pod cannot be reached."""


class Kind(enum.StrEnum):
    """HELLO and NOTICE come from pods, INPUT and OUTPUT open an agent's stdin and stdout; START and
    EXIT come from the supervisor.
    """

    HELLO = "hello"
    NOTICE = "notice"
    INPUT = "input"
    OUTPUT = "output"
    START = "start"
    EXIT = "exit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message(Schema):
    """A line.

    Attributes:
      kind: what it is.
      incarnation: which set of pods the sender belongs to (HELLO).
      index: number of the pod among all pods of the run (HELLO).
      node: where it runs (HELLO); what the run's records call the host.
      address: name at which other pods reach it (HELLO).
      token: of the agent to be started (START), or that is there (INPUT, OUTPUT).
      host: name of the host in the orders (START).
      attempt: of which attempt (START).
      ranks: of the host (START).
      code: with which the pod ends (EXIT).
      text: for people.
    """

    kind: Kind
    incarnation: str = ""
    index: int = -1
    node: str = ""
    address: str = ""
    token: str = ""
    host: str = ""
    attempt: int = 0
    ranks: tuple[int, ...] = ()
    code: int = 0
    text: str = ""

    def line(self) -> bytes:
        """Returns what is sent."""
        return self.to_json().encode() + b"\n"


def connect(host: str, *, port: int, within_s: float, wanted: Callable[[], bool]) -> socket.socket:
    """Connects to the first pod, whose name may not resolve and which may not listen yet.

    Args:
      host: its name.
      port: its port.
      within_s: how long it is tried.
      wanted: asked before each try.

    Raises:
      LinkError: it was not there in time, or nobody wanted it any more.
    """
    until, pause = time.monotonic() + within_s, _PAUSE_S
    while wanted():
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
            _check_other(connection)
        except OSError as error:  # a name that does not resolve is one, too
            if time.monotonic() + pause > until:
                raise LinkError(
                    f"{host}:{port}, the run's first pod, was not there within {within_s:g} s: "
                    f"{error}"
                ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            continue
        connection.settimeout(None)
        keep_alive(connection)
        return connection
    raise LinkError(f"{host}:{port} is not wanted any more")


def _check_other(connection: socket.socket) -> None:
    """A port of one's own, where nobody listens, may be given by the kernel for the way out.

    Raises:
      ConnectionRefusedError: it was, and the connection is with itself.
    """
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError("nobody listens there")


def keep_alive(connection: socket.socket) -> None:
    """Has the kernel notice within half a minute that the other side has gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def read_line(connection: socket.socket, *, within_s: float) -> Message | None:
    """Returns the first line of a connection, byte by byte, as what follows is another's to read.

    None where there is none in time, or the connection ends before.
    """
    connection.settimeout(within_s)
    data = b""
    try:
        while not data.endswith(b"\n"):
            more = connection.recv(1)
            if not more or len(data) > 4096:
                return None
            data += more
    except OSError:
        return None
    connection.settimeout(None)
    return Message.from_json(data.decode(errors="replace"), source="first line")
