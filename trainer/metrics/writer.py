"""Rows of metrics and the one interface through which they are written.

Imports the standard library only. Rows come in order: a writer sees non-decreasing steps, and each
pair of step and kind once.
"""

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean


class Kind(enum.StrEnum):
    """What a row measures."""

    TRAIN = "train"
    EVAL = "eval"


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured at one step.

    Attributes:
      step: completed optimizer steps.
      kind: training step or evaluation.
      values: name -> number. Names carry their unit: ``loss``, ``tokens_per_second`` (of the whole
        run), ``step_time_s``, ``mfu`` (0 to 1), ``tflops_per_second`` (of the whole run).
    """

    step: int
    kind: Kind
    values: Mapping[str, float]


class MetricWriter(abc.ABC):
    """A place where rows go. Writers are used by process 0 only."""

    @abc.abstractmethod
    def write(self, row: Row) -> None:
        """Writes one row."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Makes everything written so far survive the end of the process."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes and lets go; calling it again does nothing."""


class Several(MetricWriter):
    """Writes every row to several writers."""

    def __init__(self, writers: Sequence[MetricWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`."""
        for writer in self._writers:
            writer.write(row)

    def flush(self) -> None:
        """Flushes all; a failure is raised only after the others were flushed."""
        _each([writer.flush for writer in self._writers])

    def close(self) -> None:
        """Closes all; a failure is raised only after the others were closed."""
        _each([writer.close for writer in self._writers])


class Thinned(MetricWriter):
    """Passes on training rows whose step is a multiple of ``every``, the last one, and all others.

    Which steps those are depends on nothing that a restart could lose. A row that is passed on also
    has ``loss_mean``, over the training rows since the last one.
    """

    def __init__(self, writer: MetricWriter, *, every: int, last: int) -> None:
        if every < 1:
            raise ValueError(
                f"LoggingConfig.every={every}; rows are written every 1 or more steps."
            )
        self._writer, self._every, self._last = writer, every, last
        self._losses: list[float] = []

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`."""
        if row.kind is not Kind.TRAIN:
            self._writer.write(row)
            return
        if "loss" in row.values:
            self._losses.append(row.values["loss"])
        if row.step % self._every == 0 or row.step == self._last:
            mean = {"loss_mean": fmean(self._losses)} if self._losses else {}
            self._losses = []
            self._writer.write(Row(row.step, row.kind, {**row.values, **mean}))

    def flush(self) -> None:
        """See `MetricWriter.flush`."""
        self._writer.flush()

    def close(self) -> None:
        """See `MetricWriter.close`."""
        self._writer.close()


def _each(acts: Sequence[Callable[[], None]]) -> None:
    failures: list[Exception] = []
    for act in acts:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup("Several metric writers failed.", failures)
