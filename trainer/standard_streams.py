"""Standard input, output and error that cannot end a run.

Imports the standard library only. A run may outlive the terminal or the pipe that it was started
from (``| head``, a closed session): what it prints is lost then, and the run goes on, since its
metrics and records are files. A process that was started without them gets the null device, because
otherwise the next file that it opens takes the number, and whatever prints an error writes into it.
Characters that the locale's encoding lacks are written as escapes. What libraries and children
print goes to standard error: standard output has what was asked for, and nothing else.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

_GONE = (errno.EPIPE, errno.EIO)


def secure() -> None:
    """Takes the streams over; called once, before the process opens anything."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = _apart(sys.stdout)
    sys.stderr = _enduring(sys.stderr, descriptor=2)


def _apart(stream: TextIO | None) -> TextIO:
    """Returns standard output under a number of its own; its old one becomes standard error."""
    encoding = "utf-8" if stream is None else stream.encoding
    if stream is not None:
        stream.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    # Line by line, so that nobody waits for what is printed already.
    text = open(own, "w", encoding=encoding, buffering=1)  # noqa: SIM115
    return _enduring(text, descriptor=own)


def _enduring(stream: TextIO | None, *, descriptor: int) -> TextIO:
    if stream is None:  # Python found it closed
        stream = open(descriptor, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
    if isinstance(stream, io.TextIOWrapper):  # as Python's own standard error
        stream.reconfigure(errors="backslashreplace")
    return cast(TextIO, Enduring(stream, descriptor=descriptor))


class Enduring:
    """A text stream that turns to the null device once its reader is gone."""

    def __init__(self, stream: TextIO, *, descriptor: int) -> None:
        """``descriptor`` is the number that ``stream`` writes to."""
        self._stream, self._descriptor = stream, descriptor

    def write(self, text: str) -> int:
        """Writes; see `io.TextIOBase.write`."""
        with _null_instead(self._descriptor):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes; see `io.IOBase.flush`."""
        with _null_instead(self._descriptor):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _null_instead(descriptor: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
