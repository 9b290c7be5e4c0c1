"""A shared cluster, event by event: gangs, quotas, borrowing, preemption with a save, fair share.

For planning only: what the configurations that `launch.main admin render` writes would do, in the
two engines' own ways, without their details. Hosts are handed out whole and all at once.

"kueue": each team has a queue, ordered by priority and age, and a quota. What others leave idle it
may borrow; whoever asks for its own quota stops borrowers (`reclaimWithinCohort: Any`), those of
the team that borrows most for its weight first, then lower priorities, then what started last.
Within a queue a job stops lower priorities. "slurm": one queue, ordered by priority, then by how
little of its share a team has used, then by age; a job stops lower priorities. Nothing that is
behind the first in the queue may delay it (EASY backfilling, Lifka, 1995).

A job that has to give way saves, which takes ``save`` seconds of its hosts, and goes back to the
queue with all its progress. Standard library only.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from partitioning.planner.calculators.reliability import WEEK

EnginePolicy = Literal["kueue", "slurm"]
HALF_LIFE = WEEK
"""Seconds after which use counts half for fair share (Slurm's PriorityDecayHalfLife)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamShare:
    """What a team owns.

    Attributes:
      name: of the team.
      hosts: its quota.
      weight: share of what is idle.
      borrow: hosts of others that it may use; None: as many as there are.
    """

    name: str
    hosts: int
    weight: float = 1.0
    borrow: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job as it is submitted.

    Attributes:
      number: of the job.
      team: whose it is.
      hosts: a gang of so many.
      seconds: of work.
      at: second of submission.
      priority: larger goes first.
    """

    number: int
    team: str
    hosts: int
    seconds: float
    at: float
    priority: int = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedCluster:
    """What is shared.

    Attributes:
      hosts: how many there are.
      teams: whose quotas add up to at most these.
      policy: how the engine decides.
      save: seconds from the request to give way until hosts are free.
      start: seconds from a decision to the first step.
    """

    hosts: int
    teams: tuple[TeamShare, ...]
    policy: EnginePolicy = "kueue"
    save: float = 60.0
    start: float = 30.0

    def __post_init__(self) -> None:
        owned = sum(team.hosts for team in self.teams)
        if owned > self.hosts:
            raise ValueError(
                f"The teams own {owned} hosts of a cluster of {self.hosts}; make quotas smaller."
            )


@dataclasses.dataclass
class Job:
    """A job as it goes.

    Attributes:
      asked: what was submitted.
      left: seconds of work that are left.
      started: second of the last start; None while it waits.
      first_start: second of the first start.
      ended: second of its end.
      giving_way: whether it saves, to free its hosts.
      preemptions: how often it had to give way.
    """

    asked: JobRequest
    left: float
    started: float | None = None
    first_start: float | None = None
    ended: float | None = None
    giving_way: bool = False
    preemptions: int = 0

    @property
    def wait(self) -> float | None:
        """Seconds from submission to the first start."""
        return None if self.first_start is None else self.first_start - self.asked.at


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterUse:
    """How a cluster was used.

    Attributes:
      jobs: all jobs, ended.
      busy: host-seconds of work by team.
      until: second of the last event.
      reclaims: seconds that jobs waited for others to give way to them.
      most: most hosts that were in use at any time.
    """

    jobs: tuple[Job, ...]
    busy: dict[str, float]
    until: float
    reclaims: tuple[float, ...]
    most: int


def simulate_cluster(
    cluster: SharedCluster, requests: Iterable[JobRequest], *, until: float = math.inf
) -> ClusterUse:
    """Runs all jobs to their end, or to second ``until``.

    Raises:
      ValueError: a job is larger than what its team may ever use, or its team is unknown.
    """
    return _Simulation(cluster, list(requests)).run(until)


class _Simulation:
    def __init__(self, cluster: SharedCluster, requests: list[JobRequest]) -> None:
        self.cluster = cluster
        self.teams = {team.name: team for team in cluster.teams}
        self.jobs = [Job(asked=r, left=r.seconds) for r in requests]
        for request in requests:
            self._check(request)
        self.now = 0.0
        self.events: list[tuple[float, int, str, Job]] = []
        self.order = itertools.count()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.held = dict.fromkeys(self.teams, 0)
        self.promised = dict.fromkeys(self.teams, 0)
        self.free = cluster.hosts
        self.busy = dict.fromkeys(self.teams, 0.0)
        self.used = dict.fromkeys(self.teams, 0.0)
        self.reclaims: list[float] = []
        self.since: dict[int, float] = {}
        """Job that others give way for -> when it asked."""
        self.claimed = self.coming = 0
        self.most = 0
        for job in self.jobs:
            self._at(job.asked.at, "submitted", job)

    def run(self, until: float) -> ClusterUse:
        while self.events and self.events[0][0] <= until:
            self._pass_to(self.events[0][0])
            while self.events and self.events[0][0] <= self.now:
                _, _, what, job = heapq.heappop(self.events)
                self._happened(what, job)
            self._decide()
        return ClusterUse(
            jobs=tuple(self.jobs),
            busy=self.busy,
            until=self.now,
            reclaims=tuple(self.reclaims),
            most=self.most,
        )

    def _check(self, request: JobRequest) -> None:
        if request.team not in self.teams:
            raise ValueError(f"Job {request.number} is of {request.team!r}, which is no team.")
        if not 0 < request.hosts <= self._most_of(self.teams[request.team]):
            raise ValueError(
                f"Job {request.number} asks for {request.hosts} hosts; {request.team} may use at "
                f"most {self._most_of(self.teams[request.team])}."
            )

    def _most_of(self, team: TeamShare) -> int:
        if team.borrow is None:
            return self.cluster.hosts
        return min(self.cluster.hosts, team.hosts + team.borrow)

    def _at(self, second: float, what: str, job: Job) -> None:
        heapq.heappush(self.events, (second, next(self.order), what, job))

    def _pass_to(self, second: float) -> None:
        faded = 0.5 ** ((second - self.now) / HALF_LIFE)
        for name in self.used:
            hosts = self.held[name]
            self.busy[name] += hosts * (second - self.now)
            self.used[name] = self.used[name] * faded + hosts * (second - self.now)
        self.now = second

    def _happened(self, what: str, job: Job) -> None:
        if what == "submitted":
            self.waiting.append(job)
        elif what == "freed" and job.giving_way:
            self._release(job)
            self.coming -= job.asked.hosts
            job.giving_way, job.started = False, None
            self.waiting.append(job)
        elif what == "ended" and job in self.running and job.started is not None:
            due = job.started + self.cluster.start + job.left
            if not job.giving_way and abs(due - self.now) < 1e-6:
                self._release(job)
                job.ended = self.now

    def _release(self, job: Job) -> None:
        self.running.remove(job)
        self.held[job.asked.team] -= job.asked.hosts
        self.free += job.asked.hosts

    def _decide(self) -> None:
        """Starts what can start, and asks borrowers and lower priorities to give way.

        Whoever asked has a claim: what is free and what is coming is kept for claims.
        """
        first = True
        shadow, spare = math.inf, self.cluster.hosts
        for job in self._queue():
            claims = job.asked.number in self.since
            delays = self._ends(job) > shadow and not claims
            kept = 0 if claims else max(0, self.claimed - self.coming)
            room = min(self.free - kept, spare) if delays else self.free - kept
            if job.asked.hosts <= room and (claims or self._may(job)):
                spare -= job.asked.hosts if delays else 0
                self._start(job)
                continue
            if not claims:
                self._make_room(job)
            if self.cluster.policy == "slurm" and first:
                shadow, spare = self._reservation(job)
                first = False

    def _queue(self) -> list[Job] | Iterator[Job]:
        if self.cluster.policy == "slurm":

            def place(job: Job) -> tuple[float, ...]:
                team = self.teams[job.asked.team]
                return (-job.asked.priority, self.used[team.name] / team.weight, job.asked.at)

            return sorted(self.waiting, key=place)

        return self._heads()

    def _heads(self) -> Iterator[Job]:
        """Yields the first job of each team's queue in turn, whose team borrows least in front."""
        queues: dict[str, list[Job]] = {}
        for job in sorted(self.waiting, key=lambda j: (j.asked.priority, -j.asked.at)):
            queues.setdefault(job.asked.team, []).append(job)  # the first job stands last
        heads = [(self._place(queue[-1]), name) for name, queue in queues.items()]
        heapq.heapify(heads)
        while heads:
            _, name = heapq.heappop(heads)
            yield queues[name].pop()
            if queues[name]:
                heapq.heappush(heads, (self._place(queues[name][-1]), name))

    def _place(self, job: Job) -> tuple[float, ...]:
        team = self.teams[job.asked.team]
        borrows = max(0, self._after(job) - team.hosts) / team.weight
        return (borrows, -job.asked.priority, job.asked.at)

    def _may(self, job: Job) -> bool:
        """Whether a job stays within what its team may use."""
        return self._after(job) <= self._most_of(self.teams[job.asked.team])

    def _ends(self, job: Job) -> float:
        return self.now + self.cluster.start + job.left

    def _reservation(self, job: Job) -> tuple[float, int]:
        """Returns when the first in the queue can start, and hosts that it leaves free then."""
        free = self.free
        for other in sorted(self.running, key=self._frees):
            free += other.asked.hosts
            if free >= job.asked.hosts:
                return self._frees(other), free - job.asked.hosts
        return self.now, 0

    def _frees(self, job: Job) -> float:
        assert job.started is not None
        if job.giving_way:
            return self.now + self.cluster.save
        return job.started + self.cluster.start + job.left

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        self.held[job.asked.team] += job.asked.hosts
        self.free -= job.asked.hosts
        job.started = self.now
        if job.first_start is None:
            job.first_start = self.now
        if (asked := self.since.pop(job.asked.number, None)) is not None:
            self.claimed -= job.asked.hosts
            self.promised[job.asked.team] -= job.asked.hosts
            self.reclaims.append(self.now - asked)
        self._at(self._ends(job), "ended", job)
        self.most = max(self.most, self.cluster.hosts - self.free)

    def _make_room(self, job: Job) -> None:
        """Asks others to give way if that is enough, and keeps for the job what they leave."""
        if not self._may(job):
            return
        needed = job.asked.hosts - max(0, self.free + self.coming - self.claimed)
        chosen: list[Job] = []
        for victim in self._victims(job) if needed > 0 else ():
            chosen.append(victim)
            needed -= victim.asked.hosts
            if needed <= 0:
                break
        if needed > 0 or not chosen:
            return
        for victim in reversed(chosen[:-1]):  # whoever came first may be more than enough
            if needed + victim.asked.hosts <= 0:
                needed += victim.asked.hosts
                chosen.remove(victim)
        self.since[job.asked.number] = self.now
        self.claimed += job.asked.hosts
        self.promised[job.asked.team] += job.asked.hosts
        for victim in chosen:
            self._give_way(victim)

    def _owns(self, job: Job) -> bool:
        """Whether a job stays within its team's quota."""
        return self._after(job) <= self.teams[job.asked.team].hosts

    def _after(self, job: Job) -> int:
        """Hosts of its team with it, and with those that its team's jobs wait for."""
        team = job.asked.team
        return self.held[team] + self.promised[team] + job.asked.hosts

    def _victims(self, job: Job) -> Iterator[Job]:
        """Yields whom a job may stop, the one to stop first in front."""
        others = [other for other in self.running if not other.giving_way]
        if self.cluster.policy == "slurm":
            lower = [o for o in others if o.asked.priority < job.asked.priority]
            yield from sorted(lower, key=lambda o: (o.asked.priority, -(o.started or 0.0)))
            return
        own = [
            other
            for other in others
            if other.asked.team == job.asked.team and other.asked.priority < job.asked.priority
        ]
        if not self._owns(job):
            yield from sorted(own, key=lambda o: (o.asked.priority, -(o.started or 0.0)))
            return
        held = dict(self.held)
        left = [other for other in others if other.asked.team != job.asked.team]
        while True:
            borrowers = [o for o in left if held[o.asked.team] > self.teams[o.asked.team].hosts]
            if not borrowers:
                break
            victim = max(borrowers, key=lambda o: self._borrowing(o, held[o.asked.team]))
            left.remove(victim)
            held[victim.asked.team] -= victim.asked.hosts
            yield victim
        yield from sorted(own, key=lambda o: (o.asked.priority, -(o.started or 0.0)))

    def _borrowing(self, job: Job, held: int) -> tuple[float, int, float]:
        team = self.teams[job.asked.team]
        return ((held - team.hosts) / team.weight, -job.asked.priority, job.started or 0.0)

    def _give_way(self, job: Job) -> None:
        assert job.started is not None
        job.left -= max(0.0, min(job.left, self.now - job.started - self.cluster.start))
        job.giving_way = True
        self.coming += job.asked.hosts
        job.preemptions += 1
        self._at(self.now + self.cluster.save, "freed", job)


def shares(found: ClusterUse, teams: Sequence[TeamShare]) -> dict[str, float]:
    """Returns the share of all work that each team got."""
    total = sum(found.busy.values())
    return {team.name: found.busy[team.name] / total if total else 0.0 for team in teams}
