"""Held-out batches: every token once, whatever the size of the set. Imports NumPy only."""

from collections.abc import Iterator

import numpy as np

from input_pipeline.dataset import Dataset


class EvaluationBatches:
    """Iterates ``(index, batch)``, from the start each time; rows past the end weigh nothing.

    Attributes:
      global_batch: rows of a batch over all processes.
      rows: which of them this process gets.
    """

    def __init__(
        self, dataset: Dataset, *, batch: int, rows: np.ndarray, max_batches: int | None = None
    ) -> None:
        """Plans the batches.

        Args:
          dataset: the held-out split.
          batch: rows per batch, over all processes.
          rows: int [n], rows of the batch that this process's devices need.
          max_batches: most batches; None takes the whole set.

        Raises:
          ValueError: ``batch`` is not positive, or a row is not in it.
        """
        self.global_batch = batch
        self.rows = np.asarray(rows, dtype=np.int64)
        if batch < 1 or not len(self.rows) or self.rows.min() < 0 or self.rows.max() >= batch:
            raise ValueError(f"Rows {self.rows.tolist()} are not in a batch of {batch}.")
        self._dataset = dataset
        whole = -(-dataset.rows_per_epoch // batch)
        self._count = whole if max_batches is None else min(whole, max_batches)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for index in range(self._count):
            examples = index * self.global_batch + self.rows
            beyond = examples >= self._dataset.rows_per_epoch
            yield index, self._dataset.rows(np.where(beyond, -1, examples))
