"""Barriers and values: with one process, and against a stand-in of jax's client."""

import threading

import pytest

from trainer.coordination import Alone, Joined, PeersMissingError, agree


class Client:
    """jax's distributed client, in memory, with its error texts."""

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


@pytest.mark.parametrize("peers", [Alone(), gang(1)[0]], ids=["alone", "joined"])
def test_values_are_put_replaced_and_got(peers):
    peers.put("k", "1")
    peers.put("k", "2")
    assert peers.get("k", timeout_s=1) == "2"
    with pytest.raises(PeersMissingError, match=r"'absent' within 0.01 s"):
        peers.get("absent", timeout_s=0.01)


def test_one_process_passes_every_barrier():
    Alone().barrier("x", timeout_s=0)


def test_a_value_is_seen_by_a_process_that_already_waits():
    first, second = gang(2)
    got = []
    waiter = threading.Thread(target=lambda: got.append(second.get("k", timeout_s=60)))
    waiter.start()
    first.put("k", "v")
    waiter.join()
    assert got == ["v"]


def test_a_barrier_can_be_passed_again_under_the_same_name():
    peers = gang(2)
    threads = [
        threading.Thread(target=lambda p=p: [p.barrier("x", timeout_s=60) for _ in range(3)])
        for p in peers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peers[0]._client.store.values == {}


def test_a_barrier_names_the_ranks_that_did_not_come():
    peers = gang(3)
    with pytest.raises(
        PeersMissingError, match=r"Barrier 'x': ranks 0, 2 did not come within 0.01"
    ):
        peers[1].barrier("x", timeout_s=0.01)


def test_other_errors_of_the_service_pass_through():
    peers = gang(1)[0]
    peers._client.store.used.add("lockstep/barrier/x/1")
    with pytest.raises(RuntimeError, match="INTERNAL"):
        peers.barrier("x", timeout_s=1)


def test_all_processes_take_the_value_of_process_0():
    first, second = gang(2)
    assert agree(first, "attempt", {"n": 3}, timeout_s=1) == {"n": 3}
    assert agree(second, "attempt", "mine", timeout_s=1) == {"n": 3}
