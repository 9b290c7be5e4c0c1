"""How a run stands, for people and for machines: ``status``."""

import dataclasses
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from launch import run_status, story
from launch.console import ago, clock, table
from launch.engines.engine import Engine, EngineError, EngineState, Standing, engine_named
from launch.journal import Journal
from launch.orders import RankState
from launch.records import ContractError, JournalEntry, Phase
from launch.run_index import RunEntry, RunIndex, UnknownRunError
from launch.run_status import RunStatus
from launch.spec import Job
from launch.submission import STALE_S

_RANKS = 8
_REASONS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as supervisor and engine see it.

    Attributes:
      job: the run.
      status: what its supervisor wrote last; None before it did, or where there is none.
      standing: what its engine says.
      now: seconds since 1970 of looking.
      recovered: the journal's line on the last recovery; None where there was none.
    """

    job: Job
    status: RunStatus | None
    standing: Standing
    now: float
    recovered: JournalEntry | None = None

    @property
    def state(self) -> str:
        """One word: the supervisor's while it lives or has ended, else the engine's."""
        alive = self.standing.state in (EngineState.RUNNING, EngineState.UNKNOWN)
        if self.status is not None and (self.status.state.is_final or alive):
            return str(self.status.state)
        return str(self.standing.state)

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens by itself."""
        ended = self.standing.state in (EngineState.ENDED, EngineState.HELD)
        return ended or (self.status is not None and self.status.state.is_final)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "run_id": self.job.run_id,
            "state": self.state,
            "engine": self.job.engine,
            "job_dir": self.job.job_dir,
            "run_dir": self.job.spec.checkpoint.root,
            "standing": dataclasses.asdict(self.standing),
            "status": None if self.status is None else dataclasses.asdict(self.status),
            "recovered": None if self.recovered is None else dataclasses.asdict(self.recovered),
        }

    def show(self) -> str:
        """Returns the lines that a person sees."""
        rows = [(f"{name}:", text) for name, text in self._rows() if text]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        job, status = self.job, self.status
        yield "run", f"{job.run_id}, {self.state}{self._code()}"
        yield "job", _what(job)
        engine_id = f" {self.standing.engine_id}" if self.standing.engine_id else ""
        detail = f": {self.standing.detail}" if self.standing.detail else ""
        yield "engine", f"{job.engine}{engine_id}, {self.standing.state}{detail}"
        if status is not None:
            yield "progress", _progress(status)
            yield "hosts", _hosts(status)
            yield from (("rank", line) for line in rank_lines(status.ranks))
            for reason in status.reasons[-_REASONS:]:
                where = f"rank {reason.rank} on {reason.host}: " if reason.rank is not None else ""
                text = f"{reason.cause}, {reason.message}"
                yield f"attempt {reason.attempt}", f"ended with {reason.code}, {where}{text}"
            if self.recovered is not None:
                yield "recovery", "; ".join(story.told(self.recovered))
            yield "next", status.next_action
            yield "written", self._age(status)
        yield "folder", job.job_dir

    def _code(self) -> str:
        code = self.status.exit_code if self.status else self.standing.exit_code
        return "" if code is None else f" with {code}"

    def _age(self, status: RunStatus) -> str:
        age = self.now - status.time
        if status.state.is_final:
            return clock(status.time)
        late = " (its supervisor may be gone)" if abs(age) > STALE_S else ""
        return f"{ago(age)} ago by process {status.pid} on {status.supervisor_host}{late}"


def look(job: Job, *, standing: Standing) -> RunView:
    """Returns how a run stands.

    Args:
      job: the run.
      standing: what its engine says.

    Raises:
      ContractError: its status or its journal cannot be read.
    """
    entries = Journal(job.job_dir).entries()
    recovered = next((e for e in reversed(entries) if e.event == "recovered"), None)
    return RunView(
        job=job,
        status=_status(job.job_dir),
        standing=standing,
        now=time.time(),
        recovered=recovered,
    )


def _status(job_dir: str) -> RunStatus | None:
    """People are told of one that cannot be read; all others do without it."""
    return RunStatus.read_file(pathlib.Path(job_dir) / run_status.FILE)


