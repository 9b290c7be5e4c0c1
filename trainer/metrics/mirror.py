"""Rows of a run whose directory is an object store: written locally, copied at every flush.

Imports trainer.checkpoints.root only. The loop flushes before it saves, so that a restored step
has all its rows in the store, whichever host goes on with it.
"""

import pathlib

from trainer.checkpoints.root import Root
from trainer.metrics.writer import MetricWriter, Row


class Mirrored(MetricWriter):
    """Passes rows on to the writer of a local file, and copies the file when it is flushed."""

    def __init__(self, writer: MetricWriter, *, path: pathlib.Path, root: Root, key: str) -> None:
        self._writer, self._path, self._root, self._key = writer, path, root, key
        self._changed = False

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`."""
        self._writer.write(row)
        self._changed = True

    def flush(self) -> None:
        """See `MetricWriter.flush`; afterwards the store has every row so far."""
        self._writer.flush()
        if self._changed:
            self._root.put_file(self._key, self._path)
            self._changed = False

    def close(self) -> None:
        """See `MetricWriter.close`."""
        self.flush()
        self._writer.close()


def fetch(path: pathlib.Path, *, root: Root, key: str) -> None:
    """Replaces a local file by the store's, where the store has one.

    What this host had beyond it was never copied, so it belongs to steps that are done again.
    """
    data = root.read(key)
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
