"""The first cause is named, whatever fails after it and in whatever order that is heard of."""

import random

from hypothesis import given
from hypothesis import strategies as st

from launch.classify import Evidence, Fault, culprit, reason
from launch.exit_codes import ExitCode
from launch.orders import RankState
from launch.records import Phase, RankExit

WAITS = (
    "State: S (sleeping)\n\n"
    'Thread 0x1 (most recent call first):\n  File "threading.py", line 1 in wait\n\n'
    'Current thread 0x2 (most recent call first):\n  File "/x/jax/api.py", line 3 in device_get\n'
    '  File "/x/trainer/loop.py", line 9 in train\n'
)
SLEEPS = WAITS.replace("/x/jax/api.py", "/x/input_pipeline/loader.py").replace("device_get", "read")


def ended(rank: int, code: int, *, at: float, cascade: bool = False, cause: str = "X") -> RankExit:
    return RankExit(
        attempt=1,
        rank=rank,
        host=f"h{rank}",
        pid=1,
        code=code,
        cause=cause,
        message=cause,
        time=at,
        cascade=cascade,
        step=7,
        saved_step=5,
    )


def state(rank: int, step: int | None = 7) -> RankState:
    return RankState(
        rank=rank,
        host=f"h{rank}",
        phase=Phase.STEP,
        step=step,
        saved_step=5,
        loss=None,
        idle_s=1.0,
    )


def evidence(exits: list[RankExit], **more: object) -> Evidence:
    values = {"attempt": 1, "ranks": 4, "exits": {each.rank: each for each in exits}, **more}
    return Evidence(**values)


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 10**6))
def test_the_first_failure_is_the_cause_in_any_order(order, guilty, seed):
    chance = random.Random(seed)
    exits = [
        ended(rank, 137 if rank == guilty else 85, at=chance.uniform(1, 9), cascade=rank != guilty)
        for rank in order
    ]
    found = reason(evidence(exits))
    assert (found.rank, found.code, found.host) == (guilty, 137, f"h{guilty}")


def test_the_earliest_of_two_failures_counts():
    found = reason(evidence([ended(2, 70, at=5.0), ended(1, 137, at=4.0)]))
    assert found.rank == 1


def test_survivors_of_a_silent_rank_point_at_it():
    exits = [ended(rank, 85, at=1.0, cascade=True) for rank in (0, 1, 3)]
    found = reason(evidence(exits, states={2: state(2)}))
    assert (found.rank, found.host, found.code) == (2, "h2", ExitCode.INFRASTRUCTURE)


def test_a_silent_rank_that_still_lives_is_a_hang():
    exits = [ended(rank, 134, at=1.0, cascade=True) for rank in (0, 1, 3)]
    text = "State: T (stopped)\n"
    found = reason(evidence(exits, states={2: state(2)}, stacks={2: text}))
    assert (found.rank, found.code) == (2, ExitCode.HANG)
    assert "stopped" in found.message


def test_a_lost_host_is_the_cause_of_aborts_before_it_was_noticed():
    lost = Fault(code=ExitCode.INFRASTRUCTURE, host="h3", cause="HostLost", message="m", time=10.0)
    exits = [ended(rank, 134, at=9.0 + rank) for rank in (0, 1, 2)]
    found = reason(evidence(exits, faults=[lost]))
    assert (found.cause, found.host) == ("HostLost", "h3")


def test_a_crash_long_before_a_host_is_lost_is_its_own_cause():
    lost = Fault(code=ExitCode.INFRASTRUCTURE, host="h3", cause="HostLost", message="m", time=60.0)
    found = reason(evidence([ended(1, 70, at=9.0)], faults=[lost]))
    assert (found.rank, found.code) == (1, 70)


def test_all_done_is_done():
    found = reason(evidence([ended(rank, 0, at=1.0) for rank in range(4)]))
    assert found.code == 0


def test_done_by_some_is_not_done():
    found = reason(evidence([ended(rank, 0, at=1.0) for rank in range(3)]))
    assert (found.code, found.cause) == (ExitCode.INFRASTRUCTURE, "NoWord")


def test_saved_and_left_is_preempted():
    found = reason(evidence([ended(rank, 75, at=1.0) for rank in range(4)]))
    assert (found.code, found.saved_step) == (ExitCode.PREEMPTED, 5)


def test_the_only_one_that_does_not_wait_holds_up_the_others():
    states = {rank: state(rank) for rank in range(2)}
    rank, why = culprit(states, {0: WAITS, 1: SLEEPS})
    assert rank == 1
    assert "read" in why


def test_a_stopped_process_holds_up_the_others():
    assert culprit({}, {0: WAITS, 1: "State: T (stopped)\n", 2: WAITS})[0] == 1


def test_the_one_behind_is_named_where_stacks_say_nothing():
    states = {0: state(0), 1: state(1, 6), 2: state(2)}
    assert culprit(states, dict.fromkeys(range(3), WAITS))[0] == 1


def test_nobody_is_named_where_all_look_alike():
    states = {rank: state(rank) for rank in range(3)}
    assert culprit(states, dict.fromkeys(range(3), WAITS))[0] is None
