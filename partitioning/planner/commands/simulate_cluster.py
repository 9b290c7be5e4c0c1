"""``simulate cluster``: what quotas, borrowing and preemption do to those who wait."""

import dataclasses
import pathlib
from typing import Any

import yaml

from partitioning.planner.answers import Answer, Quantity, Section
from partitioning.planner.calculators.reliability import DAY
from partitioning.planner.command import MOST, Given, add, counted, number, positive, seconds
from partitioning.planner.simulation.cluster_simulation import (
    ClusterUse,
    Job,
    SharedCluster,
    TeamShare,
    shares,
    simulate_cluster,
)
from partitioning.planner.simulation.job_mix import equal_teams, mix, usual_jobs
from partitioning.planner.simulation.run_simulation import percentiles

_SMALL = 8
_LEAST_WEIGHT = 1e-6


def register(commands: Any) -> None:
    """Adds the command."""
    one = add(
        commands,
        "cluster",
        "Simulates many jobs of many teams on one cluster, under the rules that the configuration "
        "of `launch.main admin render` gives Kueue or Slurm: gangs, quotas, borrowing, "
        "preemption with a save, fair share. For planning: it schedules nothing.",
        [
            "simulate cluster --devices=10240 --teams=50 --jobs=250",
            "simulate cluster --teams_file=configs/clusters/teams.yaml --kind=h100 --engine=slurm",
        ],
        run=_simulate,
    )
    one.add_argument("--devices", type=positive, default=10_240, help="How many. (10240)")
    one.add_argument("--per_host", type=positive, default=8, help="Devices of a host. (8)")
    one.add_argument("--teams", type=positive, default=50, help="Equal teams. (50)")
    one.add_argument("--teams_file", type=pathlib.Path, help="Teams as `launch.main admin` reads.")
    one.add_argument("--kind", help="Kind of accelerator in --teams_file; default: its first.")
    one.add_argument(
        "--jobs", type=positive, help="That would run at a time; default: 90%% of the hosts' worth."
    )
    one.add_argument("--days", type=number, default=3.0, help="Within which jobs come. (3)")
    one.add_argument(
        "--engine", choices=("kueue", "slurm"), default="kueue", help="Whose rules hold. (kueue)"
    )
    one.add_argument("--save", type=seconds, default=60.0, help="To give way. (60s)")
    one.add_argument("--start", type=seconds, default=30.0, help="To the first step. (30s)")
    one.add_argument("--seed", type=counted, default=0, help="Of the jobs. (0)")


def _simulate(given: Given) -> Answer:
    hosts = given.devices // given.per_host
    if hosts < 1:
        raise ValueError(f"--devices={given.devices} make no host of {given.per_host}.")
    owners = equal_teams(given.teams, hosts=hosts)
    if given.teams_file:
        hosts, owners = _teams(given)
    jobs = given.jobs or usual_jobs(hosts)
    cluster, requests = mix(hosts=hosts, shares=owners, jobs=jobs, seed=given.seed, days=given.days)
    cluster = dataclasses.replace(cluster, policy=given.engine, save=given.save, start=given.start)
    found = simulate_cluster(cluster, requests, until=given.days * DAY)
    devices = hosts * given.per_host
    return Answer(
        title=f"{len(requests)} jobs, {jobs} at a time, of {len(cluster.teams)} teams on "
        f"{devices:,} devices, {given.engine}, seed {given.seed}",
        sections=(
            Section(name="waits", title="Waiting for the first start", quantities=_waits(found)),
            Section(name="cluster", title="The cluster", quantities=_use(found, cluster)),
            Section(name="teams", title="Teams", quantities=_fairness(found, cluster)),
        ),
    )


