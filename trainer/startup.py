"""Where the time between the start of the process and its first finished step went.

Imports no jax, so that the clock runs before jax is imported.
"""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from trainer.checkpoints.root import Root


@dataclasses.dataclass
class StartupClock:
    """Seconds of consecutive phases.

    Attributes:
      began: when the process started, on ``time.monotonic``'s scale.
      phases: name -> seconds, in order; they add up to the time since ``began``.
    """

    began: float
    phases: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_this_process(cls) -> "StartupClock":
        """Starts at the start of the process where the system tells it (Linux), else now."""
        try:
            fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf(
                "SC_CLK_TCK"
            )
        except (OSError, AttributeError):
            age = 0.0
        return cls(began=time.monotonic() - max(age, 0.0))

    def ended(self, phase: str) -> None:
        """The time since the last call was ``phase``."""
        self.phases[phase] = time.monotonic() - self.began - sum(self.phases.values())


class StartupReport:
    """Hook that reports once, when the first step is done."""

    def __init__(
        self,
        clock: StartupClock,
        *,
        say: Callable[[str], None],
        details: Callable[[], dict[str, float]],
        root: Root | None,
        key: str,
    ) -> None:
        """``details`` adds seconds that ran beside the phases; ``root`` takes the record."""
        self._clock, self._say, self._details = clock, say, details
        self._root, self._key = root, key
        self._done = False

    def reported(self, result: Any) -> None:
        """Prints and writes the record after the first step."""
        del result
        if self._done:
            return
        self._done = True
        self._clock.ended("first_step")
        phases, beside = self._clock.phases, self._details()
        total = sum(phases.values())
        record = {"total_s": total, "phases_s": phases, "beside_s": beside}
        self._say(f"First step after {total:.1f} s: {_show(phases)}. Beside that: {_show(beside)}.")
        if self._root is not None:
            self._root.write(self._key, json.dumps(record, indent=1).encode())

    def due(self, step: int) -> bool:
        """Never: it needs no boundary."""
        del step
        return False

    def at_boundary(self, state: Any, step: int) -> None:
        """See Hook."""
        del state, step


def _show(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in seconds.items())
