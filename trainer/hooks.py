"""What happens around steps: rows of metrics, evaluation, checkpoints, start-up, profiles.

The order in a run is recorder, evaluator, saver, then the others: a row is written before the
step's checkpoint can be committed, and what is restored has been evaluated.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable

import jax
from absl import logging

from launch.contract import Phase
from trainer.checkpoints.root import Root
from trainer.checkpoints.store import CheckpointStore
from trainer.distributed import Participant
from trainer.flops import Utilization
from trainer.loop import Hook, StepResult
from trainer.metrics.writer import Kind, MetricWriter, Row
from trainer.program import Program
from trainer.startup import StartupClock
from trainer.state import TrainState, to_portable
from trainer.task import Task

Scores = dict[str, float]


@dataclasses.dataclass
class Totals:
    """Sums over the steps of an attempt.

    Attributes:
      steps: how many there were.
      seconds: their duration, pauses excluded. The first step compiles, which would hide the pace
        of all others: neither this nor ``tokens`` and ``data_wait_s`` count it.
      tokens: weight of their losses.
      data_wait_s: seconds that the loop waited for batches.
      blocked_s: seconds that it waited for checkpoints.
      metrics_s: seconds that writing rows took.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    data_wait_s: float = 0.0
    blocked_s: float = 0.0
    metrics_s: float = 0.0

    def per_second(self, amount: float) -> float | None:
        """Returns ``amount`` divided by ``seconds``; None where no second counts."""
        return amount / self.seconds if self.seconds else None


class Recorder(Hook):
    """Turns each step's numbers into a row: loss, norms, rate, speed, waits, memory."""

    def __init__(
        self,
        writer: MetricWriter,
        *,
        task: Task,
        utilization: Utilization,
        participant: Participant,
    ) -> None:
        """Rows go to ``writer``; the pace is counted from now on."""
        self._writer, self._task, self._utilization = writer, task, utilization
        self._participant = participant
        self._last = time.perf_counter()
        self._paused = 0.0
        self._blocked = 0.0
        self.totals = Totals()

    def reported(self, result: StepResult) -> None:
        """Writes the row of a step."""
        now = time.perf_counter()
        seconds = max(now - self._last - self._paused, 1e-9)
        self._last, self._paused = now, 0.0
        metrics = result.metrics
        weight = float(metrics["weight"])
        if not weight and self._participant.rank == 0:
            logging.warning(
                "Step %d learned nothing: all targets of its batch have weight 0. Its gradient is "
                "zero; only momentum and weight decay moved the parameters.",
                result.step,
            )
        sums = {name: float(value) for name, value in metrics["sums"].items()}
        values = {
            "loss": float(metrics["loss"]),
            **self._task.metrics(sums, weight=weight),
            **{
                name: float(metrics[name])
                for name in ("grad_norm", "param_norm", "learning_rate", "nonfinite")
            },
            "tokens": weight,
            "tokens_per_second": weight / seconds,
            "step_time_s": seconds,
            "data_wait_s": result.wait_s,
            "checkpoint_blocked_s": self._blocked,
            "tflops_per_second": self._utilization.teraflops(seconds),
        }
        mfu = self._utilization.mfu(seconds)
        values |= {} if mfu is None else {"mfu": mfu}
        values |= _memory()
        self._writer.write(Row(result.step, Kind.TRAIN, values))
        self._count(seconds, tokens=weight, wait_s=result.wait_s)
        self._blocked = 0.0
        self._participant.progress(Phase.STEP, step=result.step, loss=values["loss"])
        self.totals.metrics_s += time.perf_counter() - now

    def _count(self, seconds: float, *, tokens: float, wait_s: float) -> None:
        self.totals.blocked_s += self._blocked
        if self.totals.steps:
            self.totals.data_wait_s += wait_s
            self.totals.seconds += seconds
            self.totals.tokens += tokens
        self.totals.steps += 1

    def busy(self, phase: Phase) -> None:
        """What the loop does until the next step is reported."""
        self._participant.progress(phase)

    def blocked(self, seconds: float) -> None:
        """A checkpoint kept the loop waiting."""
        self._blocked += seconds

    def paused(self, seconds: float) -> None:
        """Something that is no part of a step took this long."""
        self._paused += seconds

    def evaluated(self, step: int, scores: Scores) -> None:
        """Writes the row of an evaluation."""
        self._writer.write(Row(step, Kind.EVAL, scores))

    def flush(self) -> None:
        """Makes all rows so far as durable as a checkpoint."""
        self._writer.flush()


