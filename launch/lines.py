"""Lines from a pipe, as they come; long ones in parts. Standard library only.

``srun`` writes the lines of all hosts to one pipe and keeps each whole only up to a kilobyte
(measured on 22.05: longer ones of two hosts are mixed). A part is a short line of its own:
``~SENDER SERIAL LEFT TEXT``, where LEFT counts the parts that follow.
"""

import itertools
import os

LONGEST = 1000
"""Bytes of the longest line that srun keeps whole, its end included, with a margin."""

_MARK = "~"
_HEAD = 200


class LineReader:
    """Reads whole lines from a descriptor, without waiting."""

    def __init__(self, descriptor: int) -> None:
        """Makes the descriptor non-blocking."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def lines(self) -> list[str] | None:
        """Returns the lines that are there; None at the end of the stream."""
        data = self._rest
        ended = False
        while True:
            try:
                more = os.read(self._descriptor, 65536)
            except BlockingIOError:
                break
            if not more:
                ended = True
                break
            data += more
        *whole, self._rest = data.split(b"\n")
        if ended and not whole:
            return None
        return [line.decode(errors="replace") for line in whole]


class Splitter:
    """Cuts lines into parts that are short enough for srun; short lines stay as they are."""

    def __init__(self, sender: str) -> None:
        """Gives every line of ``sender``, a name without blanks, its own number."""
        self._sender = sender
        self._serials = itertools.count()

    def parts(self, line: str) -> list[str]:
        """Returns one line, or its parts; ``line`` is ASCII, as JSON is."""
        if len(line) < LONGEST and not line.startswith(_MARK):
            return [line]
        serial, size = next(self._serials), LONGEST - _HEAD
        texts = [line[start : start + size] for start in range(0, len(line), size)]
        return [
            f"{_MARK}{self._sender} {serial} {len(texts) - 1 - index} {text}"
            for index, text in enumerate(texts)
        ]


class Joiner:
    """Puts parts together again, whatever stands between them."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._begun: dict[tuple[str, str], list[str]] = {}

    def whole(self, line: str) -> str | None:
        """Returns a whole line; None while parts of it are still to come."""
        if not line.startswith(_MARK):
            return line
        sender, serial, left, text = line.split(" ", 3)
        texts = self._begun.setdefault((sender, serial), [])
        texts.append(text)
        return None if left != "0" else "".join(self._begun.pop((sender, serial)))
