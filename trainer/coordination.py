"""Agreement among the processes of a run that needs no device: barriers, values, lists of values.

`Joined` uses jax's coordination service, which process 0 hosts; `Alone` is the run of one process.
Imports no jax. Promises: nothing touches an accelerator, so background threads may coordinate while
a step runs; no wait is without a limit, and a process that does not come within it is named (P057);
what was gathered and broadcast does not pile up in the service.
"""

import collections
import json
import threading
import time
from typing import Any, Protocol

_PREFIX = "lockstep"
_SLICE_S = 3600.0


class PeersMissingError(TimeoutError):
    """Some processes did not come within the time allowed; the message names their ranks."""


class Coordination(Protocol):
    """What the processes of one attempt can agree on.

    Attributes:
      process_index: rank of this process.
      process_count: processes of the run.
    """

    process_index: int
    process_count: int

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """Returns when every process has come here.

        All processes pass barriers of one name equally often and in the same order.

        Raises:
          PeersMissingError: not all came within ``timeout_s`` seconds; names those that did not.
        """

    def put(self, key: str, value: str) -> None:
        """Makes ``value`` visible to all processes under ``key``, replacing an older one."""

    def get(self, key: str, *, timeout_s: float) -> str:
        """Returns the value under ``key``, waiting until there is one.

        Raises:
          PeersMissingError: there was none within ``timeout_s`` seconds.
        """

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """Returns each process's value, by rank, on process 0, and an empty list on the others.

        ``name`` is fresh, and the same in all processes.

        Raises:
          PeersMissingError: names the ranks that did not come within ``timeout_s`` seconds.
        """

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """Returns process 0's value in every process; the others' are ignored.

        ``name`` is fresh, and the same in all processes. Process 0 waits for nobody.

        Raises:
          PeersMissingError: process 0 did not come within ``timeout_s`` seconds.
        """


class Alone:
    """A run of one process."""

    process_index = 0
    process_count = 1

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """Returns at once."""
        del name, timeout_s

    def put(self, key: str, value: str) -> None:
        """See `Coordination.put`."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, timeout_s: float) -> str:
        """See `Coordination.get`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise PeersMissingError(f"No process gave {key!r} within {timeout_s:g} s.")
            return self._values[key]

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """Returns the value."""
        del name, timeout_s
        return [value]

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """Returns the value."""
        del name, timeout_s
        return value


class Joined:
    """Processes that joined through jax's coordination service; ``client`` is jax's."""

    def __init__(self, client: Any, *, process_index: int, process_count: int) -> None:
        self._client = client
        self._passed: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self.process_index = process_index
        self.process_count = process_count

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """See `Coordination.barrier`."""
        with self._lock:
            self._passed[name] += 1
            identifier = f"{_PREFIX}/barrier/{name}/{self._passed[name]}"
        own = f"{identifier}/{self.process_index}"
        self._client.key_value_set(own, "", allow_overwrite=True)
        try:
            self._client.wait_at_barrier(identifier, int(timeout_s * 1000))
        except RuntimeError as error:
            if not _timed_out(error):
                raise
            raise PeersMissingError(
                f"Barrier {name!r}: {_ranks(self._missing(identifier))} did not come within "
                f"{timeout_s:g} s."
            ) from error
        self._client.key_value_delete(own)

    def put(self, key: str, value: str) -> None:
        """See `Coordination.put`."""
        self._client.key_value_set(f"{_PREFIX}/value/{key}", value, allow_overwrite=True)

    def get(self, key: str, *, timeout_s: float) -> str:
        """See `Coordination.get`."""
        found = self._await(f"{_PREFIX}/value/{key}", time.monotonic() + timeout_s)
        if found is None:
            raise PeersMissingError(f"No process gave {key!r} within {timeout_s:g} s.")
        return found

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """See `Coordination.gather`."""
        keys = [f"{_PREFIX}/gather/{name}/{rank}" for rank in range(self.process_count)]
        if self.process_index != 0:
            self._client.key_value_set(keys[self.process_index], value)
            return []
        deadline = time.monotonic() + timeout_s
        found = [value, *(self._await(key, deadline) for key in keys[1:])]
        for key, there in zip(keys[1:], found[1:], strict=True):
            if there is not None:
                self._client.key_value_delete(key)
        missing = [rank for rank, there in enumerate(found) if there is None]
        if missing:
            raise PeersMissingError(
                f"{name}: {_ranks(missing)} did not come within {timeout_s:g} s."
            )
        return [there for there in found if there is not None]

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """See `Coordination.broadcast`."""
        key, readers = f"{_PREFIX}/broadcast/{name}", f"{_PREFIX}/readers/{name}"
        if self.process_index == 0:
            if self.process_count > 1:
                self._client.key_value_set(key, value)
            return value
        found = self._await(key, time.monotonic() + timeout_s)
        if found is None:
            raise PeersMissingError(f"{name}: rank 0 did not come within {timeout_s:g} s.")
        if self._client.key_value_increment(readers, 1) == self.process_count - 1:
            self._client.key_value_delete(key)  # the last reader; a manifest can be large
            self._client.key_value_delete(readers)
        return found

    def _await(self, key: str, deadline: float) -> str | None:
        """The value under a key, or None if there is none by then; looks at least once."""
        while True:
            left = min(deadline - time.monotonic(), _SLICE_S)
            try:
                value: str = self._client.blocking_key_value_get(key, max(1, int(left * 1000)))
            except RuntimeError as error:  # jax's own class derives from it
                if not _timed_out(error):
                    raise
                if time.monotonic() < deadline:
                    continue
                return None
            return value

    def _missing(self, identifier: str) -> list[int]:
        present = {
            int(key.rpartition("/")[2]) for key, _ in self._client.key_value_dir_get(identifier)
        }
        return [rank for rank in range(self.process_count) if rank not in present]


def agree(coordination: Coordination, key: str, value: Any, *, timeout_s: float) -> Any:
    """Returns process 0's ``value`` (JSON) in every process; see `Coordination.broadcast`."""
    text = json.dumps(value) if coordination.process_index == 0 else ""
    return json.loads(coordination.broadcast(key, text, timeout_s=timeout_s))


def _timed_out(error: RuntimeError) -> bool:
    return "DEADLINE_EXCEEDED" in str(error) or "Barrier timed out" in str(error)


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(str(rank) for rank in ranks) or "unknown"
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
