"""jax's distributed client, in one process: what KeyValueCoordination calls of it."""

import threading

from trainer.checkpoints.coordination import KeyValueCoordination


class FakeClient:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self._changed:
            if key in self.values:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            for known in [k for k in self.values if k == key or k.startswith(key)]:
                del self.values[known]


def processes(count: int, client: FakeClient | None = None) -> list[KeyValueCoordination]:
    client = client or FakeClient()
    return [
        KeyValueCoordination(client, process_index=n, process_count=count) for n in range(count)
    ]
