"""A stuck process is noticed within its limit, and a slow one is left alone."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.records import Phase, Progress
from launch.watchdog import Limits, Watch

LIMITS = Limits(
    phases={phase: 100.0 for phase in Phase if phase is not Phase.STEP},
    step_factor=5.0,
    step_min_s=2.0,
    step_max_s=60.0,
    speaks=True,
)


def progress(at: float, phase: Phase, step: int | None = None) -> Progress:
    return Progress(attempt=1, phase=phase, step=step, monotonic_ns=int(at * 1e9))


def trained(times: list[float]) -> Watch:
    """A process whose n-th step ended at the n-th time."""
    watch = Watch(LIMITS, now=0.0)
    for step, at in enumerate(times, start=1):
        watch.saw(progress(at, Phase.STEP, step))
    return watch


def test_a_process_that_never_speaks_has_the_limit_of_the_start():
    watch = Watch(LIMITS, now=0.0)
    assert watch.overdue(99.0) is None
    assert "phase start" in (watch.overdue(101.0) or "")


def test_a_command_of_others_may_be_silent():
    limits = Limits(**{**vars(LIMITS), "speaks": False})
    assert Watch(limits, now=0.0).overdue(1e9) is None


def test_compiling_is_no_step():
    watch = Watch(LIMITS, now=0.0)
    watch.saw(progress(1.0, Phase.COMPILE))
    assert watch.overdue(100.0) is None


def test_the_first_step_arms_the_longest_limit():
    watch = trained([50.0])
    assert watch.limit_s() == LIMITS.step_max_s


def test_a_typical_step_sets_the_limit():
    watch = trained([10.0, 11.0, 12.0, 13.0])
    assert watch.limit_s() == pytest.approx(5.0)
    assert watch.overdue(18.0) is None
    assert "after step 4" in (watch.overdue(18.1) or "")


def test_fast_steps_do_not_make_it_nervous():
    watch = trained([n / 100 for n in range(1, 50)])
    assert watch.limit_s() == LIMITS.step_min_s


def test_the_same_step_again_is_no_progress():
    watch = trained([1.0, 2.0])
    watch.saw(progress(50.0, Phase.STEP, 2))
    assert watch.idle_s(50.0) == pytest.approx(48.0)


def test_a_save_that_was_committed_is_known_and_no_progress():
    watch = trained([1.0, 2.0])
    watch.saw(dataclasses.replace(progress(50.0, Phase.STEP, 2), saved_step=2))
    assert watch.last.saved_step == 2
    assert watch.idle_s(50.0) == pytest.approx(48.0)


def test_an_evaluation_that_goes_on_is_progress():
    watch = trained([1.0, 2.0])
    for at in range(3, 500, 50):
        watch.saw(progress(at, Phase.EVALUATE, 2))
        assert watch.overdue(at + 49) is None
    assert watch.overdue(460 + 101) is not None


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=100))
def test_the_limit_stays_within_its_bounds(durations):
    watch = Watch(LIMITS, now=0.0)
    at = 0.0
    for step, duration in enumerate(durations, start=1):
        at += duration
        watch.saw(progress(at, Phase.STEP, step))
        limit = watch.limit_s()
        assert LIMITS.step_min_s <= limit <= LIMITS.step_max_s
        assert watch.overdue(at) is None
        assert watch.overdue(at + limit + 0.1) is not None