def _teams(given: Given) -> tuple[int, tuple[TeamShare, ...]]:
    """Reads hosts and quotas of one kind from a teams file.

    Raises:
      ValueError: it cannot be read, or has no such kind.
    """
    try:
        plain = yaml.safe_load(given.teams_file.read_text())
        kinds = {one["kind"]: one for one in plain["accelerators"]}
        kind = given.kind or next(iter(kinds))
        shares = tuple(
            TeamShare(
                name=team["name"],
                hosts=_of(quota, "hosts", least=0),
                weight=_of(team, "weight", least=_LEAST_WEIGHT, otherwise=1.0),
                borrow=_of(quota, "borrow", least=0, otherwise=None),
            )
            for team in plain["teams"]
            for quota in team["quotas"]
            if quota["kind"] == kind
        )
        hosts = _of(kinds[kind], "hosts", least=0) or sum(share.hosts for share in shares)
    except OSError as error:
        raise ValueError(f"--teams_file={given.teams_file}: {error.strerror}.") from None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, StopIteration) as error:
        raise ValueError(
            f"--teams_file={given.teams_file} is no teams file with this kind ({error!r}); see "
            "python -m launch.main admin --help."
        ) from None
    if not shares:
        raise ValueError(f"--teams_file={given.teams_file}: no team has a quota of {kind}.")
    return hosts, shares


def _of(given: dict[str, Any], name: str, *, least: float, otherwise: Any = 0) -> Any:
    """Returns a number of a teams file.

    Raises:
      ValueError: it is none, or too small.
    """
    value = given.get(name, otherwise)
    whole = int if isinstance(least, int) else (int, float)
    if value is None or (isinstance(value, whole) and least <= value <= MOST):
        return value
    raise ValueError(f"--teams_file: {name}: {value!r} is not a number of at least {least:g}.")


def _waits(found: ClusterUse) -> tuple[Quantity, ...]:
    # Who has not started by the end has waited at least so long.
    waits = [(job.asked.hosts, _waited(job, found.until)) for job in found.jobs]
    every = [wait for _, wait in waits]
    small = [wait for hosts, wait in waits if hosts <= _SMALL]
    parts = {f"p{100 * q:.0f}": value for q, value in percentiles(every).items()}
    parts |= {
        f"p{100 * q:.0f}_of_jobs_up_to_{_SMALL}_hosts": value
        for q, value in percentiles(small).items()
    }
    largest = max(found.jobs, key=lambda job: job.asked.hosts)
    started = "it never started" if largest.wait is None else "it started"
    return (
        *(Quantity(name=name, value=value, unit="s") for name, value in parts.items()),
        Quantity(
            name="largest_job",
            value=_waited(largest, found.until),
            unit="s",
            formula=f"of {largest.asked.hosts} hosts; {started} while others kept coming",
        ),
    )


def _waited(job: Job, until: float) -> float:
    return max(0.0, until - job.asked.at) if job.wait is None else job.wait


def _use(found: ClusterUse, cluster: SharedCluster) -> tuple[Quantity, ...]:
    busy = sum(found.busy.values())
    return (
        Quantity(
            name="use",
            value=busy / (found.until * cluster.hosts),
            unit="share",
            formula=f"{busy / 3600:,.0f} host-hours in {found.until / 3600:,.0f} h x "
            f"{cluster.hosts} hosts",
        ),
        Quantity(name="most_hosts_in_use", value=found.most, formula=f"of {cluster.hosts}"),
        Quantity(name="preemptions", value=sum(job.preemptions for job in found.jobs)),
        *(
            Quantity(
                name=f"quota_back_p{100 * q:.0f}",
                value=value,
                unit="s",
                formula=f"{len(found.reclaims)} times a job waited for borrowers to save",
            )
            for q, value in percentiles(found.reclaims).items()
            if found.reclaims
        ),
    )


def _fairness(found: ClusterUse, cluster: SharedCluster) -> tuple[Quantity, ...]:
    got = shares(found, cluster.teams)
    most = sorted(got.items(), key=lambda item: -item[1])
    shown = most if len(most) <= 2 * _SMALL else [*most[:3], *most[-3:]]
    owned = {team.name: team.hosts / cluster.hosts for team in cluster.teams}
    return tuple(
        Quantity(
            name=name,
            value=value,
            unit="share",
            formula=f"of all work; it owns {100 * owned[name]:.1f}% of the hosts",
        )
        for name, value in shown
    )
