"""How often a job is interrupted, how often it should save, and what both cost.

Young 1974 (A first order approximation to the optimum checkpoint interval) and Daly 2006 (A higher
order estimate of the optimum checkpoint interval for restart dumps): both need the time between
failures, not the time that a recovery takes, which is paid per failure whatever the interval.
Seconds throughout; standard library only.
"""

import dataclasses
import math

WEEK = 604_800.0
DAY = 86_400.0
HOUR = 3600.0

ONE_PERCENT = 0.01
"""Interruptions per device and week: the chapter's figure."""

META = 419 / (54 / 7) / 16_384
"""Interruptions per device and week that Meta reports for Llama 3 405B: 419 in 54 days on 16,384
devices (Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.4)."""

PRESETS = {"1%": ONE_PERCENT, "meta": META}
"""Rates by name."""


def per_week(devices: int, *, rate: float) -> float:
    """Returns interruptions per week; ``rate`` is per device and week."""
    return devices * rate


def mtbf(devices: int, *, rate: float) -> float:
    """Returns seconds between interruptions of a job on so many devices."""
    return WEEK / per_week(devices, rate=rate)


def young(save: float, *, mtbf: float) -> float:
    """Returns the interval of least loss in first order, from the end of a save to the next."""
    return math.sqrt(2 * save * mtbf)


def daly(save: float, *, mtbf: float) -> float:
    """Returns it in higher order (equation 37); the MTBF itself once saving takes twice as long."""
    ratio = save / (2 * mtbf)
    if ratio >= 1:
        return mtbf
    return young(save, mtbf=mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def by_the_book(save: float, *, recovery: float) -> float:
    """Returns the chapter's sqrt(2 Tc Tr), with the recovery in the place of the MTBF (E16)."""
    return math.sqrt(2 * save * recovery)


def save_share(interval: float, *, save: float) -> float:
    """Returns the share of time in which a run stands still to save."""
    return save / (interval + save)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """Shares of time that a run loses, in first order.

    Attributes:
      checkpoint: standing still to save.
      rework: computing again what was lost; half an interval per failure.
      restart: from a failure until steps run again.
    """

    checkpoint: float
    rework: float
    restart: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.checkpoint + self.rework + self.restart

    @property
    def effective(self) -> float:
        """Effective training time."""
        return 1 - self.total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saving:
    """A job that saves and fails.

    Attributes:
      save: seconds that the run stands still for a save; a snapshot, if the rest is background.
      mtbf: seconds between failures.
      recovery: seconds from a failure until steps run again.
      write: seconds that the background write takes; the next save cannot begin before its end.
      budget: most of the time that saving may take; 1 for no bound.
      progress: most seconds of work that a failure may cost; infinite for no bound.
    """

    save: float
    mtbf: float
    recovery: float = 0.0
    write: float = 0.0
    budget: float = 1.0
    progress: float = math.inf

    def loss(self, interval: float) -> Loss:
        """Returns what an interval costs."""
        return Loss(
            checkpoint=save_share(interval, save=self.save),
            rework=interval / 2 / self.mtbf,
            restart=self.recovery / self.mtbf,
        )

    @property
    def least(self) -> float:
        """The shortest interval that the write and the budget allow."""
        return max(self.write, self.save * (1 - self.budget) / self.budget)

    def interval(self) -> tuple[float, str]:
        """Returns the interval to choose, and what decided it.

        Raises:
          ValueError: no interval satisfies all bounds.
        """
        if self.least > self.progress:
            raise ValueError(
                f"Nothing saves often enough to lose {self.progress:g} s at most: a background "
                f"write of {self.write:g} s, and a budget of {self.budget:.2%} for standing still "
                f"{self.save:g} s, ask for {self.least:g} s between saves. Write faster, or allow "
                "more loss or a larger budget."
            )
        best = young(self.save, mtbf=self.mtbf)
        if best > self.progress:
            return self.progress, "the progress that a failure may cost"
        if best >= self.least:
            return best, "Young"
        return self.least, "the write" if self.least == self.write else "the budget"


def availability(mtbf: float, *, recovery: float) -> float:
    """Returns the share of time that a job is up, if each failure takes ``recovery`` seconds."""
    return mtbf / (mtbf + recovery)


def recovery_for(mtbf: float, *, availability: float) -> float:
    """Returns the longest recovery that reaches an availability, in seconds."""
    return mtbf * (1 - availability) / availability


def mtbf_for(recovery: float, *, availability: float) -> float:
    """Returns the shortest time between failures that does, with a given recovery."""
    return recovery * availability / (1 - availability)


def downtime(availability: float, *, period: float) -> float:
    """Returns seconds that a service may be down in a period."""
    return (1 - availability) * period
