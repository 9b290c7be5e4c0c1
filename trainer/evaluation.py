"""Scores held-out data: every token once, sums in double precision on the host."""

import collections
from collections.abc import Callable

import jax
import numpy as np

from input_pipeline.evaluation import EvaluationBatches
from input_pipeline.placement import DevicePrefetcher
from trainer.state import TrainState
from trainer.task import Batch, Metrics, Task


def evaluate(
    state: TrainState,
    *,
    task: Task,
    step: Callable[[TrainState, Batch], Metrics],
    batches: EvaluationBatches,
    shardings: dict[str, jax.sharding.NamedSharding],
    columns: np.ndarray | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Runs over ``batches`` once.

    Args:
      state: what to score.
      task: turns sums into metrics.
      step: compiled evaluation step.
      batches: held-out batches; padding weighs nothing.
      shardings: where each array of a batch goes.
      columns: order in which columns are placed; None keeps it.
      interrupted: asked after every batch, by all processes alike.

    Returns:
      ``loss`` per weight, ``weight`` and the task's metrics; None if interrupted.
    """
    sums: collections.Counter[str] = collections.Counter()
    pending: Metrics | None = None
    with DevicePrefetcher(batches, shardings, columns=columns) as placed:
        for batch in placed:
            scores = step(state, batch.arrays)
            _add(sums, pending)
            pending = scores
            if interrupted():
                return None
    _add(sums, pending)
    weight = sums.pop("weight")
    loss = sums.pop("loss")
    return {"loss": loss / max(weight, 1e-9), "weight": weight, **task.metrics(sums, weight=weight)}


def _add(sums: collections.Counter[str], scores: Metrics | None) -> None:
    """Fetches the scores of the batch before, while the devices work on the next one."""
    if scores is not None:
        sums.update({name: float(v) for name, v in jax.device_get(scores).items()})
