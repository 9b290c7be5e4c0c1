import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.spares import by_share, poisson_quantile, restarts, spares


def at_most(count, mean):
    return sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))


@given(st.floats(0.001, 60), st.floats(0.01, 0.999))
def test_so_many_are_enough_and_one_less_is_not(mean, confidence):
    enough = poisson_quantile(mean, confidence=confidence)
    assert at_most(enough, mean) >= confidence - 1e-9
    if enough:
        assert at_most(enough - 1, mean) < confidence + 1e-9


@pytest.mark.parametrize("mean", [5e3, 1e9])
def test_large_means_neither_underflow_nor_take_long(mean):
    normal = mean + 2.576 * math.sqrt(mean)
    assert poisson_quantile(mean, confidence=0.995) == pytest.approx(normal, rel=0.002)


def test_nothing_fails_without_failures():
    assert poisson_quantile(0, confidence=0.99) == 0


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_certainty_is_no_confidence(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        poisson_quantile(1, confidence=confidence)


def test_simulated_runs_stay_within_their_restart_budget():
    draw, day = random.Random(1), 86_400.0
    budget = restarts(day, duration=30 * day, confidence=0.95)
    kept = 0
    for _ in range(2000):
        clock, failures = draw.expovariate(1 / day), 0
        while clock < 30 * day:
            failures += 1
            clock += draw.expovariate(1 / day)
        kept += failures <= budget
    assert 0.93 < kept / 2000 < 0.98


def test_longer_repairs_need_more_spares():
    kept = [spares(7200, repair=hours * 3600, confidence=0.995) for hours in (1, 4, 24, 168)]
    assert kept == sorted(set(kept))


def test_a_share_is_rounded_up_and_not_by_a_rounding_error():
    assert [by_share(hosts, share=0.05) for hosts in (64, 60, 1)] == [4, 3, 1]


def test_a_mean_of_any_size_is_answered_at_once_and_without_a_step():
    around = [poisson_quantile(mean, confidence=0.99) for mean in (999_999, 1_000_001)]
    assert around[1] - around[0] in (1, 2, 3)
    assert poisson_quantile(1e20, confidence=0.99) > 1e20
