import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from tests.trainer.checkpoints.fake_client import FakeClient, processes
from trainer.checkpoints.coordination import Alone, Coordination, of_this_process


def together(count: int, work: Callable[[Coordination], Any], *, absent: int = -1) -> list[Any]:
    """What each of several processes returns or raises; ``absent`` does not come."""
    peers = [p for p in processes(count) if p.process_index != absent]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, peer) for peer in peers]
        return [future.exception(60) or future.result() for future in futures]


def test_rank_0_gathers_by_rank_and_all_hear_what_it_says() -> None:
    def work(peers: Coordination) -> tuple[list[str], str]:
        gathered = peers.gather("g", f"v{peers.process_index}", timeout_s=30)
        return gathered, peers.broadcast("b", "".join(gathered), timeout_s=30)

    assert together(3, work) == [(["v0", "v1", "v2"], "v0v1v2"), ([], "v0v1v2"), ([], "v0v1v2")]


def test_a_rank_that_does_not_come_is_named() -> None:
    def work(peers: Coordination) -> None:
        peers.barrier("restore", timeout_s=0.3)

    rank_0, *others = together(4, work, absent=2)
    assert isinstance(rank_0, TimeoutError)
    assert "restore/in: rank 2 did not come within 0.3 s" in str(rank_0)
    assert all("rank 0 did not come" in str(error) for error in others)


def test_all_pass_a_barrier_that_all_reach() -> None:
    assert together(3, lambda p: p.barrier("x", timeout_s=30)) == [None] * 3


def test_gathered_values_do_not_pile_up_in_the_service() -> None:
    client = FakeClient()
    first, second = processes(2, client)
    second.gather("g", "large", timeout_s=30)
    first.gather("g", "", timeout_s=30)
    assert client.values == {}


def test_an_error_of_the_service_is_not_taken_for_a_late_rank() -> None:
    class Dead(FakeClient):
        def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
            raise RuntimeError("UNAVAILABLE: the coordinator is gone")

    with pytest.raises(RuntimeError, match="coordinator is gone"):
        processes(2, Dead())[1].broadcast("b", "", timeout_s=30)


def test_a_single_process_coordinates_with_nobody() -> None:
    assert isinstance(of_this_process(), Alone)
    assert Alone().gather("g", "v", timeout_s=0) == ["v"]
    assert Alone().broadcast("b", "v", timeout_s=0) == "v"
