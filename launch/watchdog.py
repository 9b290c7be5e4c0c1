"""When a process that says nothing is stuck. Pure arithmetic over progress records.

The deadline of a step is armed by the first step, because what comes before (imports, restoring,
compiling) takes as long as it takes and has limits of its own. Standard library only.
"""

import collections
import dataclasses
import statistics

from launch.records import Phase, Progress
from launch.spec import JobSpec

_WINDOW = 32
"""Steps whose durations decide what is typical."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a process may be busy with one thing, in seconds.

    Attributes:
      phases: limit of each phase but STEP.
      step_factor: multiple of the typical step ...
      step_min_s: ... at least this ...
      step_max_s: ... at most this.
      speaks: whether a process without any progress record is one that will write some.
    """

    phases: dict[Phase, float]
    step_factor: float
    step_min_s: float
    step_max_s: float
    speaks: bool

    @classmethod
    def of(cls, spec: JobSpec) -> "Limits":
        """Returns the limits of a job; a command of others need not speak at all."""
        runtime, watchdog = spec.runtime, spec.recovery.watchdog
        return cls(
            phases={
                Phase.START: runtime.start_s,
                Phase.JOIN: runtime.start_s,
                Phase.RESTORE: runtime.restore_s,
                Phase.COMPILE: runtime.compile_s,
                Phase.EVALUATE: runtime.evaluate_s,
                Phase.SAVE: runtime.save_s,
                Phase.EXIT: runtime.save_s,
            },
            step_factor=watchdog.step_factor,
            step_min_s=watchdog.step_min_s,
            step_max_s=watchdog.step_max_s,
            speaks=spec.is_trainer,
        )


class Watch:
    """The watch over one process; times are of the host's monotonic clock, in seconds."""

    def __init__(self, limits: Limits, *, now: float) -> None:
        """Starts at the start of the process."""
        self._limits = limits
        self._since = now
        self._last: Progress | None = None
        self._durations: collections.deque[float] = collections.deque(maxlen=_WINDOW)

    @property
    def last(self) -> Progress | None:
        """The newest record; None before the first."""
        return self._last

    def saw(self, progress: Progress) -> None:
        """Takes note of a record; the same one again, or one that got nowhere, changes nothing."""
        last = self._last
        if last is not None and progress.monotonic_ns <= last.monotonic_ns:
            return
        now = progress.monotonic_ns / 1e9
        if last is not None and _stands_still(last, progress):
            self._last = progress  # a save was committed; the step did not get on
            return
        if last is not None and last.phase is progress.phase is Phase.STEP:
            steps = (progress.step or 0) - (last.step or 0)
            self._durations.append((now - self._since) / max(steps, 1))
        self._since = max(now, self._since)
        self._last = progress

    def idle_s(self, now: float) -> float:
        """Returns seconds since the process last got on."""
        return max(0.0, now - self._since)

    def limit_s(self) -> float | None:
        """Returns how long the process may be idle now; None where it need not speak."""
        if self._last is None:
            return self._limits.phases[Phase.START] if self._limits.speaks else None
        if self._last.phase is not Phase.STEP:
            return self._limits.phases[self._last.phase]
        if not self._durations:
            return self._limits.step_max_s
        typical = statistics.median(self._durations) * self._limits.step_factor
        return min(max(typical, self._limits.step_min_s), self._limits.step_max_s)

    def overdue(self, now: float) -> str | None:
        """Returns what is overdue, for people; None while all is well."""
        limit = self.limit_s()
        if limit is None or self.idle_s(now) <= limit:
            return None
        phase = self._last.phase if self._last else Phase.START
        step = f" after step {self._last.step}" if self._last and self._last.step else ""
        return (
            f"no progress in phase {phase}{step} for {self.idle_s(now):.1f} s (limit {limit:g} s)"
        )


def _stands_still(last: Progress, progress: Progress) -> bool:
    return last.phase is progress.phase is Phase.STEP and last.step == progress.step
