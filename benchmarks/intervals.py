"""Ratios of interleaved measurements, with the interval that the rounds support."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, low, high) of measurements in any order.

    The interval holds the median with at least 95% confidence, whatever the distribution: the
    number of measurements below the true median is binomial with one half (order statistics; David
    and Nagaraja, 2003, section 7.1). Under six measurements it is the whole range, and covers less.
    """
    ordered, count = sorted(values), len(values)
    outside, tail = 0, 0.0
    while outside < (count - 1) // 2:
        tail += math.comb(count, outside) / 2.0**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside += 1
    drop = max(outside - 1, 0)
    return statistics.median(ordered), ordered[drop], ordered[count - 1 - drop]


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Returns the ratio of each round; both were measured in the same one."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
