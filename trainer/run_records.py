"""What a run directory records about its run: run.json, the attempts' configurations, the journal.

Imports no jax and, but for the journal, writes nothing.
"""

import json
import os
from typing import Any

from launch.contract import ExitCode, JournalEntry, RunRecord
from trainer.checkpoints import fencing, layout
from trainer.checkpoints.root import Root


class RunDirectoryError(ValueError):
    """A run directory cannot be used as asked."""

    exit_code = ExitCode.CONFIGURATION


def read_run(root: Root) -> RunRecord | None:
    """Returns the run that a directory holds, or None where it holds nothing yet.

    Raises:
      RunDirectoryError: it holds results, but no record of a run.
    """
    data = root.read("run.json")
    if data is not None:
        return RunRecord.from_json(data.decode(), source=f"{root.url}/run.json")
    if strangers := [n for n in root.children() if n in ("checkpoints", "metrics.jsonl")]:
        raise RunDirectoryError(
            f"{root.url} holds {' and '.join(strangers)} but no run.json: it is not a "
            "run of Lockstep, or run.json was removed. Take another --run_dir."
        )
    return None


def has_steps(root: Root) -> bool:
    """Returns whether any step was ever saved; until then nothing binds a run to its past."""
    return bool(fencing.written(root.child(layout.CHECKPOINTS)))


def attempts(root: Root) -> list[int]:
    """Returns the numbers of the attempts that have a folder, in order."""
    return sorted(int(name) for name in root.children("attempts/") if name.isdigit())


def last_resolved(root: Root) -> dict[str, Any] | None:
    """Returns the configuration of the newest attempt that got as far as writing one.

    Raises:
      RunDirectoryError: it is damaged.
    """
    for attempt in reversed(attempts(root)):
        key = f"attempts/{attempt}/config/resolved.json"
        data = root.read(key)
        if data is not None:
            try:
                found: dict[str, Any] = json.loads(data)
            except json.JSONDecodeError as error:
                raise RunDirectoryError(f"{root.url}/{key} is damaged: {error}") from None
            return found
    return None


def last_operative(root: Root) -> str | None:
    """Returns the newest attempt's configuration as gin text, or None before the first."""
    for attempt in reversed(attempts(root)):
        text = root.read(f"attempts/{attempt}/config/operative.gin")
        if text is not None:
            return text.decode()
    return None


def read_journal(root: Root) -> tuple[list[JournalEntry], int]:
    """Returns the journal's entries, and how many lines a dying writer left torn."""
    text = (root.read("journal.jsonl") or b"").decode(errors="replace")
    entries, torn = [], 0
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            json.loads(line)
        except json.JSONDecodeError:
            torn += 1
            continue
        entries.append(JournalEntry.from_json(line, source=f"journal.jsonl:{number}"))
    return entries, torn


def append_line(root: Root, key: str, line: str) -> None:
    """Appends one line; a torn line that a dead writer left gets an end of its own first."""
    path = root.local_path(key)
    if path is None:
        before = root.read(key) or b""
        root.write(key, before + _separator(before) + line.encode() + b"\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        file.write(_separator(file.read(1)) + line.encode() + b"\n")


def _separator(before: bytes) -> bytes:
    return b"\n" if before and not before.endswith(b"\n") else b""
