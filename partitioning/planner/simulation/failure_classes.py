"""Kinds of interruptions, how often they come and what each costs. Standard library only."""

import dataclasses

from partitioning.planner.calculators.reliability import DAY, WEEK


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureClass:
    """One kind of interruption.

    Attributes:
      name: what reports call it.
      rate: interruptions per device and week.
      detection: seconds from the fault to the decision to stop.
      restart: seconds from there to the first step, without reading the checkpoint.
      takes_host: whether the host is out of use until it is repaired.
      reach: hosts whose memory and local disks are lost with it; 0 leaves all of them.
    """

    name: str
    rate: float
    detection: float
    restart: float
    takes_host: bool = False
    reach: int = 0


_INTERRUPTIONS = (
    ("faulty GPU", 148, True, 1),
    ("GPU memory (HBM3)", 72, True, 1),
    ("software", 54, False, 0),
    ("network switch or cable", 35, True, 1),
    ("host maintenance", 32, True, 1),
    ("GPU memory (SRAM)", 19, True, 1),
    ("GPU system processor", 17, True, 1),
    ("NIC", 7, True, 1),
    ("collective timed out", 7, False, 0),
    ("silent data corruption", 6, True, 1),
    ("GPU temperature or sensor", 6, True, 1),
    ("SSD", 3, True, 1),
    ("power supply", 3, True, 1),
    ("server chassis", 2, True, 1),
    ("IO expansion board", 2, True, 1),
    ("dependency", 2, False, 0),
    ("CPU", 2, True, 1),
    ("system memory", 2, True, 1),
)
"""Unexpected interruptions in 54 days on 16,384 GPUs (Llama Team, 2024, table 5): 419."""


def meta(*, detection: float = 30.0, restart: float = 300.0) -> tuple[FailureClass, ...]:
    """Returns the classes of the Llama 3 405B run, per device and week."""
    device_weeks = 16_384 * 54 * DAY / WEEK
    return tuple(
        FailureClass(
            name=name,
            rate=count / device_weeks,
            detection=detection,
            restart=restart,
            takes_host=takes_host,
            reach=reach,
        )
        for name, count, takes_host, reach in _INTERRUPTIONS
    )


def uniform(
    rate: float, *, detection: float = 30.0, restart: float = 300.0
) -> tuple[FailureClass, ...]:
    """Returns one class of host failures at ``rate`` per device and week."""
    return (
        FailureClass(
            name="host",
            rate=rate,
            detection=detection,
            restart=restart,
            takes_host=True,
            reach=1,
        ),
    )