class Evaluator(Hook):
    """Scores held-out data every so many steps and at the end."""

    def __init__(
        self,
        score: Callable[[TrainState], Scores | None],
        *,
        recorder: Recorder,
        every: int,
        last: int,
    ) -> None:
        """``score`` returns None where it was interrupted."""
        self._score, self._recorder = score, recorder
        self._every, self._last = every, last
        self._newest: tuple[int, Scores] | None = None

    def scores(self, step: int) -> Scores | None:
        """Returns the scores of ``step``, or None where it was not evaluated."""
        return self._newest[1] if self._newest and self._newest[0] == step else None

    def due(self, step: int) -> bool:
        """See Hook."""
        return _is_due(step, every=self._every, last=self._last)

    def at_boundary(self, state: TrainState, step: int) -> None:
        """Evaluates and writes a row."""
        self._recorder.busy(Phase.EVALUATE)
        start = time.perf_counter()
        scores = self._score(state)
        if scores is not None:
            self._newest = step, scores
            self._recorder.evaluated(step, scores)
        self._recorder.paused(time.perf_counter() - start)


class Saver(Hook):
    """Saves every so many steps and at the end, and raises what went wrong in the background."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        program: Program,
        data: dict[str, object],
        scores: Callable[[int], Scores | None],
        recorder: Recorder,
        every: int,
        last: int,
    ) -> None:
        """``data`` is the run's position; ``scores`` gives a step's evaluation."""
        self._store, self._program = store, program
        self._data, self._scores = data, scores
        self._recorder = recorder
        self._every, self._last = every, last

    def reported(self, result: StepResult) -> None:
        """Raises if a save has failed since."""
        del result
        self._store.check()

    def due(self, step: int) -> bool:
        """See Hook."""
        return _is_due(step, every=self._every, last=self._last)

    def at_boundary(self, state: TrainState, step: int) -> None:
        """Starts a save; returns when the arrays may be changed."""
        self._recorder.busy(Phase.SAVE)
        self._recorder.flush()
        seconds = self._store.save(
            step, to_portable(state, self._program), data=self._data, metrics=self._scores(step)
        )
        self._recorder.blocked(seconds)
        self._recorder.paused(seconds)

    def commit(self, state: TrainState, step: int) -> None:
        """Saves a step and waits until it counts."""
        self.at_boundary(state, step)
        self._store.wait()


class StartupReport(Hook):
    """Says once, when the first step is done, where the time until then went."""

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

    def reported(self, result: StepResult) -> None:
        """Prints and writes the record after the first step."""
        del result
        if self._done:
            return
        self._done = True
        self._clock.ended("first_step")
        phases, beside = self._clock.phases, self._details()
        total = sum(phases.values())
        record = {"total_s": total, "phases_s": phases, "beside_s": beside}
        self._say(
            f"First step after {total:.1f} s: {_seconds(phases)}. Beside that: {_seconds(beside)}."
        )
        if self._root is not None:
            self._root.write(self._key, json.dumps(record, indent=1).encode())


class Profiler(Hook):
    """Records a trace of steps ``first`` to ``last``, both included."""

    def __init__(self, folder: pathlib.Path, *, first: int, last: int, start: int = 0) -> None:
        """Traces go to ``folder``; read them with XProf or Perfetto.

        ``start`` steps are done already: where it lies among the steps to trace, or right before
        them, the trace starts now.
        """
        self._folder, self._first, self._last = folder, first, last
        self._running = False
        if first - 1 <= start < last:
            self._begin()

    def due(self, step: int) -> bool:
        """See Hook; boundaries before the first and after the last traced step."""
        return step in (self._first - 1, self._last)

    def at_boundary(self, state: TrainState, step: int) -> None:
        """Starts or ends the trace."""
        jax.block_until_ready(state)
        if step == self._first - 1:
            self._begin()
        elif self._running:
            self.close()

    def _begin(self) -> None:
        jax.profiler.start_trace(str(self._folder))
        self._running = True

    def close(self) -> None:
        """Ends a trace that is still running."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
            logging.info("Profile written to %s", self._folder)


def _is_due(step: int, *, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


def _memory() -> dict[str, float]:
    """Peak and current bytes of the first local device, where the backend tells."""
    stats = jax.local_devices()[0].memory_stats() or {}
    names = {"bytes_in_use": "memory_bytes", "peak_bytes_in_use": "memory_peak_bytes"}
    return {ours: float(stats[theirs]) for theirs, ours in names.items() if theirs in stats}


def _seconds(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in seconds.items())
