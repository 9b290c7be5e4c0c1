"""What many teams submit to one cluster: small jobs mostly, a few large. Standard library only."""

import dataclasses
import random

from partitioning.planner.cluster_simulation import JobRequest, SharedCluster, TeamShare

_SIZES = ((1, 40), (2, 20), (4, 18), (8, 14), (16, 5), (32, 2), (64, 1))
"""(hosts, weight): most jobs have 8 to 64 devices."""
_PRIORITIES = ((500, 70), (250, 12), (0, 8), (750, 8), (1000, 2))
_MEDIAN_S, _SPREAD = 4 * 3600.0, 1.2
"""Of a job's length, a log-normal distribution."""


def mix(
    *,
    hosts: int,
    teams: int,
    jobs: int,
    seed: int,
    load: float = 0.9,
    shares: tuple[TeamShare, ...] | None = None,
) -> tuple[SharedCluster, tuple[JobRequest, ...]]:
    """Returns a cluster and what its teams submit; one of the jobs asks for half of it.

    Args:
      hosts: of the cluster.
      teams: how many equal teams own it.
      jobs: how many they submit.
      seed: the same gives the same.
      load: work that is submitted, over what the cluster could do in the time of submission.
      shares: who owns it, if not equal teams.
    """
    chance = random.Random(seed)
    each, over = divmod(hosts, teams)
    shares = shares or tuple(
        TeamShare(name=f"team-{i:02}", hosts=each + (i < over)) for i in range(teams)
    )
    sizes, weights = zip(*_SIZES, strict=True)
    priorities, chances = zip(*_PRIORITIES, strict=True)
    requests = []
    for number in range(jobs):
        size = chance.choices(sizes, weights)[0] if number else max(1, hosts // 2)
        team = chance.choice(shares)
        most = hosts if team.borrow is None else min(hosts, team.hosts + team.borrow)
        requests.append(
            JobRequest(
                number=number,
                team=team.name,
                hosts=min(size, most),
                seconds=_MEDIAN_S * chance.lognormvariate(0.0, _SPREAD),
                at=chance.random(),
                priority=chance.choices(priorities, chances)[0],
            )
        )
    work = sum(request.hosts * request.seconds for request in requests)
    within = work / (hosts * load)
    placed = (dataclasses.replace(each, at=each.at * within) for each in requests)
    return SharedCluster(hosts=hosts, teams=shares), tuple(placed)
