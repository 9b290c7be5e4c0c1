"""The simulated run against closed forms, and its books against themselves."""

import dataclasses
import math
import statistics

import hypothesis
import pytest
from hypothesis import strategies

from partitioning.planner.calculators.reliability import DAY, WEEK
from partitioning.planner.simulation.failure_classes import FailureClass, meta, uniform
from partitioning.planner.simulation.run_simulation import (
    Case,
    Stragglers,
    Tier,
    percentiles,
    simulate,
    simulate_many,
)
from tests.partitioning.planner.asking import answer

SYNCHRONOUS = Tier(name="store", blocked=20.0, written=20.0, restore=15.0)
RUN = Case(
    devices=4096,
    work=20 * DAY,
    interval=900.0,
    tiers=(SYNCHRONOUS,),
    classes=uniform(0.01, detection=25.0, restart=200.0),
    spares=10**6,
)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def test_the_mean_is_dalys_exact_expectation() -> None:
    """Daly (2006), equation 13: M e^(R/M) (e^((tau + C)/M) - 1) for each interval."""
    detected = FailureClass(name="host", rate=0.01, detection=0.0, restart=200.0)
    case = dataclasses.replace(RUN, classes=(detected,))
    mtbf = WEEK / (0.01 * case.devices)
    restart = detected.restart + SYNCHRONOUS.restore
    each = mtbf * math.exp(restart / mtbf) * math.expm1((case.interval + 20.0) / mtbf)
    expected = case.work / case.interval * each
    mean, error = mean_and_error([r.wall for r in simulate_many(case, trials=60)])
    assert abs(mean - expected) < 4 * error
    assert 4 * error < 0.01 * expected


def test_419_interruptions_in_54_days() -> None:
    case = Case(
        devices=16_384,
        work=1e9,
        horizon=54 * DAY,
        interval=600.0,
        tiers=(Tier(name="memory", blocked=1.0, written=5.0, restore=10.0),),
        classes=meta(),
        spares=1000,
    )
    runs = simulate_many(case, trials=40)
    # Faults come at all times, also while the run starts again, so that they are Poisson.
    mean, error = mean_and_error([float(sum(r.faults for r in run.recoveries)) for run in runs])
    assert abs(mean - 419) < max(4 * error, 5)
    causes = [recovery.cause for run in runs for recovery in run.recoveries]
    assert causes.count("faulty GPU") / len(causes) == pytest.approx(148 / 419, abs=0.02)


def test_without_failures_only_saves_cost() -> None:
    case = dataclasses.replace(RUN, classes=(), work=9000.0)
    run = simulate(case, seed=1)
    assert (run.wall, run.recoveries) == (9000.0 + 9 * 20.0, ())
    assert run.goodput == 9000.0 / 9180.0


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    interval=strategies.floats(50, 5000),
    blocked=strategies.floats(0, 60),
    written=strategies.floats(0, 4000),
    rate=strategies.floats(0.001, 0.3),
    spares=strategies.integers(0, 4),
    slow=strategies.floats(0, 0.2),
    reach=strategies.integers(0, 3),
    seed=strategies.integers(0, 10**6),
)
def test_every_second_is_accounted_for(
    interval, blocked, written, rate, spares, slow, reach, seed
) -> None:
    kind = FailureClass(
        name="any", rate=rate, detection=20.0, restart=100.0, takes_host=True, reach=reach
    )
    case = Case(
        devices=512,
        work=1.0 * DAY,
        interval=interval,
        tiers=(
            Tier(name="memory", blocked=blocked, written=blocked, restore=5.0, survives=1),
            Tier(name="store", every=3, blocked=blocked, written=written, restore=60.0),
        ),
        classes=(kind,),
        stragglers=Stragglers(rate=slow),
        spares=spares,
        repair=600.0,
    )
    run = simulate(case, seed=seed)
    parts = run.work + run.saving + run.lost + run.still + run.slow
    assert run.wall == pytest.approx(parts)
    assert run.work == pytest.approx(case.work)
    assert run.still == pytest.approx(sum(r.still for r in run.recoveries))
    assert run.lost == pytest.approx(sum(r.lost for r in run.recoveries))
    assert all(r.still >= 100.0 and r.lost >= 0 and r.waited >= 0 for r in run.recoveries)
    if reach > 1:
        failed = [r for r in run.recoveries if r.cause == "any"]
        assert all(r.tier == "store" for r in failed), "memory does not survive two hosts"


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert simulate(RUN, seed=3) == simulate(RUN, seed=3)
    assert simulate(RUN, seed=3) != simulate(RUN, seed=4)


