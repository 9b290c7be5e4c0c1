"""What a pod shows: the end of its processes' logs as they grow, and why it ends.

The processes write to files, where all engines keep them; ``kubectl logs`` and whatever collects
the output of pods reads this instead. Standard library only.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import BinaryIO

from launch.records import ContractError
from launch.run_status import RunStatus

_LARGEST = 1 << 20
_TERMINATION_LOG = pathlib.Path("/dev/termination-log")
_LONGEST_WORD = 4000
_STATUS = "lockstep-status: "


class Output:
    """The output of a container."""

    def __init__(self, stream: BinaryIO, *, last_word: pathlib.Path = _TERMINATION_LOG) -> None:
        """Writes to ``stream``, and the last word also to where the kubelet reads it."""
        self._stream, self._last_word = stream, last_word
        self._files: dict[pathlib.Path, tuple[bytes, int]] = {}

    def follow(self, logs: Mapping[int, pathlib.Path]) -> None:
        """Shows files by rank from now on, also those that are not there yet."""
        self.show_rest()
        several = len(logs) > 1
        self._files = {
            path: (f"[rank {rank}] ".encode() if several else b"", 0)
            for rank, path in sorted(logs.items())
        }

    def tick(self) -> None:
        """Shows whole lines that have come."""
        for path in self._files:
            self._show(path, whole=True)

    def show_rest(self) -> None:
        """Shows all that has come, the last line as far as it goes."""
        for path in self._files:
            while self._show(path, whole=False):
                pass

    def say(self, text: str) -> None:
        """Shows why the pod ends."""
        if not text:
            return
        self._stream.write(f"lockstep: {text}\n".encode())
        self._stream.flush()
        with contextlib.suppress(OSError):  # not a pod, or one that may not
            self._last_word.write_text(text[:_LONGEST_WORD], encoding="utf-8")

    def show_status(self, status: RunStatus) -> None:
        """Shows how the run stands, without its processes, for whoever sees nothing but output."""
        text = dataclasses.replace(status, ranks=()).to_json()
        self._stream.write(f"{_STATUS}{text}\n".encode())
        self._stream.flush()

    def _show(self, path: pathlib.Path, *, whole: bool) -> int:
        """Shows more of a file; returns how many bytes."""
        prefix, shown = self._files[path]
        try:
            with path.open("rb") as file:
                file.seek(shown)
                data = file.read(_LARGEST)
        except FileNotFoundError:
            return 0
        if whole and len(data) < _LARGEST:
            data = data[: data.rfind(b"\n") + 1]
        if data:
            self._stream.write(b"".join(prefix + line for line in data.splitlines(keepends=True)))
            self._stream.flush()
        self._files[path] = prefix, shown + len(data)
        return len(data)


def last_status(text: str) -> RunStatus | None:
    """Returns the newest status among the output of a run's first pod; None where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith(_STATUS):
            with contextlib.suppress(ContractError):  # cut off, or of another version
                return RunStatus.from_json(line.removeprefix(_STATUS), source="output of a pod")
    return None
