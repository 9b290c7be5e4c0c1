"""jax's distributed client for several processes in one, in memory, with its error texts."""

import threading

from trainer.coordination import Joined


class Client:
    """What `Joined` calls of jax's client."""

    def __init__(self, store):
        self.store = store

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.store.changed:
            if key in self.store.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.store.values[key] = value
            self.store.changed.notify_all()

    def key_value_delete(self, key):
        with self.store.changed:
            self.store.values.pop(key, None)

    def key_value_increment(self, key, increment):
        with self.store.changed:
            value = int(self.store.values.get(key, 0)) + increment
            self.store.values[key] = str(value)
            return value

    def key_value_dir_get(self, key):
        with self.store.changed:
            return [(k, v) for k, v in self.store.values.items() if k.startswith(f"{key}/")]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.store.changed:
            found = lambda: key in self.store.values  # noqa: E731
            if not self.store.changed.wait_for(found, timeout_in_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            return self.store.values[key]

    def wait_at_barrier(self, barrier_id, timeout_in_ms):
        if barrier_id in self.store.used:
            raise RuntimeError(f"INTERNAL: barrier {barrier_id} was already passed")
        try:
            self.store.gate.wait(timeout_in_ms / 1000)
        except threading.BrokenBarrierError:
            raise RuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: x") from None


class Store:
    def __init__(self, count):
        self.values, self.changed, self.used = {}, threading.Condition(), set()
        self.gate = threading.Barrier(count)


def gang(count):
    store = Store(count)
    return [Joined(Client(store), process_index=i, process_count=count) for i in range(count)]
