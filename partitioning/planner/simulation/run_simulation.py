"""A run under failures, event by event: how much of its time is progress. Standard library only.

The run makes ``work`` seconds of progress. It saves at intervals of progress, each tier of
checkpoints after so many saves: the loop stands still for the snapshot, the rest is written
meanwhile and counts when it is there. A failure takes the run back to the newest checkpoint that
survives it, after detection, perhaps a wait for a spare host, restart and reading. Failures may
come at any of these moments. Stragglers slow all devices down until they are noticed and replaced,
which costs a restart, but no progress: the run is asked to save before.
"""

import dataclasses
import heapq
import math
import random
from collections.abc import Mapping, Sequence

from partitioning.planner.calculators.reliability import WEEK
from partitioning.planner.simulation.failure_classes import FailureClass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tier:
    """One place for checkpoints.

    Attributes:
      name: such as "peer memory" or "object store".
      every: saves of the finest tier from one save of this one to the next.
      blocked: seconds that the loop stands still for a save.
      written: seconds from the start of a save until it counts.
      restore: seconds to read it.
      survives: hosts that may be lost with it still there.
    """

    name: str
    every: int = 1
    blocked: float = 0.0
    written: float = 0.0
    restore: float = 0.0
    survives: int = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stragglers:
    """Devices that become slow.

    Attributes:
      rate: per device and week.
      factor: time of a step with one, over that without.
      noticed: seconds until it is told from noise and replaced.
    """

    rate: float = 0.0
    factor: float = 1.3
    noticed: float = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run to simulate.

    Attributes:
      devices: of the run.
      per_host: devices of one host.
      work: seconds of progress that the run needs.
      interval: seconds of progress from one save to the next.
      tiers: finest first; every tier saves at a multiple of the finest tier's saves.
      classes: how it is interrupted.
      stragglers: what slows it down.
      spares: hosts that wait to be used.
      repair: seconds until a host that failed is a spare again.
      horizon: seconds after which the run is looked at, done or not.
      schedule: seconds since the run began, ascending, at which it fails, as a recording has them;
        all are of the first class. Empty: at random, as often as the classes say.
    """

    devices: int
    work: float
    interval: float
    tiers: tuple[Tier, ...]
    classes: tuple[FailureClass, ...]
    horizon: float = math.inf
    per_host: int = 8
    stragglers: Stragglers = Stragglers()
    spares: int = 0
    repair: float = 4 * 3600.0
    schedule: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.interval <= 0 or self.work <= 0 or self.devices < 1:
            raise ValueError(
                f"A run of {self.devices} devices, {self.work} s of work and saves every "
                f"{self.interval} s: all must be positive."
            )
        if not self.tiers or self.tiers[0].every != 1:
            raise ValueError("The first tier saves at every interval (every=1).")
        if self.schedule and (not self.classes or sorted(self.schedule) != list(self.schedule)):
            raise ValueError(
                f"schedule={self.schedule}: times must ascend, and be of a class; there are "
                f"{len(self.classes)} classes."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """One interruption.

    Attributes:
      cause: name of the class.
      at: seconds since the run began.
      still: seconds from the fault to the next step.
      lost: seconds of progress that had to be made again.
      waited: part of ``still`` that went by until there was a host.
      tier: what it was restored from.
      faults: how many there were, with those of the restart itself.
    """

    cause: str
    at: float
    still: float
    lost: float
    waited: float
    tier: str
    faults: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulated:
    """How a run went.

    Attributes:
      wall: seconds from begin to end.
      work: seconds of progress.
      saving: seconds that the loop stood still for saves.
      lost: seconds of progress made twice.
      still: seconds in which nothing ran.
      slow: seconds more because of stragglers.
      recoveries: in order.
    """

    wall: float
    work: float
    saving: float
    lost: float
    still: float
    slow: float
    recoveries: tuple[Recovery, ...]

    @property
    def goodput(self) -> float:
        """Progress over wall time."""
        return self.work / self.wall


def simulate(case: Case, *, seed: int) -> Simulated:
    """Runs a case once; the same seed gives the same run."""
    return _Run(case, random.Random(seed)).run()


def simulate_many(case: Case, *, trials: int, seed: int = 0) -> tuple[Simulated, ...]:
    """Runs a case ``trials`` times with seeds of their own."""
    return tuple(simulate(case, seed=seed * 1_000_003 + trial) for trial in range(trials))


@dataclasses.dataclass
class _Save:
    progress: float
    counts_at: float
    tier: Tier


class _Run:
    def __init__(self, case: Case, chance: random.Random) -> None:
        self.case, self.chance = case, chance
        self.now = self.progress = 0.0
        self.saving = self.lost = self.still = self.slow = 0.0
        self.saves: dict[str, list[_Save]] = {tier.name: [] for tier in case.tiers}
        self.number = 0
        self.spares, self.repairs = case.spares, list[float]()
        self.recoveries: list[Recovery] = []
        self.rates = {kind: kind.rate * case.devices / WEEK for kind in case.classes}
        self.straggler_rate = case.stragglers.rate * case.devices / WEEK
        self.scheduled = iter(case.schedule)
        self.next_failure = self._failure()
        self.next_straggler = self._wait(self.straggler_rate)

    def run(self) -> Simulated:
        while self.progress < self.case.work and self.now < self.case.horizon:
            goal = min(self.case.work, (self.number + 1) * self.case.interval)
            if not self._advance(goal) or (goal < self.case.work and not self._save()):
                self._recover()
        return Simulated(
            wall=self.now,
            work=self.progress,
            saving=self.saving,
            lost=self.lost,
            still=self.still,
            slow=self.slow,
            recoveries=tuple(self.recoveries),
        )

    def _advance(self, goal: float) -> bool:
        """Computes up to ``goal``; False if a failure comes first, at ``now``."""
        while self.progress < goal:
            end = self.now + goal - self.progress
            stop = min(end, self.next_failure, self.next_straggler)
            self.progress += stop - self.now
            self.now = stop
            if stop == self.next_failure < end:
                return False
            if stop == self.next_straggler < end and not self._straggle():
                return False
            if stop == end:
                self.progress = goal
        return True

    def _straggle(self) -> bool:
        """Goes on slowly until the device is replaced; False if a failure comes first."""
        slow = self.case.stragglers
        self.next_straggler = self.now + self._wait(self.straggler_rate)
        end = min(self.now + slow.noticed, self.next_failure)
        made = min((end - self.now) / slow.factor, self.case.work - self.progress)
        self.slow += made * (slow.factor - 1)
        self.now += made * slow.factor
        self.progress += made
        if self.now >= self.next_failure:
            return False
        replaced = FailureClass(
            name="straggler", rate=0.0, detection=0.0, restart=self._restart(), takes_host=True
        )
        self._stand_still(replaced, lost=0.0, tier=self.case.tiers[0], begun=self.now)
        return True

    def _restart(self) -> float:
        return max((kind.restart for kind in self.case.classes), default=0.0)

    def _save(self) -> bool:
        """Stands still for the snapshots that are due; False if a failure comes first.

        A tier whose last save is still being written leaves this one out.
        """
        number = self.number + 1
        begun = self.now
        due = [
            tier
            for tier in self.case.tiers
            if number % tier.every == 0
            and all(save.counts_at <= begun for save in self.saves[tier.name])
        ]
        end = begun + sum(tier.blocked for tier in due)
        self.now = min(end, self.next_failure)
        self.saving += self.now - begun
        if self.now == self.next_failure < end:
            return False
        self.number = number
        for tier in due:
            save = _Save(self.progress, begun + max(tier.written, tier.blocked), tier)
            self.saves[tier.name] = [*self.saves[tier.name][-1:], save]
        return True

    def _recover(self) -> None:
        begun = self.now
        kinds = list(self.rates)
        kind = kinds[0]
        if not self.case.schedule:
            kind = self.chance.choices(kinds, weights=[self.rates[k] for k in kinds])[0]
        self.next_failure = self._failure()
        save = self._newest(kind)
        back, tier = (save.progress, save.tier) if save else (0.0, self.case.tiers[-1])
        lost = self.progress - back
        self.progress = back
        self.number = round(back / self.case.interval)
        self.lost += lost
        for saves in self.saves.values():
            saves[:] = [s for s in saves if s.progress <= back and s.counts_at <= begun]
        if kind.reach:
            for other in self.case.tiers:
                if other.survives < kind.reach:
                    self.saves[other.name].clear()
        self._stand_still(kind, lost=lost, tier=tier, begun=begun)

    def _newest(self, kind: FailureClass) -> _Save | None:
        """Returns the newest checkpoint that counts and survives; of equals, what reads fastest."""
        found = [
            save
            for saves in self.saves.values()
            for save in saves
            if save.counts_at <= self.now and save.tier.survives >= kind.reach
        ]
        return max(found, key=lambda s: (s.progress, -s.tier.restore), default=None)

    def _stand_still(self, kind: FailureClass, *, lost: float, tier: Tier, begun: float) -> None:
        """Detects, waits for a host, restarts and reads; failures meanwhile begin the restart anew.

        Time that a second failure costs belongs to the first interruption.
        """
        self.now += kind.detection
        waited, faults = (self._host() if kind.takes_host else 0.0), 1
        while True:
            end = self.now + kind.restart + tier.restore
            if self.next_failure >= end:
                break
            faults += 1
            self.now = max(self.now, self.next_failure)
            self.next_failure = self._failure()
        self.now = end
        self.next_straggler = self.now + self._wait(self.straggler_rate)
        self.still += self.now - begun
        self.recoveries.append(
            Recovery(
                cause=kind.name,
                at=begun,
                still=self.now - begun,
                lost=lost,
                waited=waited,
                tier=tier.name,
                faults=faults,
            )
        )

    def _host(self) -> float:
        """Takes a spare host, or waits for one; the broken one is repaired meanwhile."""
        heapq.heappush(self.repairs, self.now + self.case.repair)
        while self.repairs and self.repairs[0] <= self.now:
            heapq.heappop(self.repairs)
            self.spares += 1
        if self.spares:
            self.spares -= 1
            return 0.0
        ready = heapq.heappop(self.repairs)
        waited = ready - self.now
        self.now = ready
        return waited

    def _failure(self) -> float:
        """Returns when the next one comes."""
        if self.case.schedule:
            return next(self.scheduled, math.inf)
        return self.now + self._wait(sum(self.rates.values()))

    def _wait(self, rate: float) -> float:
        return self.chance.expovariate(rate) if rate else math.inf


def percentiles(
    values: Sequence[float], *, at: Sequence[float] = (0.5, 0.9, 0.99)
) -> Mapping[float, float]:
    """Returns share -> least value that at least this share of ``values`` does not exceed."""
    ordered = sorted(values)
    return {q: ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else 0.0 for q in at}
