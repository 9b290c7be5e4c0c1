"""How the processes of a run agree on a checkpoint: gather, broadcast, barrier, each with a limit.

May import jax's distributed client, inside ``of_this_process`` only. Promises: a process that does
not come is named within the limit (P057); device collectives are never used, so that background
threads may coordinate while the step runs.
"""

import time
from typing import Any, Protocol

_ORDER = "checkpoints/"


class Coordination(Protocol):
    """Agreement among ``process_count`` processes. Names must be fresh and alike on all."""

    process_index: int
    process_count: int

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """Each process's value, by rank, on process 0; an empty list on the others.

        Raises:
          TimeoutError: names the ranks that did not come.
        """

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """Process 0's value, on all processes.

        Raises:
          TimeoutError: process 0 did not come.
        """

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """Returns when all processes have called it.

        Raises:
          TimeoutError: names the ranks that did not come.
        """


class Alone:
    """Coordination of a single process: nothing to do."""

    process_index = 0
    process_count = 1

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """The value itself."""
        del name, timeout_s
        return [value]

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """The value itself."""
        del name, timeout_s
        return value

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """Returns at once."""
        del name, timeout_s


class KeyValueCoordination:
    """Coordination through jax's key-value service (``jax.distributed``)."""

    def __init__(self, client: Any, *, process_index: int, process_count: int) -> None:
        """Wraps a distributed runtime client (or something with its four methods)."""
        self._client = client
        self.process_index = process_index
        self.process_count = process_count

    def gather(self, name: str, value: str, *, timeout_s: float) -> list[str]:
        """See ``Coordination``."""
        prefix = f"{_ORDER}{name}/"
        if self.process_index != 0:
            self._client.key_value_set(f"{prefix}{self.process_index}", value)
            return []
        deadline = time.monotonic() + timeout_s
        values = [value]
        missing: list[int] = []
        for rank in range(1, self.process_count):
            left = 0.001 if missing else max(0.001, deadline - time.monotonic())
            found = self._get(f"{prefix}{rank}", left)
            values.append(found or "")
            if found is None:
                missing.append(rank)
        if missing:
            ranks = ", ".join(map(str, missing))
            raise TimeoutError(f"{name}: rank {ranks} did not come within {timeout_s:g} s.")
        self._client.key_value_delete(prefix)
        return values

    def broadcast(self, name: str, value: str, *, timeout_s: float) -> str:
        """See ``Coordination``."""
        key = f"{_ORDER}{name}/0"
        if self.process_index == 0:
            self._client.key_value_set(key, value)
            return value
        found = self._get(key, timeout_s)
        if found is None:
            raise TimeoutError(f"{name}: rank 0 did not come within {timeout_s:g} s.")
        return found

    def barrier(self, name: str, *, timeout_s: float) -> None:
        """See ``Coordination``."""
        self.gather(f"{name}/in", "", timeout_s=timeout_s)
        self.broadcast(f"{name}/out", "", timeout_s=timeout_s)

    def _get(self, key: str, timeout_s: float) -> str | None:
        try:
            value: str = self._client.blocking_key_value_get(key, int(timeout_s * 1000) + 1)
        except RuntimeError as error:  # jax's JaxRuntimeError derives from it
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise
        return value


def of_this_process() -> Coordination:
    """The coordination of the processes that ``jax.distributed.initialize`` has joined."""
    from jax._src import distributed  # no public name gives the client

    state = distributed.global_state
    if state.client is None or state.num_processes == 1:
        return Alone()
    return KeyValueCoordination(
        state.client, process_index=state.process_id, process_count=state.num_processes
    )
