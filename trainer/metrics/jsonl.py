"""``metrics.jsonl``: every step once, also after restarts, with floats that read back bit-equal.

Imports no jax. A row is one write to the file, so that a process that is killed leaves all rows but
perhaps a part of its last one. The row of a step must be written before that step's checkpoint is
committed: what a restored step has behind it is then complete.
"""

import json
import logging
import math
import mmap
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from trainer import finite_json
from trainer.metrics.writer import Kind, MetricWriter, Row

_log = logging.getLogger(__name__)


def encode(row: Row) -> str:
    """Returns a row as one line of JSON, without its end."""
    if clash := {"step", "kind"} & set(row.values):
        raise ValueError(f"A metric cannot be called {sorted(clash)[0]!r}.")
    values = {n: v if isinstance(v, int) else float(v) for n, v in row.values.items()}
    return finite_json.dumps({"step": row.step, "kind": row.kind.value, **values})


def decode(line: str) -> Row:
    """Reads what `encode` wrote.

    Raises:
      ValueError: the line is torn, or no row of metrics.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or not isinstance(data.get("step"), int):
        raise ValueError(f"{line!r} is no row of metrics.")
    step, kind = data.pop("step"), Kind(data.pop("kind", None))
    return Row(step, kind, {name: _decode_number(value) for name, value in data.items()})


def read_rows(path: pathlib.Path) -> Iterator[Row]:
    """Yields the rows of a file.

    A torn last line, as a killed writer leaves it, is passed over; any other damaged line, too, but
    with a warning that names it: a lost row is no reason to lose the rest.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decode(line)
            except ValueError as error:
                if line.endswith("\n"):
                    _log.warning("%s:%d is passed over: %s", path, number, error)


class JsonlWriter(MetricWriter):
    """Appends rows to a file, continuing after a restored step."""

    def __init__(self, path: pathlib.Path, *, restored_step: int, superseded: pathlib.Path) -> None:
        """Opens the file.

        Args:
          path: the file.
          restored_step: step from which the run goes on, 0 for a fresh one; later rows belong to
            steps that will be done again.
          superseded: file that those rows are moved to.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut(path, after=restored_step, into=superseded)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._closed = False
        self._last: dict[Kind, int] = {}
        self._step = 0

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`.

        Raises:
          ValueError: the step is older than an earlier row's, or was written already.
        """
        if row.step < self._step or row.step <= self._last.get(row.kind, -1):
            raise ValueError(
                f"A {row.kind} row of step {row.step} after one of step "
                f"{self._last.get(row.kind, self._step)}: every step is written once, in order."
            )
        self._last[row.kind] = self._step = row.step
        data = f"{encode(row)}\n".encode()
        written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"Only {written} of {len(data)} bytes of a row were written: disk full?")

    def flush(self) -> None:
        """See `MetricWriter.flush`; afterwards rows survive the machine, too."""
        if not self._closed:
            os.fsync(self._file)

    def close(self) -> None:
        """See `MetricWriter.close`."""
        if not self._closed:
            self.flush()
            self._closed = True
            os.close(self._file)


def _decode_number(value: Any) -> float:
    number = finite_json.NOT_FINITE.get(value, value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{value!r} is no number.")
    return number


def _cut(path: pathlib.Path, *, after: int, into: pathlib.Path) -> None:
    """Moves rows of later steps, and damaged ones at the end, out of ``path``; drops a torn line.

    Steps do not decrease, so only the end of the file is read. Rows are stored at their new place
    before they go from the old one: a crash between the two loses nothing.
    """
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = data.rfind(b"\n") + 1
            start = end
            while start:
                line = data.rfind(b"\n", 0, start - 1) + 1
                if _step_of(data[line:start], path=path) <= after:
                    break
                start = line
            moved = data[start:end]
        if moved:
            _append(into, moved)
        file.truncate(start)
        os.fsync(file.fileno())


def _step_of(line: bytes, *, path: pathlib.Path) -> float:
    """Returns the step of a row; a damaged one is later than all, so that it moves away."""
    try:
        return decode(line.decode()).step
    except ValueError as error:
        _log.warning("%s: a damaged row is set aside: %s", path, error)
        return math.inf


def _append(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
