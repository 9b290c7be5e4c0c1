"""The training loop. Everything that is not in its order is a hook."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax

from input_pipeline.placement import PlacedBatch
from trainer.endings import NumericsError, PreemptedError
from trainer.state import TrainState
from trainer.task import Batch

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one finished step reported, on the host.

    Attributes:
      step: steps done, this one included.
      metrics: metrics of the train step, as NumPy scalars.
      wait_s: seconds that the loop waited for the step's batch.
    """

    step: int
    metrics: dict[str, Any]
    wait_s: float


class Hook:
    """Something that happens around steps; called by all processes alike. Does nothing itself."""

    def reported(self, result: StepResult) -> None:
        """A step's numbers are known; the next step may already run."""

    def due(self, step: int) -> bool:
        """Whether ``at_boundary`` is to be called after ``step`` steps."""
        del step
        return False

    def at_boundary(self, state: TrainState, step: int) -> None:
        """All steps so far are done and reported; ``state`` is theirs."""


class Stop(Protocol):
    """Agrees among all processes whether to stop after this step."""

    def reached(self) -> bool:
        """Returns the same in every process at the same call."""


def train(
    state: TrainState,
    *,
    step: Step,
    batches: Iterable[PlacedBatch],
    hooks: Sequence[Hook],
    stop: Stop,
    save: Callable[[TrainState, int], None],
    max_nonfinite: int,
) -> TrainState:
    """Runs until ``batches`` ends.

    Args:
      state: where to start; donated.
      step: compiled train step.
      batches: placed batches, numbered by step from 0.
      hooks: called in order; evaluation comes before checkpoints, so that whatever is restored
        has been evaluated.
      stop: preemption.
      save: commits a step before a preempted run leaves.
      max_nonfinite: consecutive skipped steps that end the run.

    Raises:
      PreemptedError: stopped on request, saved.
      NumericsError: gradients stayed non-finite.
    """
    pending: tuple[int, dict[str, Any], float] | None = None

    def report() -> None:
        nonlocal pending
        if pending is None:
            return
        number, metrics, wait_s = pending
        pending = None
        result = StepResult(step=number, metrics=jax.device_get(metrics), wait_s=wait_s)
        for hook in hooks:
            hook.reported(result)
        if (skipped := int(result.metrics["nonfinite"])) >= max_nonfinite:
            raise NumericsError(
                f"Gradients were not finite for {skipped} steps up to step {number}. The state of "
                f"step {number - skipped} is intact; lower the learning rate or look at its data."
            )

    for batch in batches:
        # Do not reorder: a step is dispatched before the one before it is reported, so that the
        # devices never wait for the host; boundaries see a state whose steps are all reported;
        # stop is asked once per step by every process, last, because it decides for all of them.
        with jax.transfer_guard("disallow"):
            state, metrics = step(state, batch.arrays)
        report()
        done = batch.step + 1
        pending = (done, metrics, batch.wait_s)
        due = [hook for hook in hooks if hook.due(done)]
        if due:
            report()
        for hook in due:
            hook.at_boundary(state, done)
        if stop.reached():
            report()
            save(state, done)
            raise PreemptedError(f"SIGTERM: saved step {done}; start again to go on from it.")
    report()
    return state
