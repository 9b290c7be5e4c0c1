"""Rows of tokens by global index, filled with vectorised NumPy. Imports NumPy only.

A reader holds paths and numbers: worker processes get a cheap copy, and no tokenizer.
"""

import numpy as np

from input_pipeline.packing import Plan
from input_pipeline.token_store import TokenStore, ranges

FIELDS: dict[str, np.dtype] = {
    "inputs": np.dtype(np.int32),
    "targets": np.dtype(np.int32),
    "loss_weights": np.dtype(np.float32),
    "segment_ids": np.dtype(np.int32),
    "positions": np.dtype(np.int32),
}
"""Names and types of a batch's arrays; each is [rows, sequence_length]."""


class RowReader:
    """Reads any rows of any epoch."""

    def __init__(self, store: TokenStore, *, plan: Plan, sequence_length: int) -> None:
        self._store, self._plan, self._length = store, plan, sequence_length

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns rows.

        Args:
          indices: int64 [n] global row indices, at least 0; -1 gives a row of padding.

        Returns:
          ``inputs``, ``targets``, ``segment_ids`` (1, 2, ... per document), ``positions``
          (restarting with each document's piece) int32 and ``loss_weights`` float32, 0 where the
          target is not to be learned, each [n, sequence_length]; all are 0 on padding.

        Raises:
          ValueError: a token is not in the vocabulary.
        """
        real = np.flatnonzero(indices >= 0)
        if not len(real):
            return self._padding(len(indices))
        pieces = self._plan.pieces(indices[real])
        within = ranges(np.zeros_like(pieces.length), pieces.length)
        source = np.repeat(self._store.starts(pieces.document) + pieces.begin, pieces.length)
        source += within
        inputs = self._tokens(source)
        target = np.add(source, 1, out=source)
        values = {
            "inputs": inputs,
            "targets": self._tokens(target),
            "loss_weights": self._store.weights(target),
            "segment_ids": np.repeat(pieces.segment.astype(np.int32), pieces.length),
            "positions": within.astype(np.int32),
        }
        if len(within) == len(indices) * self._length:
            # Full rows, in order: nearly every batch of packed text.
            return {name: array.reshape(-1, self._length) for name, array in values.items()}
        place = within
        place += np.repeat(real[pieces.row] * self._length + pieces.column, pieces.length)
        batch = self._padding(len(indices))
        for name, array in batch.items():
            array.reshape(-1)[place] = values[name]
        return batch

    def _padding(self, rows: int) -> dict[str, np.ndarray]:
        return {name: np.zeros((rows, self._length), dtype) for name, dtype in FIELDS.items()}

    def _tokens(self, addresses: np.ndarray) -> np.ndarray:
        tokens = self._store.gather(addresses)
        limit = self._store.record.vocab_size
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < limit):
            raise ValueError(
                f"{self._store.folder}: a document holds token {tokens.max()}, but the manifest "
                f"says that there are {limit}. The store is damaged; prepare it again."
            )
        return tokens
