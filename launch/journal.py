"""The journal of a run: one JSON object per line, append only, whole or not there.

The supervisor's memory: it writes what it is about to do before it does it, so that a successor
knows where it stood. The trainer's process 0 appends to the same file. Standard library only.
"""

import errno
import json
import os
import pathlib
import time
from typing import Any

from launch.records import JournalEntry

FILE = "journal.jsonl"


class Journal:
    """The journal of one run directory."""

    def __init__(self, job_dir: str | pathlib.Path) -> None:
        self.path = pathlib.Path(job_dir) / FILE

    def append(self, event: str, *, attempt: int, **details: Any) -> JournalEntry:
        """Writes one line, and returns it as a reader will find it, when it is on the disk.

        A torn line, which a writer that was killed has left, gets an end of its own first.

        Raises:
          OSError: there was no room for all of it; a torn line counts for nothing.
        """
        entry = JournalEntry(time=time.time(), event=event, attempt=attempt, details=details)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = entry.to_json()
            data = b"\n" * torn + line.encode() + b"\n"
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return JournalEntry.from_json(line, source=str(self.path))

    def entries(self) -> list[JournalEntry]:
        """Returns what was written, without torn lines.

        Raises:
          ContractError: a whole line is not an entry of this version.
        """
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn by a kill; whoever wrote it has not acted on it
            found.append(JournalEntry.from_json(line, source=f"{self.path}:{number}"))
        return found