def test_what_is_lost_is_at_most_an_interval_and_what_was_not_yet_written() -> None:
    written = 300.0
    tier = Tier(name="store", blocked=5.0, written=written, restore=15.0)
    run = simulate(dataclasses.replace(RUN, tiers=(tier,)), seed=5)
    assert 0 < max(r.lost for r in run.recoveries) <= RUN.interval + written
    mean = statistics.mean(r.lost for r in run.recoveries)
    assert mean == pytest.approx(RUN.interval / 2 + written, rel=0.2)


def test_a_write_longer_than_the_interval_is_finished_before_the_next_begins() -> None:
    tier = Tier(name="store", blocked=5.0, written=2000.0, restore=15.0)
    run = simulate(dataclasses.replace(RUN, interval=50.0, tiers=(tier,)), seed=5)
    assert 0 < max(r.lost for r in run.recoveries) <= 2 * tier.written + 50.0
    saves = run.saving / tier.blocked
    assert saves <= run.wall / tier.written + len(run.recoveries) + 1


def test_without_spares_the_run_waits_for_repairs() -> None:
    none = simulate(dataclasses.replace(RUN, spares=0, repair=3600.0), seed=2)
    some = simulate(dataclasses.replace(RUN, spares=4, repair=3600.0), seed=2)
    assert all(r.waited == 3600.0 for r in none.recoveries)
    assert sum(r.waited for r in some.recoveries) < 0.1 * sum(r.waited for r in none.recoveries)


def test_a_finer_tier_in_memory_loses_less() -> None:
    both = (
        Tier(name="memory", blocked=1.0, written=2.0, restore=5.0, survives=1),
        Tier(name="store", every=9, blocked=20.0, written=60.0, restore=60.0),
    )
    tiered = simulate(dataclasses.replace(RUN, tiers=both, interval=100.0), seed=7)
    assert tiered.goodput > simulate(RUN, seed=7).goodput
    assert {r.tier for r in tiered.recoveries} == {"memory"}


def test_stragglers_cost_what_they_slow() -> None:
    slow = Stragglers(rate=0.002, factor=1.5, noticed=900.0)
    case = dataclasses.replace(RUN, classes=(), stragglers=slow)
    run = simulate(case, seed=1)
    count = len(run.recoveries)
    assert count > 10
    assert run.slow == pytest.approx(count * 900.0 / 1.5 * 0.5, rel=0.01)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentiles(values) == {0.5: 50.0, 0.9: 90.0, 0.99: 99.0}
    assert percentiles([]) == {0.5: 0.0, 0.9: 0.0, 0.99: 0.0}


@pytest.mark.parametrize(
    "change",
    [{"interval": 0.0}, {"work": 0.0}, {"devices": 0}, {"tiers": ()}],
    ids=str,
)
def test_impossible_cases_are_refused(change) -> None:
    with pytest.raises(ValueError, match=r"positive|first tier"):
        dataclasses.replace(RUN, **change)


def test_a_schedule_is_played_as_it_is_written() -> None:
    kind = FailureClass(name="kill", rate=0.0, detection=10.0, restart=90.0)
    tier = Tier(name="disk", blocked=5.0, written=5.0, restore=20.0)
    case = Case(
        devices=8,
        work=1000.0,
        interval=100.0,
        tiers=(tier,),
        classes=(kind,),
        schedule=(150.0, 200.0, 700.0),
    )
    run = simulate(case, seed=0)
    first, second = run.recoveries
    assert (first.at, first.lost, first.still, first.faults) == (150.0, 45.0, 160.0, 2)
    assert (second.at, second.lost, second.still) == (700.0, 75.0, 120.0)
    assert run.wall == 1000.0 + 9 * 5.0 + run.lost + run.still
    with pytest.raises(ValueError, match="must ascend"):
        dataclasses.replace(case, schedule=(2.0, 1.0))


def test_durations_and_rates_are_read_as_elsewhere():
    plain = "simulate run --trials=1 --days=2 --failures=0.02 --interval=600 --repair=7200"
    units = "simulate run --trials=1 --days=2 --failures=2% --interval=10min --repair=2h"
    assert answer(plain) == answer(units)
