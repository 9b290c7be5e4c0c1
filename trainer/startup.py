"""Where the time between the start of the process and its first finished step went.

Imports no jax, so that the clock runs before jax is imported.
"""

import dataclasses
import os
import pathlib
import time


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
