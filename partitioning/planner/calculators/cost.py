"""How long a run takes and what it costs: useful, idle and lost device hours, and storage.

Money is USD; times are seconds except where a name says hours. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping

CHINCHILLA = 20
"""Tokens per parameter (Hoffmann et al. 2022, Training Compute-Optimal Large Language Models)."""

QUARTERS = 4
"""Of a year."""


def duration(tokens: float, *, tokens_per_second: float) -> float:
    """Returns seconds that a run computes."""
    return tokens / tokens_per_second


def optimal_tokens(parameters: float) -> float:
    """Returns tokens that a budget is best spent on, by Chinchilla's rule of thumb."""
    return CHINCHILLA * parameters


def device_cost(devices: int, *, hours: float, price: float) -> float:
    """Returns USD of so many devices for so long; ``price`` is per device and hour."""
    return devices * hours * price


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """Checkpoints that a run keeps.

    Attributes:
      size: bytes of one.
      kept: how many stay.
      price: USD per 1e12 bytes and month of 730 hours.
    """

    size: float
    kept: int
    price: float

    def cost(self, hours: float) -> float:
        """Returns USD for that time."""
        return self.size * self.kept / 1e12 * self.price * hours / 730


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bill:
    """What a run costs, by what it is paid for, in USD.

    Attributes:
      useful: steps that count.
      failed: saving, computing again, restarting.
      idle: devices that are held and wait: spares, and time in which nothing runs.
      storage: checkpoints.
    """

    useful: float
    failed: float
    idle: float
    storage: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.useful + self.failed + self.idle + self.storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run to be paid.

    Attributes:
      devices: that compute.
      hours: of useful steps.
      price: USD per device and hour.
      lost: share of the wall time that failures and saving take.
      idle: share of the wall time that devices are held without work.
      spares: devices kept ready all the time.
    """

    devices: int
    hours: float
    price: float
    lost: float = 0.0
    idle: float = 0.0
    spares: int = 0

    @property
    def wall_hours(self) -> float:
        """From start to end.

        Raises:
          ValueError: nothing is left for useful work.
        """
        if self.lost + self.idle >= 1:
            raise ValueError(
                f"{self.lost:.1%} lost and {self.idle:.1%} idle leave no time to train; "
                "together they must stay below 100%."
            )
        return self.hours / (1 - self.lost - self.idle)

    def bill(self, storage: Storage | None = None) -> Bill:
        """Returns the cost by part."""
        hour = device_cost(self.devices, hours=1, price=self.price)
        waiting = self.idle * self.devices + self.spares
        return Bill(
            useful=hour * self.hours,
            failed=hour * self.wall_hours * self.lost,
            idle=device_cost(1, hours=self.wall_hours * waiting, price=self.price),
            storage=storage.cost(self.wall_hours) if storage else 0.0,
        )


def divided(devices: int, shares: Mapping[str, float]) -> dict[str, float]:
    """Returns devices by part, as for the four jobs of RLHF; not rounded."""
    return {name: devices * share for name, share in shares.items()}


def replicas(devices: float, *, size: int) -> int:
    """Returns how many copies of a model on ``size`` devices find room."""
    return math.floor(devices / size)
