"""Who owns an attempt: a file that names a process, and whether that process still lives.

Imports the standard library and the contract only. A process is known by host, process id and
start time; whether it lives is looked up where that is possible (same kernel, same process
namespace) and judged by its heartbeat elsewhere.
"""

import contextlib
import dataclasses
import datetime
import os
import socket
import threading
import time
import uuid

from launch.contract import Schema, kernel, started
from trainer.checkpoints.root import Root

HEARTBEAT_S = 30.0
STALE_S = 180.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner(Schema):
    """``attempts/<n>/owner.json``.

    Attributes:
      attempt: the attempt it owns.
      host: host name, for people.
      kernel: boot and process namespace; process ids mean something only inside of one.
      pid: process id.
      started: start time of the process, in clock ticks since boot.
      since: seconds since 1970 of the claim.
      heartbeat: seconds since 1970 of the last sign of life.
      released: whether it gave the directory up.
      launched: whether a launcher started it.
      token: random, so that no two claims are equal.
    """

    attempt: int
    host: str
    kernel: str
    pid: int
    started: int
    since: float
    heartbeat: float
    released: bool = False
    launched: bool = False
    token: str = ""

    def is_here(self) -> bool:
        """Whether its process id can be looked up from this process."""
        return self.kernel == kernel()

    def lives(self) -> bool:
        """Whether it must be assumed to be still writing."""
        if self.released:
            return False
        if self.is_here():
            return started(self.pid) == self.started
        return time.time() - self.heartbeat < STALE_S

    def advice(self) -> str:
        """What to do where it cannot be looked up."""
        if self.is_here():
            return ""
        age = time.time() - self.heartbeat
        return (
            f" Its last sign of life is {age:.0f} s old; it counts as dead after {STALE_S:.0f} s, "
            "or at once with --take_over."
        )

    def __str__(self) -> str:
        since = datetime.datetime.fromtimestamp(self.since, datetime.UTC)
        return f"process {self.pid} on {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"


class OwnerFile:
    """The owner file of one attempt.

    Attributes:
      attempt: the attempt that this process claimed; None before.
    """

    def __init__(self, root: Root, key: str) -> None:
        self._root, self._key = root, key
        self._own: Owner | None = None
        self._released = threading.Event()
        self._lock = threading.Lock()

    @property
    def attempt(self) -> int | None:
        """The claimed attempt."""
        return self._own.attempt if self._own else None

    def read(self) -> Owner | None:
        """Returns the owner; None where nobody claimed the attempt."""
        data = self._root.read(self._key)
        return None if data is None else Owner.from_json(data.decode(), source=self._key)

    def claim(self, *, attempt: int, launched: bool) -> bool:
        """Makes this process the owner; False where another was first."""
        now = time.time()
        pid = os.getpid()
        owner = Owner(
            attempt=attempt,
            host=socket.gethostname(),
            kernel=kernel(),
            pid=pid,
            started=started(pid) or 0,
            since=now,
            heartbeat=now,
            launched=launched,
            token=uuid.uuid4().hex,
        )
        if not self._root.create(self._key, owner.to_json().encode()):
            return False
        self._own = owner
        return True

    def keep_alive(self, *, every_s: float = HEARTBEAT_S) -> None:
        """Renews the heartbeat from a thread until `release`."""
        threading.Thread(target=self._beat, args=(every_s,), daemon=True, name="owner").start()

    def release(self) -> None:
        """Gives the attempt up."""
        with self._lock:
            if not self._released.is_set():
                self._released.set()
                self._write(released=True)

    def _beat(self, every_s: float) -> None:
        while not self._released.wait(every_s):
            with self._lock, contextlib.suppress(OSError):  # a store may be away for one beat
                if not self._released.is_set():
                    self._write(released=False)

    def _write(self, *, released: bool) -> None:
        assert self._own is not None
        self._own = dataclasses.replace(self._own, heartbeat=time.time(), released=released)
        self._root.write(self._key, self._own.to_json().encode())
