"""No policy ever gives out a host twice, starts half a gang, or forgets a job; quotas come back."""

import dataclasses
import random

import hypothesis
import pytest
from hypothesis import strategies

from partitioning.planner.simulation.cluster_simulation import (
    JobRequest,
    SharedCluster,
    TeamShare,
    shares,
    simulate_cluster,
)
from partitioning.planner.simulation.job_mix import equal_teams, mix, usual_jobs

TWO = (TeamShare(name="a", hosts=60, weight=60), TeamShare(name="b", hosts=40, weight=40))
CLUSTER = SharedCluster(hosts=100, teams=TWO)


def job(number: int, team: str, hosts: int, *, seconds: float = 3600.0, at: float = 0.0, **more):
    return JobRequest(number=number, team=team, hosts=hosts, seconds=seconds, at=at, **more)


requests = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["a", "b"]),
        strategies.integers(1, 60),
        strategies.floats(1, 50_000),
        strategies.floats(0, 100_000),
        strategies.sampled_from([0, 250, 500, 750, 1000]),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("policy", ["kueue", "slurm"])
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(asked=requests)
def test_every_job_ends_with_all_its_work_and_no_host_is_given_twice(policy, asked) -> None:
    cluster = dataclasses.replace(CLUSTER, policy=policy)
    found = simulate_cluster(
        cluster,
        [
            job(i, team, hosts, seconds=seconds, at=at, priority=priority)
            for i, (team, hosts, seconds, at, priority) in enumerate(asked)
        ],
    )
    assert found.most <= cluster.hosts
    for each in found.jobs:
        assert each.ended is not None
        assert each.wait is not None
        assert each.wait >= 0
        least = each.asked.seconds + cluster.start + each.preemptions * cluster.save
        assert each.ended - each.first_start >= least - 1e-6
    work = sum(each.asked.hosts * each.asked.seconds for each in found.jobs)
    assert sum(found.busy.values()) >= work * (1 - 1e-9)
    assert sum(found.busy.values()) <= found.until * cluster.hosts * (1 + 1e-9)


def test_a_gang_waits_whole_while_smaller_jobs_go_on() -> None:
    found = simulate_cluster(
        CLUSTER, [job(0, "a", 50), job(1, "a", 80, at=1.0), job(2, "a", 30, at=2.0)]
    )
    first, large, small = found.jobs
    assert (first.wait, small.wait) == (0.0, 0.0)
    assert large.first_start == pytest.approx(small.ended)
    assert found.most <= 100


def test_a_team_gets_its_quota_back_within_the_time_of_a_save() -> None:
    cluster = dataclasses.replace(CLUSTER, save=120.0)
    borrowers = [job(i, "a", 10, seconds=100_000.0) for i in range(10)]
    found = simulate_cluster(cluster, [*borrowers, job(10, "b", 40, at=500.0)])
    assert found.jobs[10].wait == 120.0
    assert found.reclaims == (120.0,)
    assert sum(each.preemptions for each in found.jobs[:10]) == 4
    assert all(each.ended is not None for each in found.jobs)


def test_nobody_is_stopped_for_a_job_that_borrows() -> None:
    found = simulate_cluster(
        CLUSTER, [job(i, "a", 10, seconds=9000.0) for i in range(10)] + [job(10, "b", 41, at=1.0)]
    )
    assert sum(each.preemptions for each in found.jobs) == 0
    assert found.jobs[10].wait == pytest.approx(9000.0 + CLUSTER.start - 1.0)


@pytest.mark.parametrize("policy", ["kueue", "slurm"])
def test_two_teams_of_60_and_40_get_these_shares_when_both_want_all(policy) -> None:
    teams = (TeamShare(name="a", hosts=60, weight=60), TeamShare(name="b", hosts=40, weight=40))
    chance = random.Random(1)
    asked = [
        job(i, "ab"[i % 2], chance.choice([1, 2, 4, 8]), seconds=chance.uniform(3e3, 3e4))
        for i in range(600)
    ]
    cluster = SharedCluster(hosts=100, teams=teams, policy=policy)
    found = simulate_cluster(cluster, asked, until=100_000.0)
    assert {each.asked.team for each in found.jobs if each.first_start is None} == {"a", "b"}
    assert shares(found, teams)["a"] == pytest.approx(0.6, abs=0.05)


def test_slurm_stops_lower_priorities_only_and_does_not_delay_the_first() -> None:
    cluster = dataclasses.replace(CLUSTER, policy="slurm")
    found = simulate_cluster(
        cluster,
        [
            job(0, "a", 60, seconds=10_000.0),
            job(1, "b", 100, at=1.0, seconds=100.0),
            job(2, "a", 40, at=2.0, seconds=9000.0),
            job(3, "a", 40, at=3.0, seconds=20_000.0),
        ],
    )
    assert found.jobs[2].wait == 0.0, "it ends before the first could start"
    assert found.jobs[1].first_start == pytest.approx(10_000.0 + cluster.start)
    assert found.jobs[3].first_start >= found.jobs[1].ended
    urgent = [job(0, "a", 100, priority=250), job(1, "b", 10, at=100.0, priority=750)]
    found = simulate_cluster(cluster, urgent)
    assert found.jobs[1].wait == cluster.save
    assert found.jobs[0].preemptions == 1


@pytest.mark.parametrize("policy", ["kueue", "slurm"])
def test_ten_thousand_devices_250_jobs_at_a_time_and_50_teams(policy) -> None:
    teams = equal_teams(50, hosts=1280)
    cluster, asked = mix(hosts=1280, shares=teams, jobs=250, seed=0, days=1.0)
    cluster = dataclasses.replace(cluster, policy=policy)
    found = simulate_cluster(cluster, asked)
    assert 500 < len(asked) < 1000
    assert 1000 < found.most <= 1280
    assert all(each.ended is not None for each in found.jobs)
    assert found == simulate_cluster(cluster, asked), "the same seed gives the same"
    assert sum(shares(found, cluster.teams).values()) == pytest.approx(1.0)


def test_usual_jobs_keep_a_cluster_busy() -> None:
    assert usual_jobs(1280) == pytest.approx(250, rel=0.05)
    assert usual_jobs(1) == 1
    assert sum(team.hosts for team in equal_teams(7, hosts=100)) == 100


def test_what_can_never_run_is_refused() -> None:
    limited = SharedCluster(hosts=100, teams=(TeamShare(name="a", hosts=10, borrow=20),))
    with pytest.raises(ValueError, match="at most 30"):
        simulate_cluster(limited, [job(0, "a", 31)])
    with pytest.raises(ValueError, match="no team"):
        simulate_cluster(limited, [job(0, "c", 1)])
    with pytest.raises(ValueError, match="own 110 hosts of a cluster of 100"):
        SharedCluster(hosts=100, teams=(TeamShare(name="a", hosts=110),))
