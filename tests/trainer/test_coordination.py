"""Barriers and values: with one process, and against a stand-in of jax's client."""

import concurrent.futures
import threading

import pytest

from tests.trainer.fake_client import Client, Store, gang
from trainer.coordination import Alone, Joined, PeersMissingError, agree


def together(work, *, count, absent=-1):
    """What each of several processes returns or raises; ``absent`` does not come."""
    peers = [peer for peer in gang(count) if peer.process_index != absent]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, peer) for peer in peers]
        return [future.exception(60) or future.result() for future in futures]


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


def test_rank_0_gathers_by_rank_and_all_hear_what_it_says():
    def work(peers):
        gathered = peers.gather("g", f"v{peers.process_index}", timeout_s=30)
        return gathered, peers.broadcast("b", "".join(gathered), timeout_s=30)

    assert together(work, count=3) == [
        (["v0", "v1", "v2"], "v0v1v2"),
        ([], "v0v1v2"),
        ([], "v0v1v2"),
    ]


def test_a_gather_names_the_ranks_that_did_not_come():
    def work(peers):
        return peers.gather("1/save/10.a1/files", "", timeout_s=0.3)

    rank_0, *others = together(work, count=4, absent=2)
    assert isinstance(rank_0, PeersMissingError)
    assert str(rank_0) == "1/save/10.a1/files: rank 2 did not come within 0.3 s."
    assert others == [[], []]


def test_a_broadcast_says_that_rank_0_did_not_come():
    with pytest.raises(PeersMissingError, match=r"^b: rank 0 did not come within 0.01 s"):
        gang(2)[1].broadcast("b", "", timeout_s=0.01)


def test_what_was_gathered_and_broadcast_does_not_pile_up_in_the_service():
    first, *others = gang(3)
    for peer in others:
        peer.gather("g", "large", timeout_s=30)
    first.gather("g", "", timeout_s=30)
    first.broadcast("b", "large", timeout_s=30)
    assert [peer.broadcast("b", "", timeout_s=30) for peer in others] == ["large"] * 2
    assert first._client.store.values == {}


def test_an_error_of_the_service_is_not_taken_for_a_late_rank():
    class Dead(Client):
        def blocking_key_value_get(self, key, timeout_in_ms):
            raise RuntimeError("UNAVAILABLE: the coordinator is gone")

    peer = Joined(Dead(Store(2)), process_index=1, process_count=2)
    with pytest.raises(RuntimeError, match="coordinator is gone"):
        peer.broadcast("b", "", timeout_s=30)


@pytest.mark.parametrize("peers", [Alone(), gang(1)[0]], ids=["alone", "joined"])
def test_a_single_process_gathers_and_broadcasts_its_own_value(peers):
    assert peers.gather("g", "v", timeout_s=0) == ["v"]
    assert peers.broadcast("b", "v", timeout_s=0) == "v"
