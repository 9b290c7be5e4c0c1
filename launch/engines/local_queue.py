"""Who may use this machine's accelerators: one SQLite file, shared by all jobs of a user.

A job gets all the devices it asks for or none, in order of priority, then of how little its team
has used lately, then of arrival. The first in line is never overtaken, so what becomes free stays
for it. A holder that died gives its devices back at the next look, as soon as nobody whom it had
started uses them. Standard library only.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator

from launch.process_identity import kernel, started
from launch.ranks import living
from launch.spec import Priority

_BUSY_S = 60.0
_HALF_LIFE_S = 3600.0
_MIN_RUN_S = 60.0
_ORDER = list(Priority)
_TABLES = """
CREATE TABLE IF NOT EXISTS claims (
  run TEXT PRIMARY KEY, team TEXT NOT NULL, priority INTEGER NOT NULL, devices INTEGER NOT NULL,
  pid INTEGER NOT NULL, started INTEGER NOT NULL, kernel TEXT NOT NULL, since REAL NOT NULL,
  granted REAL, held TEXT NOT NULL DEFAULT '', wanted_by TEXT NOT NULL DEFAULT '',
  agents TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS usage (team TEXT PRIMARY KEY, used REAL NOT NULL, at REAL NOT NULL);
"""


@dataclasses.dataclass(frozen=True)
class Ask:
    """What a job asks for.

    Attributes:
      run: its name.
      team: whose share it uses.
      priority: who goes first.
      devices: how many, all or none.
      agents: file of those who use the devices and may outlive the holder (ranks.write_pids).
    """

    run: str
    team: str
    priority: Priority
    devices: int
    agents: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Turn:
    """How a claim stands.

    Attributes:
      held: numbers of its devices; empty while it waits.
      why: what it waits for, for people.
    """

    held: tuple[int, ...]
    why: str = ""


class LocalQueue:
    """The queue of one file."""

    def __init__(self, path: pathlib.Path, *, capacity: int) -> None:
        """Opens or makes the file.

        Args:
          path: of the file; must be on a disk of this machine.
          capacity: devices that there are.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._capacity = path, capacity
        with self._transaction() as base:
            for statement in _TABLES.split(";"):
                base.execute(statement)
            columns = [row["name"] for row in base.execute("PRAGMA table_info(claims)")]
            if "agents" not in columns:  # a file of before
                base.execute("ALTER TABLE claims ADD COLUMN agents TEXT NOT NULL DEFAULT ''")

    def ask(self, ask: Ask, *, pid: int | None = None) -> Turn:
        """Stands in line, or looks again; returns devices as soon as it is this job's turn.

        Args:
          ask: what is asked for; the place in line is kept between calls.
          pid: process that holds the devices while it lives; default: this one.

        Raises:
          ValueError: more than there are.
        """
        if not 0 < ask.devices <= self._capacity:
            raise ValueError(
                f"{ask.run} asks for {ask.devices} devices; this machine has {self._capacity}."
            )
        pid = pid or os.getpid()
        with self._transaction() as base:
            self._reclaim(base)
            row = base.execute("SELECT held FROM claims WHERE run = ?", (ask.run,)).fetchone()
            self._stand(base, ask, pid)
            if row is not None and row["held"]:
                return Turn(_numbers(row["held"]))
            return self._grant(base, ask)

    def wanted_by(self, run: str) -> str | None:
        """Returns the run that wants this one's devices; None while nobody does.

        Never waits for a writer that is stuck: whoever asks with every beat must not be, too.
        """
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=0.0)) as base:
                query = "SELECT wanted_by FROM claims WHERE run = ?"
                row = base.execute(query, (run,)).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return None
        return (row[0] or None) if row else None

    def leave(self, run: str) -> None:
        """Gives devices, or the place in line, up."""
        with self._transaction() as base:
            self._remove(base, run)

    def line(self) -> list[dict[str, object]]:
        """Returns all claims, holders first, then those who wait, in their order."""
        with self._transaction() as base:
            self._reclaim(base)
            holders = base.execute("SELECT * FROM claims WHERE held != '' ORDER BY granted")
            return [dict(row) for row in (*holders.fetchall(), *self._waiting(base))]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One writer at a time, from the first read on: nobody decides on stale numbers."""
        base = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        base.row_factory = sqlite3.Row
        try:
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
            except BaseException:
                if base.in_transaction:  # a full disk has ended it already
                    base.execute("ROLLBACK")
                raise
            base.execute("COMMIT")
        finally:
            base.close()

    def _reclaim(self, base: sqlite3.Connection) -> None:
        here = kernel()
        for row in base.execute("SELECT run, pid, started, kernel, agents FROM claims").fetchall():
            dead = row["kernel"] != here or started(row["pid"]) != row["started"]
            if dead and not (row["agents"] and living(pathlib.Path(row["agents"]))):
                self._remove(base, row["run"])

    def _remove(self, base: sqlite3.Connection, run: str) -> None:
        row = base.execute("SELECT * FROM claims WHERE run = ?", (run,)).fetchone()
        if row is None:
            return
        if row["granted"] is not None:
            self._charge(base, row["team"], row["devices"] * (time.time() - row["granted"]))
        base.execute("DELETE FROM claims WHERE run = ?", (run,))

    def _charge(self, base: sqlite3.Connection, team: str, device_seconds: float) -> None:
        used = self._used(base, team) + device_seconds
        base.execute("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", (team, used, time.time()))

    def _used(self, base: sqlite3.Connection, team: str) -> float:
        """Device-seconds of a team; what was used an hour ago counts half."""
        row = base.execute("SELECT used, at FROM usage WHERE team = ?", (team,)).fetchone()
        if row is None:
            return 0.0
        age = max(0.0, time.time() - row["at"])
        return float(row["used"]) * math.pow(0.5, age / _HALF_LIFE_S)

    def _stand(self, base: sqlite3.Connection, ask: Ask, pid: int) -> None:
        base.execute(
            "INSERT INTO claims (run, team, priority, devices, pid, started, kernel, since, agents)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE SET"
            " pid = excluded.pid, started = excluded.started, kernel = excluded.kernel",
            (
                ask.run,
                ask.team,
                _ORDER.index(ask.priority),
                ask.devices,
                pid,
                started(pid) or 0,
                kernel(),
                time.time(),
                str(ask.agents or ""),
            ),
        )

    def _waiting(self, base: sqlite3.Connection) -> list[sqlite3.Row]:
        rows = base.execute("SELECT * FROM claims WHERE held = ''").fetchall()
        running = base.execute("SELECT * FROM claims WHERE held != ''").fetchall()
        now = time.time()
        used = {row["team"]: self._used(base, row["team"]) for row in (*rows, *running)}
        for row in running:
            used[row["team"]] += row["devices"] * (now - row["granted"])
        return sorted(rows, key=lambda row: (row["priority"], used[row["team"]], row["since"]))

    def _grant(self, base: sqlite3.Connection, ask: Ask) -> Turn:
        line = [row["run"] for row in self._waiting(base)]
        taken = base.execute("SELECT run, held FROM claims WHERE held != ''").fetchall()
        busy = {number for row in taken for number in _numbers(row["held"])}
        free = [number for number in range(self._capacity) if number not in busy]
        if line[0] != ask.run:
            return Turn((), f"{line.index(ask.run)} before it in line, first {line[0]}")
        if len(free) < ask.devices:
            self._call_back(base, ask, missing=ask.devices - len(free))
            holders = ", ".join(row["run"] for row in taken)
            why = f"needs {ask.devices} devices, {len(free)} are free; held by {holders}"
            return Turn((), why)
        held = free[: ask.devices]
        base.execute(
            "UPDATE claims SET held = ?, granted = ?, wanted_by = '' WHERE run = ?",
            (",".join(map(str, held)), time.time(), ask.run),
        )
        return Turn(tuple(held))

    def _call_back(self, base: sqlite3.Connection, ask: Ask, *, missing: int) -> None:
        """Asks preemptible holders, newest first, for just enough devices; none for nothing."""
        if ask.priority is Priority.PREEMPTIBLE:
            return
        rows = base.execute(
            "SELECT run, devices, wanted_by FROM claims WHERE held != '' AND priority = ?"
            " AND granted < ? ORDER BY wanted_by = '', granted DESC",
            (_ORDER.index(Priority.PREEMPTIBLE), time.time() - _min_run_s()),
        ).fetchall()
        if sum(row["devices"] for row in rows) < missing:
            return
        for row in rows:
            if missing <= 0:
                break
            missing -= row["devices"]
            base.execute("UPDATE claims SET wanted_by = ? WHERE run = ?", (ask.run, row["run"]))


def _min_run_s() -> float:
    """Seconds that a preemptible job may keep its devices at least, so that it gets somewhere."""
    return float(os.environ.get("LOCKSTEP_MIN_RUN_S", _MIN_RUN_S))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
