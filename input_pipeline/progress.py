"""How far something has come that takes more than a few seconds. Imports the standard library only.

One line that moves on a terminal; elsewhere a line now and then, from the first five seconds on.
"""

import sys
import time


class Progress:
    """Called with how much is done, and of how much."""

    def __init__(self, what: str, *, unit: str = "") -> None:
        """``unit`` is what is counted; without one a percentage is shown."""
        self._what, self._unit = what, unit
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 5.0
        self._next = time.monotonic() + self._every

    def __call__(self, done: int, of: int) -> None:
        now, last = time.monotonic(), done == of
        if now < self._next and not (last and self._terminal):
            return
        self._next = now + self._every
        amount = f"{done} of {of} {self._unit}" if self._unit else f"{100 * done // max(of, 1)}%"
        start, end = ("\r", "\n" if last else "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{start}{self._what}: {amount}{end}")
        sys.stderr.flush()
