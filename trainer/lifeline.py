"""Connections whose only purpose is to break: how a process learns at once that another one died.

Standard library only. jax's coordination service notices a dead process after its heartbeat timeout
and then aborts the survivors, which leaves no record of how they ended. The kernel closes a dead
process's connections at once. Process 0 accepts one connection from each other process; whoever
reads the end of one knows that its peer is gone. A host that vanishes without closing anything is
left to the heartbeats.
"""

import functools
import json
import secrets
import socket
import threading
from collections.abc import Callable

from absl import logging

from trainer.coordination import Coordination, PeersMissingError

_KEY = "lifeline"
_CONNECT_S = 30.0


class Lifeline:
    """This process's ends of the connections; keep it for as long as peers may die."""

    def __init__(
        self, coordination: Coordination, *, host: str, lost: Callable[[int], None]
    ) -> None:
        """Connects.

        Args:
          coordination: the processes.
          host: where process 0 can be reached.
          lost: called from a thread, with the rank of a process that is gone.
        """
        self._coordination, self._lost = coordination, lost
        if coordination.process_count > 1:
            if coordination.process_index == 0:
                self._listen(host)
            else:
                self._connect(host)

    def _listen(self, host: str) -> None:
        token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server(("", 0), family=family, backlog=4096)
        told = json.dumps({"port": server.getsockname()[1], "token": token})
        self._coordination.put(_KEY, told)
        _start(functools.partial(self._accept, server, token))

    def _accept(self, server: socket.socket, token: str) -> None:
        while True:
            connection, _ = server.accept()
            _start(functools.partial(self._greet, connection, token))

    def _greet(self, connection: socket.socket, token: str) -> None:
        """Process 0: strangers are turned away; a peer is watched until it is gone."""
        with connection:
            connection.settimeout(_CONNECT_S)
            try:
                given, _, rank = connection.makefile().readline().strip().partition(" ")
            except (OSError, UnicodeDecodeError):
                return
            if not secrets.compare_digest(given, token) or not rank.isdecimal():
                return
            connection.settimeout(None)
            _await_end(connection)
        self._lost(int(rank))

    def _connect(self, host: str) -> None:
        rank = self._coordination.process_index
        try:
            told = json.loads(self._coordination.get(_KEY, timeout_s=_CONNECT_S))
            connection = socket.create_connection((host, told["port"]), timeout=_CONNECT_S)
            connection.sendall(f"{told['token']} {rank}\n".encode())
        except (OSError, PeersMissingError) as error:
            logging.warning("Rank %d and rank 0 will notice each other's end late: %s", rank, error)
            return
        connection.settimeout(None)
        _start(functools.partial(self._watch, connection))

    def _watch(self, connection: socket.socket) -> None:
        with connection:
            _await_end(connection)
        self._lost(0)


def _await_end(connection: socket.socket) -> None:
    try:
        while connection.recv(64):
            pass
    except OSError:
        return  # reset is an end, too


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True, name="lifeline").start()
