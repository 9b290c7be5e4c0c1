"""Puts batches on devices ahead of the loop. The one module of this package that imports jax.

Promises: each process reads the rows that its own devices need and nothing else; a batch is checked
against its global shape before it is used; an error in reading reaches the loop at its next step;
what the loop waited for is measured.
"""

import collections
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import jax
import numpy as np
from jax.sharding import NamedSharding

_CLOSE_TIMEOUT_S = 60.0


class HostBatches(Protocol):
    """What is placed: `BatchLoader` or `EvaluationBatches`."""

    global_batch: int
    rows: np.ndarray

    def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Iterates ``(step, name -> [len(rows), ...])``."""


class PlacedBatch(NamedTuple):
    """A batch on the devices.

    Attributes:
      step: step or batch number.
      arrays: name -> global array [global_batch, ...].
      wait_s: seconds that the loop waited for it.
    """

    step: int
    arrays: dict[str, jax.Array]
    wait_s: float


def local_rows(sharding: NamedSharding, global_batch: int) -> np.ndarray:
    """Returns the rows of a global batch that this process's devices hold: int64 [n], ascending.

    Raises:
      ValueError: the mesh axes that split the batch do not divide it.
    """
    shape = _shape_like(sharding, global_batch)
    held = sharding.addressable_devices_indices_map(shape).values()
    spans = {index[0].indices(global_batch)[:2] for index in held if index is not None}
    return np.unique(np.concatenate([np.arange(*span, dtype=np.int64) for span in spans]))


def _shape_like(sharding: NamedSharding, global_batch: int) -> tuple[int, ...]:
    first = sharding.spec[0] if len(sharding.spec) else None
    axes = first if isinstance(first, tuple) else (first,) if isinstance(first, str) else ()
    parts = int(np.prod([sharding.mesh.shape[axis] for axis in axes], dtype=np.int64))
    if global_batch % parts:
        sizes = {axis: sharding.mesh.shape[axis] for axis in axes}
        raise ValueError(
            f"A batch of {global_batch} rows does not divide over mesh axes {sizes}: it must be a "
            f"multiple of {parts}. Change DataConfig.global_batch or MeshConfig."
        )
    return (global_batch, *([sharding.mesh.size] * (len(sharding.spec) - 1)))


class DevicePrefetcher:
    """Iterates `PlacedBatch`, keeping ``depth`` of them ready by a thread of its own.

    Use it as a context manager, or call `close`; that does not close what it reads from.
    """

    def __init__(
        self,
        batches: HostBatches,
        shardings: Mapping[str, NamedSharding],
        *,
        columns: np.ndarray | None = None,
        depth: int = 2,
    ) -> None:
        """Starts reading at once.

        Args:
          batches: where host batches come from.
          shardings: name -> how the global array is split; names not in it are dropped.
          columns: int [sequence_length], order in which the columns of every array are placed;
            None leaves it. What a step holds and which row it is in do not change.
          depth: batches that are ready ahead; at least 1.

        Raises:
          ValueError: ``batches`` does not hold exactly the rows that this process needs.
        """
        if depth < 1:
            raise ValueError(f"A prefetcher of depth {depth}; it must be at least 1.")
        for name, sharding in shardings.items():
            needed = local_rows(sharding, batches.global_batch)
            if not np.array_equal(needed, batches.rows):
                raise ValueError(
                    f"{name!r} needs rows {_shown(needed)} of the global batch in this process, "
                    f"but the loader was made for rows {_shown(batches.rows)}. Make it with "
                    "rows=local_rows(sharding, global_batch)."
                )
        self._batches, self._shardings, self._depth = batches, dict(shardings), depth
        self._columns = columns
        self._ready: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._finished = self._stopped = False
        self._thread = threading.Thread(target=self._fill, name="device-prefetch", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        try:
            # Moving batches is this thread's job; the loop's own guard stays as strict as it is.
            with jax.transfer_guard("allow"):
                for step, batch in self._batches:
                    if not self._offer(step, self._place(batch)):
                        return
        except BaseException as error:  # noqa: BLE001 (handed to the loop, which raises it)
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _offer(self, step: int, arrays: dict[str, jax.Array]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._ready) < self._depth)
            if self._stopped:
                return False
            self._ready.append((step, arrays))
            self._changed.notify_all()
            return True

    def _place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        rows, size = self._batches.rows, self._batches.global_batch
        return {
            name: place(
                batch[name],
                sharding=sharding,
                rows=rows,
                global_batch=size,
                columns=self._columns,
            )
            for name, sharding in self._shardings.items()
        }

    def __iter__(self) -> Iterator[PlacedBatch]:
        return self

    def __next__(self) -> PlacedBatch:
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._ready or self._finished or self._error or self._stopped
            )
            if self._error is not None:
                raise self._error
            if self._stopped or not self._ready:
                raise StopIteration
            step, arrays = self._ready.popleft()
            self._changed.notify_all()
        return PlacedBatch(step, arrays, time.perf_counter() - start)

    def close(self) -> None:
        """Ends the thread; more than once is fine.

        Raises:
          RuntimeError: the thread is stuck in a read.
        """
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout=_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"Reading a batch did not end within {_CLOSE_TIMEOUT_S:g} s.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def place(
    local: np.ndarray,
    *,
    sharding: NamedSharding,
    rows: np.ndarray,
    global_batch: int,
    columns: np.ndarray | None = None,
) -> jax.Array:
    """Returns the global array of which this process holds ``local``.

    Args:
      local: [len(rows), ...], this process's rows, whole in all other dimensions.
      sharding: of the global array.
      rows: int64 [n], ascending, which global rows they are.
      global_batch: rows of the global array.
      columns: int [columns], column of ``local`` that goes to each column of the global array;
        None keeps the order.

    Raises:
      ValueError: ``local`` is not one array per row in ``rows``, for example because it is the
        global array; or ``columns`` does not name as many columns as there are.
    """
    if len(local) != len(rows):
        raise ValueError(
            f"This process holds {len(rows)} of {global_batch} rows, but the batch has "
            f"{len(local)}, of shape {local.shape}."
        )

    if columns is not None and local.shape[1:2] != columns.shape:
        raise ValueError(
            f"An order of {len(columns)} columns for a batch of shape {local.shape}: every array "
            "of a batch has one value per token."
        )

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        start, stop, _ = index[0].indices(global_batch)
        first = int(np.searchsorted(rows, start))
        assert np.array_equal(rows[first : first + stop - start], np.arange(start, stop))
        mine = local[first : first + stop - start]
        if columns is None:
            return mine[(slice(None), *index[1:])]
        return mine[:, columns[index[1]]][(slice(None), slice(None), *index[2:])]

    shape = (global_batch, *local.shape[1:])
    array = jax.make_array_from_callback(shape, sharding, part)
    assert array.shape == shape, (array.shape, shape)
    return array


def _shown(rows: np.ndarray) -> str:
    return f"{rows.min()}..{rows.max()} ({len(rows)})"
