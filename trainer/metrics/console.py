"""What a person sees: one live line on a terminal, plain lines everywhere else.

Imports the standard library only. Shows step, loss, tokens per second, MFU (or TFLOP/s where the
hardware's peak is unknown) and the time that is left.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from trainer.metrics.writer import Kind, MetricWriter, Row

_CLEAR = "\r\x1b[K"


class ConsoleWriter(MetricWriter):
    """Shows rows as they come."""

    def __init__(
        self,
        stream: TextIO,
        *,
        steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock for the time that is left.

        Args:
          stream: where lines go.
          steps: length of the run.
          clock: seconds, not decreasing.
        """
        self._stream, self._steps, self._clock = stream, steps, clock
        self._live = stream.isatty()
        self._open_line = False
        self._since: tuple[int, float] | None = None

    def write(self, row: Row) -> None:
        """See `MetricWriter.write`."""
        if row.kind is Kind.EVAL:
            self._print_line(f"eval {row.step}  {_all(row.values)}")
            return
        text = self._progress(row)
        if self._live and row.step < self._steps:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"{_CLEAR}{text[:width]}")
            self._stream.flush()
            self._open_line = True
            return
        self._print_line(text)

    def flush(self) -> None:
        """See `MetricWriter.flush`."""
        self._stream.flush()

    def close(self) -> None:
        """Ends the live line, so that what follows starts on its own."""
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False
        self._stream.flush()

    def _print_line(self, text: str) -> None:
        clear = _CLEAR if self._open_line else ""
        self._stream.write(f"{clear}{text}\n")
        self._stream.flush()
        self._open_line = False

    def _progress(self, row: Row) -> str:
        parts = [f"step {row.step}/{self._steps}"]
        values = row.values
        if "loss" in values:
            parts.append(f"loss {values.get('loss_mean', values['loss']):.4f}")
        if "tokens_per_second" in values:
            parts.append(f"{_short(values['tokens_per_second'])} tokens/s")
        if "mfu" in values:
            parts.append(f"MFU {100 * values['mfu']:.1f}%")
        elif "tflops_per_second" in values:
            parts.append(f"{values['tflops_per_second']:.3g} TFLOP/s")
        parts.append(f"ETA {self._left(row.step)}")
        return "  ".join(parts)

    def _left(self, step: int) -> str:
        """Time left by the pace since the first row, which leaves compilation out."""
        now = self._clock()
        if self._since is None:
            self._since = step, now
        first, since = self._since
        if step == first:
            return "0:00:00" if step >= self._steps else "-"
        seconds = (now - since) / (step - first) * (self._steps - step)
        return duration(seconds)


def duration(seconds: float) -> str:
    """Returns hours, minutes and seconds; days in front where there are any."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hour}:{minute:02d}:{second:02d}"


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _all(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.6g}" for name, value in values.items())
