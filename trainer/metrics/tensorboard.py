"""TensorBoard event files, written without TensorFlow.

Imports tensorboardX, when a writer is made.
"""

import pathlib

from trainer.metrics.writer import MetricWriter, Row


class TensorBoardWriter(MetricWriter):
    """Writes each value as the scalar ``kind/name``."""

    def __init__(self, folder: pathlib.Path, *, restored_step: int) -> None:
        """Opens a new event file; TensorBoard drops what older files hold after the step."""
        from tensorboardX import SummaryWriter

        purge = restored_step + 1 if restored_step else None
        self._writer = SummaryWriter(str(folder), purge_step=purge)
        self._closed = False

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`."""
        for name, value in row.values.items():
            self._writer.add_scalar(f"{row.kind}/{name}", float(value), row.step)

    def flush(self) -> None:
        """See `MetricWriter.flush`."""
        if not self._closed:
            self._writer.flush()

    def close(self) -> None:
        """See `MetricWriter.close`."""
        if not self._closed:
            self._closed = True
            self._writer.close()
