"""The place to stop is the same in every process, whatever each was doing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.coordination import Alone, PeersMissingError
from trainer.preemption import Agreement, Preemption


class Shared(Alone):
    """Several processes of one test, sharing one set of values."""

    def __init__(self, store, index, count):
        self._values, self._changed = store._values, store._changed
        self.process_index, self.process_count = index, count


def several(count):
    store = Alone()
    return [Shared(store, index, count) for index in range(count)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_all_processes_stop_at_one_call_that_none_has_passed(counts):
    agreements = [Agreement(peers) for peers in several(len(counts))]
    for agreement, count in zip(agreements, counts, strict=True):
        assert not any(agreement.reached() for _ in range(count))
    with ThreadPoolExecutor(len(counts)) as pool:
        assert all(pool.map(lambda agreement: agreement.settle(timeout_s=10), agreements))
    stops = []
    for agreement, count in zip(agreements, counts, strict=True):
        calls = count + 1
        while not agreement.reached():
            calls += 1
        stops.append(calls)
    assert stops == [max(counts) + 1] * len(counts)


def test_a_process_that_keeps_calling_meanwhile_stops_at_the_same_place():
    agreements = [Agreement(peers) for peers in several(2)]
    started, stops = threading.Event(), [0, 0]

    def run(index):
        while True:
            stops[index] += 1
            if agreements[index].reached():
                return
            started.set()

    runner = threading.Thread(target=run, args=(0,))
    runner.start()
    started.wait()
    assert not agreements[1].reached()
    stops[1] = 1
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda agreement: agreement.settle(timeout_s=10), agreements))
    run(1)
    runner.join()
    assert stops[0] == stops[1]


def test_where_one_process_has_not_begun_all_learn_that_there_is_nothing_to_save():
    agreements = [Agreement(peers) for peers in several(2)]
    agreements[0].reached()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda agreement: agreement.settle(timeout_s=10), agreements)) == [
            False,
            False,
        ]


def test_a_process_that_does_not_answer_is_an_error_and_not_a_hang():
    agreement = Agreement(several(2)[0])
    agreement.reached()
    with pytest.raises(PeersMissingError, match="stop/count/1"):
        agreement.settle(timeout_s=0.01)
    assert not agreement.reached()


def test_signals_before_joining_and_second_signals_leave_at_once():
    left = []
    preemption = Preemption(left.append)
    preemption.received()
    assert left == ["SIGTERM before the run was joined; nothing to save"]
    preemption.received()
    assert left[1].startswith("a second SIGTERM")


def test_under_a_launcher_a_second_signal_does_not_cost_the_save():
    """Slurm signals every process of a job, and the agent passes its own on."""
    left = []
    preemption = Preemption(left.append, launched=True)
    preemption.connect(Alone())
    preemption.received()
    preemption.received()
    while not preemption.reached():
        pass
    assert left == []


def test_asking_before_joining_is_a_programming_error():
    with pytest.raises(RuntimeError, match="join the run first"):
        Preemption(print).reached()


def test_the_first_signal_after_joining_is_told_to_all():
    peers, left = Alone(), []
    preemption = Preemption(left.append)
    preemption.connect(peers)
    assert not preemption.reached()
    preemption.received()
    while not preemption.reached():
        pass
    assert left == []
    assert peers.get("stop/notice", timeout_s=0) == "0"