def engine_of(job: Job) -> Engine:
    """Returns the engine of a run.

    Raises:
      UnknownRunError: there is none of that name in this version.
    """
    try:
        return engine_named(job.engine)
    except ValueError as error:
        raise UnknownRunError(f"Run {job.run_id}: {error}") from None


def rank_lines(ranks: Sequence[RankState]) -> list[str]:
    """Returns a line for each process, or for those that lag behind where there are many."""
    shown: Sequence[RankState] = ranks
    note = ""
    if len(ranks) > _RANKS:
        shown = sorted(
            ranks, key=lambda rank: (-1 if rank.step is None else rank.step, -rank.idle_s)
        )
        shown, note = shown[:_RANKS], f"... and {len(ranks) - _RANKS} more, not behind these"
    lines = [
        f"{rank.rank} on {rank.host}: {_doing(rank.phase, rank.step) or 'no word yet'}, "
        f"progress {ago(rank.idle_s)} ago"
        for rank in shown
    ]
    return [*lines, *([note] if note else [])]


def listing(index: RunIndex, *, most: int) -> list[dict[str, Any]]:
    """Returns the newest runs that were submitted from this account.

    The engine is asked only of those whose supervisor is silent.
    """
    return [_entry(entry, index) for entry in index.entries()[:most]]


def show_listing(entries: Sequence[dict[str, Any]]) -> str:
    """Returns the lines that a person sees."""
    if not entries:
        return "No run was submitted from this account. python -m launch.main submit --help"
    now = time.time()
    rows = [("run", "state", "engine", "attempt", "step", "loss", "submitted", "last reason")]
    for entry in entries:
        loss = entry["loss"]
        rows.append(
            (
                entry["run_id"],
                entry["state"],
                entry["engine"],
                _text(entry["attempt"]),
                _text(entry["step"]),
                "" if loss is None else f"{loss:.4g}",
                f"{ago(now - entry['submitted'])} ago",
                entry["reason"],
            )
        )
    return "\n".join(table(rows))


def _entry(entry: RunEntry, index: RunIndex) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run_id": entry.run_id,
        "engine": entry.engine,
        "submitted": entry.submitted,
        "job_dir": entry.job_dir,
    }
    try:
        job, status = index.find(entry.run_id), _status(entry.job_dir)
        state = _quick_state(job, status)
    except (UnknownRunError, ContractError, EngineError) as error:
        status, state = None, "unknown"
        found["problem"] = str(error)
    found |= {"state": state, "attempt": None, "step": None, "loss": None, "reason": ""}
    if status is not None:
        last = status.reasons[-1] if status.reasons else None
        found |= {"attempt": status.attempt, "step": status.step, "loss": status.loss}
        found["reason"] = f"{last.code} {last.cause}" if last else ""
    return found


def _quick_state(job: Job, status: RunStatus | None) -> str:
    if status is not None and (status.state.is_final or abs(time.time() - status.time) < STALE_S):
        return str(status.state)
    return look(job, standing=engine_of(job).standing(job)).state


def _what(job: Job) -> str:
    spec = job.spec
    need = spec.resources
    hosts = f"{need.hosts} x {need.per_host} {need.accelerator}"
    return f"{spec.name} of {spec.owner.user} ({spec.owner.team}), {hosts}, {spec.priority}"


def _progress(status: RunStatus) -> str:
    parts = [f"attempt {status.attempt}"] if status.attempt else []
    doing = _doing(status.phase, status.step)
    parts += [doing] if doing else []
    parts += [f"loss {status.loss:.6g}"] if status.loss is not None else []
    parts += [f"saved step {status.saved_step}"] if status.saved_step is not None else []
    return ", ".join(parts)


def _doing(phase: Phase | None, step: int | None) -> str:
    """``step 7``, ``compile``, or ``save after step 7``."""
    if step is None:
        return str(phase) if phase else ""
    return f"step {step}" if phase in (Phase.STEP, None) else f"{phase} after step {step}"


def _hosts(status: RunStatus) -> str:
    named = [("", status.hosts), ("spare: ", status.spares), ("avoided: ", status.excluded)]
    return "; ".join(f"{what}{_few(names)}" for what, names in named if names)


def _few(names: Sequence[str]) -> str:
    if len(names) <= _RANKS:
        return ", ".join(names)
    return f"{', '.join(names[:_RANKS])} ... ({len(names)})"


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
