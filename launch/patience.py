"""Asking an engine over and over without being a burden to it.

Waiting commands look at a run's own files twice a second; a scheduler that serves thousands is
asked less and less often while it gives the same answer.
"""

from launch.engines.engine import Engine, EngineState, Standing
from launch.run_status import RunStatus
from launch.spec import Job

MOST = 20
"""Looks between two questions, at most."""


class Patience:
    """What an engine says of a run; asked at the first look, and then ever less often."""

    def __init__(self, job: Job, *, engine: Engine) -> None:
        """Asks nothing yet."""
        self._job, self._engine = job, engine
        self._last: Standing | None = None
        self._left, self._every = 0, 1

    def standing(self) -> Standing:
        """Returns the engine's answer, or the one before."""
        if self._last is None or self._left == 0:
            answer = self._engine.standing(self._job)
            same = self._last is not None and answer.state is self._last.state
            self._every = min(2 * self._every, MOST) if same else 1
            self._last, self._left = answer, self._every
        self._left -= 1
        return self._last

    def is_final(self) -> bool:
        """Whether nothing more happens to the run by itself."""
        status = RunStatus.read(self._job.job_dir)
        if status is not None and status.state.is_final:
            return True
        return self.standing().state in (EngineState.ENDED, EngineState.HELD)
