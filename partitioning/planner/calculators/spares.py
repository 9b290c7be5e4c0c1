"""How many spare hosts, and how many restarts, are enough: quantiles of the Poisson distribution.

Failures come independently of one another at a steady rate; what a whole rack or switch takes down
at once is not in it. Standard library only.
"""

import math
import statistics

_NORMAL = 1e6
"""From this mean on, the distribution is a normal one to a millionth of its width."""


def poisson_quantile(mean: float, *, confidence: float) -> int:
    """Returns the least k for which a Poisson variable is at most k with this probability.

    Raises:
      ValueError: the confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"A confidence lies between 0 and 1, exclusive: not {confidence:g}.")
    if mean == 0:
        return 0
    if mean > _NORMAL:
        return math.ceil(mean + statistics.NormalDist().inv_cdf(confidence) * math.sqrt(mean))
    far = 40 * math.sqrt(mean) + 40  # what lies further from the mean has no weight
    count, below = max(0, math.floor(mean - far)), 0.0
    while True:
        below += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        if below >= confidence or count > mean + far:
            return count
        count += 1


def spares(mtbf: float, *, repair: float, confidence: float) -> int:
    """Returns hosts to keep so that a failure finds one ready with this probability.

    Args:
      mtbf: seconds between failures of the job.
      repair: seconds until a failed host is a spare again.
      confidence: as a share.
    """
    return poisson_quantile(repair / mtbf, confidence=confidence)


def restarts(mtbf: float, *, duration: float, confidence: float) -> int:
    """Returns the restart budget that suffices for a run of ``duration`` seconds."""
    return poisson_quantile(duration / mtbf, confidence=confidence)


def by_share(hosts: int, *, share: float) -> int:
    """Returns a share of the hosts, rounded up, as rules of thumb have it."""
    return math.ceil(round(hosts * share, 9))
