"""The supervisor's end of an agent's pipes. Standard library only."""

import contextlib
import os
import subprocess

from launch.engines.engine import AgentProcess
from launch.lines import Joiner, LineReader


class Channel:
    """The pipes of one started process.

    Attributes:
      descriptor: where its lines come from, for a selector.
      hosts: hosts that speak through it.
      closed: whether it has ended.
    """

    def __init__(self, process: AgentProcess, *, hosts: set[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin = process, process.stdin
        self.descriptor = process.stdout.fileno()
        self._reader = LineReader(self.descriptor)
        self._joiner = Joiner()
        self._unsent = b""
        self.hosts = hosts
        self.closed = False
        os.set_blocking(self._stdin.fileno(), False)

    def lines(self) -> list[str] | None:
        """Whole lines that have come; None at the end."""
        lines = self._reader.lines()
        self.closed = lines is None
        if lines is None:
            return None
        joined = (self._joiner.whole(line) for line in lines)
        return [line for line in joined if line is not None]

    def send(self, line: str) -> None:
        """Sends a line, or as much of it as fits; the rest goes with the next."""
        if self.closed:
            return
        self._unsent += line.encode() + b"\n"
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]

    def hang_up(self) -> None:
        """Closes its stdin, on which the process ends."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self._stdin.close()

    def close(self, *, timeout_s: float) -> None:
        """Waits for the process after `hang_up`, and kills it where that is not enough."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
