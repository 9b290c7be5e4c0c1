"""Batches of a run's steps, read ahead by threads or processes. Imports NumPy and Grain.

Promise 1: what a step holds depends on the dataset and the position record only; rows asked for,
workers, prefetch and where the loader started change nothing. Worker processes import no model,
initialise no jax backend, leave signals to their parent and end when it ends.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import numpy as np
from absl import flags

from input_pipeline.dataset import Dataset
from input_pipeline.position import PositionRecord
from input_pipeline.rows import RowReader

if TYPE_CHECKING:
    import grain

Batch = dict[str, np.ndarray]
"""Name -> [rows, sequence_length]; see `input_pipeline.rows.FIELDS`."""

_STEP = "step"
_ENDLESS = 1 << 40


class BatchLoader:
    """Iterates ``(step, batch)`` from ``start_step`` up to, not including, ``stop_step``.

    Use it as a context manager, or call `close`.

    Attributes:
      global_batch: rows of a step over all processes.
      rows: which of them this loader returns.
      close: ends threads and processes; more than once is fine.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        position: PositionRecord,
        rows: np.ndarray,
        start_step: int = 0,
        stop_step: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        """Starts reading at the first `next`.

        Args:
          dataset: what to read.
          position: which global rows each step holds.
          rows: int [n], rows of the global batch that this process's devices need.
          start_step: first step.
          stop_step: step after the last; None never stops.
          workers: processes; 0 reads in a thread of this one.
          prefetch: batches that are ready ahead; 0 without workers reads when asked.

        Raises:
          ValueError: a row is not in the global batch, or the batch size changes between the
            steps, in which case each part needs its own loader.
        """
        self.global_batch = position.entry(start_step).global_batch
        self.rows = np.asarray(rows, dtype=np.int64)
        _check_rows(self.rows, global_batch=self.global_batch)
        _check_batch_is_constant(position, start_step=start_step, stop_step=stop_step)
        steps = _ENDLESS if stop_step is None else max(stop_step - start_step, 0)
        source = _Steps(
            dataset.reader, position=position, rows=self.rows, start=start_step, count=steps
        )
        self._next_step = start_step
        self._open = [iter(_pipeline(source, workers=workers, prefetch=prefetch))]
        # Also runs at exit, while the modules that Grain's own clean-up needs still exist.
        self.close = weakref.finalize(self, _close, self._open)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self

    def __next__(self) -> tuple[int, Batch]:
        if not self._open:
            raise StopIteration
        try:
            batch = next(self._open[0])
        except StopIteration:
            self.close()
            raise
        step = int(batch.pop(_STEP))
        if step != self._next_step:
            raise RuntimeError(f"Workers delivered step {step} instead of {self._next_step}.")
        self._next_step += 1
        return step, batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class _Steps:
    """Batch by step, as a Grain source: random access, no state."""

    def __init__(
        self,
        reader: RowReader,
        *,
        position: PositionRecord,
        rows: np.ndarray,
        start: int,
        count: int,
    ) -> None:
        self._reader, self._position, self._rows = reader, position, rows
        self._start, self._count = start, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        step = self._start + int(index)
        batch = self._reader.rows(self._position.examples(step)[self._rows])
        return {**batch, _STEP: np.array(step, dtype=np.int64)}


def _close(batches: "list[grain.DatasetIterator]") -> None:
    while batches:
        batches.pop().close()


def _pipeline(source: _Steps, *, workers: int, prefetch: int) -> "grain.IterDataset":
    import grain  # with Orbax behind it, 0.8 s that a run spends while its step compiles

    steps = grain.MapDataset.source(source)
    threads = 1 if prefetch and not workers else 0
    batches = steps.to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch if threads else 0)
    )
    if not workers:
        return batches
    if not flags.FLAGS.is_parsed():
        # Grain reads absl flags; under pytest and in notebooks nobody has parsed them.
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=max(1, -(-prefetch // workers))
    )
    # Through pipes, not shared memory: as fast for batches of a few megabytes, nothing to leak when
    # a process is killed or an array outlives the loader, and containers often have only 64 MB.
    private = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    batches = grain.experimental.WithOptionsIterDataset(batches, private)
    return batches.mp_prefetch(options, worker_init_fn=_start_worker)


def _start_worker(index: int, count: int) -> None:
    """Runs first in each worker process."""
    del index, count
    # The parent decides when to stop; a signal to the whole group must not kill its readers first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    sys.stderr.flush()
    os._exit(1)


def _check_rows(rows: np.ndarray, *, global_batch: int) -> None:
    if rows.ndim != 1 or not len(rows):
        raise ValueError(f"Row numbers must be a list of at least one, given shape {rows.shape}.")
    if rows.min() < 0 or rows.max() >= global_batch:
        raise ValueError(
            f"Rows {rows.min()}..{rows.max()} are not in a global batch of {global_batch}."
        )


def _check_batch_is_constant(
    position: PositionRecord, *, start_step: int, stop_step: int | None
) -> None:
    size = position.entry(start_step).global_batch
    for entry in position.entries:
        later = entry.from_step > start_step and (stop_step is None or entry.from_step < stop_step)
        if later and entry.global_batch != size:
            raise ValueError(
                f"The global batch changes from {size} to {entry.global_batch} at step "
                f"{entry.from_step}: use one loader up to that step and another from it."
            )
