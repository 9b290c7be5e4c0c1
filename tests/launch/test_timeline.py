"""The parts of a recovery add up, whatever was heard of it and in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.records import JournalEntry, Phase
from launch.timeline import recovery_timeline, stamped


def entry(event: str, at: float, **details: object) -> JournalEntry:
    return JournalEntry(time=at, event=event, attempt=1, details=details)


def ended(at: float, *, cause: float) -> JournalEntry:
    return entry("attempt_ended", at, reason={"time": cause})


def test_each_part_is_what_it_says():
    stamps = {}
    for line in (
        entry("incident", 12.0),
        ended(15.0, cause=10.0),
        entry("stacks", 15.1),
        entry("decided", 15.5),
        entry("attempt_planned", 20.5),
    ):
        stamps = stamped(stamps, line)
    entered = {Phase.RESTORE: 24.5, Phase.COMPILE: 26.5}
    found = recovery_timeline(stamps, ready=21.5, entered=entered, first=30.5)
    assert found == {
        "detect_s": 2.0,
        "stop_s": 3.0,
        "decide_s": 0.5,
        "wait_s": 5.0,
        "restart_s": 1.0,
        "start_s": 3.0,
        "restore_s": 2.0,
        "first_step_s": 4.0,
        "total_s": 20.5,
    }


def test_a_run_that_trains_owes_nothing():
    stamps = stamped({"cause": 1.0, "ended": 2.0}, entry("attempt_running", 3.0))
    assert stamps == {}


def test_a_second_failure_before_the_first_step_counts_from_the_first():
    stamps = {}
    for line in (ended(5.0, cause=4.0), entry("incident", 8.0), ended(9.0, cause=8.0)):
        stamps = stamped(stamps, line)
    assert stamps["cause"] == 4.0


TIMES = st.floats(0, 1000)


@given(
    cause=TIMES,
    stamps=st.dictionaries(st.sampled_from(["decided", "attempt_planned"]), TIMES),
    detected=TIMES,
    ended_at=TIMES,
    ready=st.one_of(st.none(), TIMES),
    entered=st.dictionaries(st.sampled_from(list(Phase)), TIMES),
    first=TIMES,
)
def test_parts_are_never_negative_and_add_up(
    cause, stamps, detected, ended_at, ready, entered, first
):
    stamps = {"cause": cause, "detected": detected, "ended": ended_at, **stamps}
    found = recovery_timeline(stamps, ready=ready, entered=entered, first=first)
    *parts, total = found.values()
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(total, abs=0.01)
