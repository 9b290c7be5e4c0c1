"""Rows of whole documents: none is cut by a row's end. Imports NumPy only.

Documents are packed into rows by best-fit decreasing (Johnson et al., "Worst-case performance
bounds for simple one-dimensional packing algorithms", 1974): from the longest on, each goes into
the fullest row that still has room. Lengths are small integers, so that a million documents are
packed as a histogram, many rows at a time.

Promises: each document is in exactly one row of every epoch; all epochs have the same rows, in an
order of their own; the layout depends on document lengths, sequence length and seed only. Of a
document that is longer than a row, the start is kept and the rest is left out, and counted.
"""

import bisect
import collections
import dataclasses

import numpy as np
from absl import logging

from input_pipeline.packing import Pieces, ordered
from input_pipeline.permutation import derive_key, permute
from input_pipeline.token_store import TokenStore, ranges

_SCAN = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows with the same content so far, as a chain: what was added last, and to which rows.

    Attributes:
      count: how many rows there are.
      size: length of the documents added last.
      each: how many of them each row got.
      before: the rows before that.
    """

    count: int
    size: int = 0
    each: int = 0
    before: "_Rows | None" = None


class WholeDocuments:
    """Where every whole document of every epoch lies.

    Attributes:
      rows_per_epoch: rows that hold all documents once.
      predictions: predictions per epoch.
      cut: documents longer than a row.
      left_out: predictions of them that no row holds.
    """

    def __init__(
        self, store: TokenStore, *, sequence_length: int, seed: int, shuffle: bool
    ) -> None:
        self._seed, self._shuffle = seed, shuffle
        self._length = sequence_length
        pairs = np.maximum(store.lengths(slice(0, len(store))) - 1, 0)
        self._sizes = np.minimum(pairs, sequence_length)
        self.predictions = int(self._sizes.sum())
        self._cut = np.flatnonzero(pairs > sequence_length)
        self.cut = len(self._cut)
        self.left_out = int(pairs.sum()) - self.predictions
        # Equal lengths are interchangeable: which of them share a row is drawn, for neighbours in a
        # file tend to be alike.
        ties = np.arange(len(pairs), dtype=np.int64)
        if shuffle:
            ties = permute(ties, size=len(pairs), key=derive_key(seed, "equal lengths"))
        self._members, self._edges = _assigned(self._sizes, ties=ties, room=sequence_length)
        self.rows_per_epoch = len(self._edges) - 1
        self.unlearned = self._unlearned(store)
        self._say()

    def _unlearned(self, store: TokenStore) -> int:
        """Returns how many documents have nothing to learn in what is kept of them."""
        if store.split.learned is None:
            return 0
        found = 0
        for start in range(0, self.cut, step := max(1, _SCAN // self._length)):
            documents = self._cut[start : start + step]
            sizes = self._sizes[documents]
            weights = store.weights(ranges(store.starts(documents) + 1, sizes))
            found += int(np.count_nonzero(np.add.reduceat(weights, np.cumsum(sizes) - sizes) == 0))
        return found

    def _say(self) -> None:
        if self.cut:
            logging.warning(
                "%d of %d documents are longer than DataConfig.sequence_length=%d + 1 tokens: "
                "their last %d tokens are left out, and %d of them keep nothing to learn. Raise "
                "DataConfig.sequence_length to keep them.",
                self.cut,
                len(self._sizes),
                self._length,
                self.left_out,
                self.unlearned,
            )

    def pieces(self, rows: np.ndarray) -> Pieces:
        """Returns the documents in some rows; see `input_pipeline.packing.Plan.pieces`."""
        epochs, within = np.divmod(rows, self.rows_per_epoch)
        for epoch in np.unique(epochs) if self._shuffle else ():
            here = epochs == epoch
            key = derive_key(self._seed, "rows", int(epoch))
            within[here] = permute(within[here], size=self.rows_per_epoch, key=key)
        counts = self._edges[within + 1] - self._edges[within]
        document = self._members[ranges(self._edges[within], counts)]
        length = self._sizes[document]
        row = np.repeat(np.arange(len(rows)), counts)
        before = np.cumsum(length) - length
        first = np.searchsorted(row, row, side="left")
        column = before - before[first]
        return ordered(np.stack([row, column, document, np.zeros_like(row), length]))


def _assigned(sizes: np.ndarray, *, ties: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns documents by row, int64 [documents], and where each row begins, int64 [rows + 1].

    Rows stand in the order of their first documents, so that without shuffling a few rows are no
    choice by length.
    """
    order = np.lexsort((ties, sizes))
    counts = np.bincount(sizes, minlength=room + 1)
    counts[0] = 0  # A document without predictions needs no place.
    starts = np.searchsorted(sizes[order], np.arange(room + 1))
    taken = starts.copy()
    rows, spans = 0, []
    for chain in _best_fit_decreasing(counts, room=room):
        node: _Rows | None = chain
        while node is not None and node.size:
            spans.append((taken[node.size], chain.count * node.each, node.each, rows))
            taken[node.size] += chain.count * node.each
            node = node.before
        rows += chain.count
    if not spans:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    first, count, each, row = (np.array(column, np.int64) for column in zip(*spans))
    document = order[ranges(first, count)]
    row = np.repeat(row, count) + ranges(np.zeros_like(count), count) // np.repeat(each, count)
    lowest = np.full(rows, len(sizes), np.int64)
    np.minimum.at(lowest, row, document)
    number = np.empty(rows, np.int64)
    number[np.argsort(lowest)] = np.arange(rows)
    row = number[row]
    order = np.lexsort((document, row))
    edges = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=edges[1:])
    return document[order], edges


def _best_fit_decreasing(counts: np.ndarray, *, room: int) -> list[_Rows]:
    """Returns rows, alike ones together, that hold ``counts[size]`` documents of each size."""
    open_rows: dict[int, list[_Rows]] = collections.defaultdict(list)
    levels: list[int] = []  # of room left, ascending; each key of `open_rows` once

    def keep(rows: _Rows, left: int) -> None:
        if rows.count:
            if left not in open_rows:
                bisect.insort(levels, left)
            open_rows[left].append(rows)

    for size in np.flatnonzero(counts)[::-1].tolist():
        waiting = int(counts[size])
        while waiting:
            place = bisect.bisect_left(levels, size)
            if place == len(levels):
                each = room // size
                keep(_Rows(-(-waiting // each)), room)
                continue
            left = levels[place]
            rows = open_rows[left].pop()
            if not open_rows[left]:
                del open_rows[left], levels[place]
            # What went into the fullest row leaves it the fullest, so it is filled before the next.
            each = left // size
            full = min(rows.count, waiting // each)
            rest = waiting - full * each if full < rows.count else 0
            keep(_Rows(full, size, each, rows), left - each * size)
            if rest:
                keep(_Rows(1, size, rest, rows), left - rest * size)
            keep(dataclasses.replace(rows, count=rows.count - full - bool(rest)), left)
            waiting -= full * each + rest
    return [rows for found in open_rows.values() for rows in found]
