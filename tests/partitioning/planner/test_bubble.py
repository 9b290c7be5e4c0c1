import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.bubble import (
    bubble,
    least_chunks,
    least_microbatches,
    most_stages,
)
from partitioning.schedules import build_schedule

stages = st.integers(2, 64)
percents = st.integers(1, 99)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_it_is_the_bubble_of_the_schedules_that_run(count, chunks, groups):
    sizes = {"chunks": chunks, "microbatches": groups * count}
    table = build_schedule("1f1b", stages=count, **sizes)
    assert table.bubble() == pytest.approx(bubble(count, **sizes))


@given(stages, percents, st.integers(1, 8))
def test_the_least_microbatches_are_below_the_bound_and_one_less_is_not(count, percent, chunks):
    least = least_microbatches(count, below=percent / 100, chunks=chunks)
    work = {n: count - 1 + chunks * n for n in (least, least - 1)}
    assert 100 * (count - 1) < percent * work[least]
    assert 100 * (count - 1) >= percent * work[least - 1]


@given(stages, percents, st.integers(1, 256))
def test_the_least_chunks_keep_the_bound_and_one_less_does_not(count, percent, microbatches):
    least = least_chunks(count, microbatches=microbatches, at_most=percent / 100)
    assert 100 * (count - 1) <= percent * (count - 1 + least * microbatches)
    if least > 1:
        fewer = count - 1 + (least - 1) * microbatches
        assert 100 * (count - 1) > percent * fewer


@given(percents, st.integers(1, 256))
def test_the_most_stages_keep_the_bound_and_one_more_does_not(percent, microbatches):
    most = most_stages(microbatches, at_most=percent / 100)
    assert 100 * (most - 1) <= percent * (most - 1 + microbatches)
    assert 100 * most > percent * (most + microbatches)


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_no_bubble_and_all_bubble_are_no_bounds(bound):
    with pytest.raises(ValueError, match="between 0 and 1"):
        least_microbatches(4, below=bound)
