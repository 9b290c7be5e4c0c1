import dataclasses
import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partitioning.planner.calculators.reliability import (
    Saving,
    availability,
    daly,
    mtbf,
    mtbf_for,
    per_week,
    recovery_for,
    save_share,
    young,
)

seconds = st.floats(1.0, 1e5)
jobs = st.builds(Saving, save=st.floats(0.5, 100), mtbf=st.floats(1e4, 1e6))


@given(st.integers(1, 100_000), st.floats(1e-4, 0.1))
def test_failures_of_a_week_times_the_time_between_them_is_a_week(devices, rate):
    assert per_week(devices, rate=rate) * mtbf(devices, rate=rate) == pytest.approx(7 * 86_400)


@given(jobs, st.floats(0.1, 10))
def test_no_interval_loses_less_than_young_in_first_order(job, factor):
    def lost(interval):
        return job.save / interval + interval / 2 / job.mtbf

    best = young(job.save, mtbf=job.mtbf)
    assert lost(best) <= lost(factor * best) + 1e-12


@given(jobs)
def test_daly_goes_to_young_as_saving_gets_cheap_and_stops_at_the_mtbf(job):
    assert daly(1e-6 * job.mtbf, mtbf=job.mtbf) == pytest.approx(
        young(1e-6 * job.mtbf, mtbf=job.mtbf), rel=1e-3
    )
    assert daly(3 * job.mtbf, mtbf=job.mtbf) == job.mtbf


def test_the_loss_is_that_of_a_simulated_run():
    """Fails at random for ten thousand days; the closed form is first order, so within 5%."""
    job = Saving(save=8.0, mtbf=14_765.6, recovery=300.0)
    interval = young(job.save, mtbf=job.mtbf)
    draw = random.Random(0)
    clock = useful = 0.0
    while clock < 10_000 * 86_400:
        until = draw.expovariate(1 / job.mtbf)
        useful += math.floor(until / (interval + job.save)) * interval
        clock += until + job.recovery
    assert 1 - useful / clock == pytest.approx(job.loss(interval).total, rel=0.05)


@given(jobs, st.floats(1, 1e4), st.floats(0.001, 1), st.floats(1, 1e6))
def test_the_chosen_interval_keeps_every_bound_or_is_refused(job, write, budget, progress):
    bounded = dataclasses.replace(job, write=write, budget=budget, progress=progress)
    if bounded.least > progress:
        with pytest.raises(ValueError, match="Nothing saves often enough"):
            bounded.interval()
        return
    interval, why = bounded.interval()
    assert why
    assert write <= interval <= progress
    assert save_share(interval, save=job.save) <= budget + 1e-9
    free = young(job.save, mtbf=job.mtbf)
    assert interval == min(max(free, bounded.least), progress)


@given(seconds, st.floats(0.5, 0.9999))
def test_recovery_and_availability_are_inverse(between, wanted):
    recovery = recovery_for(between, availability=wanted)
    assume(recovery > 0)
    assert availability(between, recovery=recovery) == pytest.approx(wanted)
    assert mtbf_for(recovery, availability=wanted) == pytest.approx(between)
