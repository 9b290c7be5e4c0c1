"""From a global row index to the pieces of documents in that row. Imports NumPy only.

A document of L tokens is L - 1 *predictions*: token i is read, token i + 1 is the target. An epoch
is all documents in an order of its own, laid end to end and cut into rows of ``sequence_length``
predictions; a document that a cut falls into goes on in the next row, with the last token before
the cut as its first input, so that every token is predicted exactly once. "pad" is the same with
each document's extent rounded up to whole rows.

The order is random access: documents form blocks of ``2**20`` neighbours; blocks are shuffled, and
documents inside a block are. Up to a million documents that is a full shuffle; beyond, finding any
row costs one block, not the corpus. Promise: the layout depends on document lengths, packing,
sequence length, seed and epoch only.
"""

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np

from input_pipeline.permutation import derive_key, permute
from input_pipeline.token_store import TokenStore

PLAN_VERSION = 1
"""Part of the dataset's digest: another layout is another dataset."""
BLOCK = 1 << 20
"""Documents that are shuffled among each other."""
_KEPT_BLOCKS = 4
_KEPT_EPOCHS = 2
_SCAN = 1 << 22


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Parts of documents in rows, ordered by row and column; each field is int64 [pieces].

    Attributes:
      row: index into the rows asked for.
      column: first column in that row.
      document: document number.
      begin: first prediction within the document.
      length: number of predictions.
      segment: 1, 2, ... within the row.
    """

    row: np.ndarray
    column: np.ndarray
    document: np.ndarray
    begin: np.ndarray
    length: np.ndarray
    segment: np.ndarray


class Plan(Protocol):
    """Where every prediction of every epoch lies.

    Attributes:
      rows_per_epoch: rows that hold all predictions once.
      predictions: predictions per epoch.
    """

    rows_per_epoch: int
    predictions: int

    def pieces(self, rows: np.ndarray) -> Pieces:
        """Returns the pieces in some rows.

        Args:
          rows: int64 [n] global row indices, at least 0; epoch ``e`` has the rows from
            ``e * rows_per_epoch`` on.
        """


@dataclasses.dataclass(frozen=True)
class _Order:
    """Things in an order, and where each begins: int64 [n] and int64 [n + 1]."""

    numbers: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray, *, extents: np.ndarray) -> "_Order":
        edges = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(extents[numbers], out=edges[1:])
        return cls(numbers, edges)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Returns the index of what covers each place; empty things cover none."""
        return np.searchsorted(self.edges, places, side="right") - 1


class PackingPlan:
    """See `Plan`; the last row of an epoch may be partly empty."""

    def __init__(
        self,
        store: TokenStore,
        *,
        sequence_length: int,
        pad: bool,
        seed: int,
        shuffle: bool,
        block: int = BLOCK,
    ) -> None:
        self._store = store
        self._sequence_length, self._pad = sequence_length, pad
        self._seed, self._shuffle, self._block = seed, shuffle, block
        self._extents, self.predictions = self._measure()
        self._total = int(self._extents.sum())
        self.rows_per_epoch = -(-self._total // sequence_length)
        self._epochs = _Recent(_KEPT_EPOCHS)
        self._blocks = _Recent(_KEPT_BLOCKS)

    def _measure(self) -> tuple[np.ndarray, int]:
        """Returns the extent of each block, int64 [blocks], and the number of predictions."""
        count = len(self._store)
        extents = np.zeros(-(-count // self._block), dtype=np.int64)
        predictions = 0
        for start in range(0, count, _SCAN):
            pairs = np.maximum(self._store.lengths(slice(start, start + _SCAN)) - 1, 0)
            predictions += int(pairs.sum())
            block = np.arange(start, start + len(pairs)) // self._block
            np.add.at(extents, block, self._extent(pairs))
        return extents, predictions

    def _extent(self, pairs: np.ndarray) -> np.ndarray:
        if not self._pad:
            return pairs
        return -(-pairs // self._sequence_length) * self._sequence_length

    def pieces(self, rows: np.ndarray) -> Pieces:
        """See `Plan.pieces`."""
        epochs, within = np.divmod(rows, self.rows_per_epoch)
        found = [
            self._pieces_of_epoch(int(epoch), places=np.flatnonzero(epochs == epoch), rows=within)
            for epoch in np.unique(epochs)
        ]
        return ordered(np.concatenate([np.zeros((5, 0), np.int64), *found], axis=1))

    def _pieces_of_epoch(self, epoch: int, *, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
        blocks = self._epochs.get(epoch, make=lambda: self._block_order(epoch))
        starts = rows[places] * self._sequence_length
        stops = np.minimum(starts + self._sequence_length, self._total)
        first, last = blocks.at(starts), blocks.at(stops - 1)
        found = [np.zeros((5, 0), np.int64)]
        for place in range(int(first.min()), int(last.max()) + 1):
            begin, end = blocks.edges[place], blocks.edges[place + 1]
            touched = np.flatnonzero((starts < end) & (stops > begin))
            if begin == end or not len(touched):
                continue
            number = int(blocks.numbers[place])
            make = functools.partial(self._document_order, epoch, block=number)
            order = self._blocks.get((epoch, number), make=make)
            found.append(
                self._pieces_of_block(
                    order,
                    places=places[touched],
                    starts=starts[touched] - begin,
                    stops=np.minimum(stops[touched], end) - begin,
                )
            )
        return np.concatenate(found, axis=1)

    def _pieces_of_block(
        self, order: _Order, *, places: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> np.ndarray:
        """Cuts ``[starts, stops)`` of a block at document edges; a start may lie before it."""
        inside = np.maximum(starts, 0)
        first, last = order.at(inside), order.at(stops - 1)
        count = last - first + 1
        which = np.repeat(np.arange(len(places)), count)
        index = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(which))
        document = order.numbers[index]
        edge = order.edges[index]
        begin = np.maximum(inside[which], edge)
        pairs = self._store.lengths(document) - 1
        end = np.minimum(np.minimum(stops[which], order.edges[index + 1]), edge + pairs)
        found = np.stack(
            [places[which], begin - starts[which], document, begin - edge, end - begin]
        )
        return found[:, found[4] > 0]

    def _block_order(self, epoch: int) -> _Order:
        count = len(self._extents)
        return _Order.of(self._permuted(count, "blocks", epoch), extents=self._extents)

    def _document_order(self, epoch: int, *, block: int) -> _Order:
        start = block * self._block
        lengths = self._store.lengths(slice(start, start + self._block))
        extents = self._extent(np.maximum(lengths - 1, 0))
        order = _Order.of(self._permuted(len(lengths), "documents", epoch, block), extents=extents)
        return _Order(order.numbers + start, order.edges)

    def _permuted(self, size: int, *purpose: int | str) -> np.ndarray:
        numbers = np.arange(size, dtype=np.int64)
        if not self._shuffle:
            return numbers
        return permute(numbers, size=size, key=derive_key(self._seed, *purpose))


def ordered(found: np.ndarray) -> Pieces:
    """Returns pieces of int64 [5, pieces] in any order: the fields of `Pieces` up to length."""
    row, column, document, begin, length = found[:, np.lexsort((found[1], found[0]))]
    first = np.searchsorted(row, row, side="left")
    return Pieces(row, column, document, begin, length, np.arange(len(row)) - first + 1)


class _Recent:
    """Keeps the last few orders; safe between threads; copies to processes start empty."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.__setstate__(size)

    def get(self, key: object, *, make: Callable[[], _Order]) -> _Order:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def __getstate__(self) -> int:
        return self._size

    def __setstate__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[object, _Order] = OrderedDict()
