"""The idle share of a pipeline, and what keeps it under a bound. Standard library only.

Narayanan et al. 2021 (Efficient Large-Scale Language Model Training on GPU Clusters, section 2.2).
The tables of partitioning/schedules.py have exactly this bubble. Microbatches are those of one
replica: pipelines of different replicas do not help one another.
"""

import fractions
import math

from partitioning.planner.calculators.state import Layout


def bubble(stages: int, *, microbatches: int, chunks: int = 1) -> float:
    """Returns the share of a step in which a stage waits: (S - 1) / (S - 1 + V M)."""
    return (stages - 1) / (stages - 1 + chunks * microbatches)


def least_microbatches(stages: int, *, below: float, chunks: int = 1) -> int:
    """Returns the fewest microbatches whose bubble is smaller than a share between 0 and 1."""
    return math.floor(_work(stages, below) / chunks) + 1


def least_chunks(stages: int, *, microbatches: int, at_most: float) -> int:
    """Returns the fewest chunks per stage whose bubble does not exceed a share."""
    return max(1, math.ceil(_work(stages, at_most) / microbatches))


def most_stages(microbatches: int, *, at_most: float) -> int:
    """Returns the most stages, without chunks, whose bubble does not exceed a share."""
    bound = _exact(at_most)
    return math.floor(microbatches * bound / (1 - bound)) + 1


def microbatches_by_the_book(accumulation: int, *, data: int, stages: int) -> float:
    """Returns the chapter's M = accumulation x DP / PP, which counts other replicas' (E8)."""
    return accumulation * data / stages


def sequences(microbatch: int, *, accumulation: int, layout: Layout) -> int:
    """Returns rows of a global batch."""
    return microbatch * accumulation * layout.data


def _work(stages: int, bound: float) -> fractions.Fraction:
    """V x M at which the bubble is the bound."""
    share = _exact(bound)
    return (stages - 1) * (1 - share) / share


def _exact(share: float) -> fractions.Fraction:
    exact = fractions.Fraction(share).limit_denominator(10**6)
    if not 0 < exact < 1:
        raise ValueError(
            f"A bound on the bubble lies between 0 and 1, exclusive, in millionths: not {share:g}."
        )
    return exact
