"""What many teams submit to one cluster: small jobs mostly, a few large. Standard library only."""

import math
import random

from partitioning.planner.calculators.reliability import DAY
from partitioning.planner.simulation.cluster_simulation import JobRequest, SharedCluster, TeamShare

_SIZES = ((1, 40), (2, 20), (4, 18), (8, 14), (16, 5), (32, 2), (64, 1))
"""(hosts, weight): most jobs have 8 to 64 devices."""
_PRIORITIES = ((500, 70), (250, 12), (0, 8), (750, 8), (1000, 2))
_MEDIAN_S, _SPREAD = 4 * 3600.0, 1.2
"""Of a job's length, a log-normal distribution."""
_MOST = 100_000
"""Jobs, some minutes."""


def usual_jobs(hosts: int) -> int:
    """Returns how many jobs at a time keep nine tenths of the hosts busy."""
    size = sum(s * w for s, w in _SIZES) / sum(w for _, w in _SIZES)
    return max(1, round(0.9 * hosts / size))


def mix(
    *,
    hosts: int,
    shares: tuple[TeamShare, ...],
    jobs: int,
    seed: int,
    days: float = 3.0,
) -> tuple[SharedCluster, tuple[JobRequest, ...]]:
    """Returns a cluster and what its teams submit: small jobs at random, and one of half its size.

    Args:
      hosts: of the cluster.
      shares: who owns it.
      jobs: how many would run at a time if none had to wait.
      seed: the same gives the same.
      days: within which they come.
    """
    chance = random.Random(seed)
    mean = _MEDIAN_S * math.exp(_SPREAD**2 / 2)
    window = days * DAY
    if (expected := window * jobs / mean) > _MOST:
        raise ValueError(
            f"{jobs} jobs at a time for {days:g} days are {expected:.3g} jobs, too many to "
            f"simulate; at most {_MOST:,}. Give fewer --jobs or --days."
        )
    requests = [_request(chance, 0, shares, hosts, size=max(1, hosts // 2), at=window / 2)]
    sizes, weights = zip(*_SIZES, strict=True)
    now = 0.0
    while (now := now + chance.expovariate(jobs / mean)) < window:
        size = chance.choices(sizes, weights)[0]
        requests.append(_request(chance, len(requests), shares, hosts, size=size, at=now))
    return SharedCluster(hosts=hosts, teams=shares), tuple(requests)


def equal_teams(count: int, *, hosts: int) -> tuple[TeamShare, ...]:
    """Returns teams that own a cluster in equal parts."""
    each, over = divmod(hosts, count)
    return tuple(TeamShare(name=f"team-{i:02}", hosts=each + (i < over)) for i in range(count))


def _request(
    chance: random.Random,
    number: int,
    shares: tuple[TeamShare, ...],
    hosts: int,
    *,
    size: int,
    at: float,
) -> JobRequest:
    team = chance.choice(shares)
    most = hosts if team.borrow is None else min(hosts, team.hosts + team.borrow)
    priorities, weights = zip(*_PRIORITIES, strict=True)
    return JobRequest(
        number=number,
        team=team.name,
        hosts=min(size, most),
        seconds=_MEDIAN_S * chance.lognormvariate(0.0, _SPREAD),
        at=at,
        priority=chance.choices(priorities, weights)[0],
    )
