"""The story of a run in plain words, from its journal: ``explain``.

Every line of the journal is told; what this version does not know is shown as it stands. Pure:
entries in, text out.
"""

import collections
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launch.console import ago, clock
from launch.exit_codes import ending
from launch.records import JournalEntry

Details = Mapping[str, Any]
_MARGIN = " " * 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in numbers.

    Attributes:
      attempts: how many were planned.
      failures: retry class -> attempts that ended so, without those that were complete.
      lost_steps: steps that were computed and had to be computed again.
      recoveries_s: seconds from each first cause until the run trained again.
    """

    attempts: int
    failures: Mapping[str, int]
    lost_steps: int
    recoveries_s: tuple[float, ...]

    @classmethod
    def of(cls, entries: Sequence[JournalEntry]) -> "Summary":
        """Counts."""
        reasons = [_reason(e.details) for e in entries if e.event == "attempt_ended"]
        failed = [str(r.get("retry")) for r in reasons if r.get("retry") not in (None, "done")]
        timelines = [e.details.get("timeline") for e in entries if e.event == "recovered"]
        totals = [_number(t.get("total_s")) for t in timelines if isinstance(t, dict)]
        return cls(
            attempts=len({e.attempt for e in entries if e.event == "attempt_planned"}),
            failures=collections.Counter(failed),
            lost_steps=sum(_lost(reason) or 0 for reason in reasons if reason.get("code")),
            recoveries_s=tuple(total for total in totals if total is not None),
        )

    def __str__(self) -> str:
        what = ", ".join(f"{count} x {name}" for name, count in sorted(self.failures.items()))
        parts = [_count(self.attempts, "attempt")]
        parts += [f"interrupted by {what}"] if what else []
        parts += [f"{_count(self.lost_steps, 'step')} computed again"] if self.lost_steps else []
        if self.recoveries_s:
            parts.append(f"back in {statistics.median(self.recoveries_s):.1f} s (median)")
        return "; ".join(parts) + "."


def tell(entries: Sequence[JournalEntry]) -> list[str]:
    """Returns the story, line by line."""
    if not entries:
        return ["Nothing has happened yet: the journal is empty."]
    lines = [str(Summary.of(entries)), "", f"It began {clock(entries[0].time)}."]
    attempt, day = 0, clock(entries[0].time)[:10]
    for entry in entries:
        if entry.event == "attempt_planned" and entry.attempt != attempt:
            attempt = entry.attempt
            lines += ["", f"Attempt {attempt}"]
        if clock(entry.time)[:10] != day:
            day = clock(entry.time)[:10]
            lines.append(f"{_MARGIN}{day}")
        first, *more = told(entry)
        lines += [f"{clock(entry.time)[11:]}  {first}", *(f"{_MARGIN}{line}" for line in more)]
    return lines


def told(entry: JournalEntry) -> list[str]:
    """Returns what one line of the journal says, in words; never empty."""
    teller = _TELLERS.get(entry.event)
    lines = [] if teller is None else list(teller(entry.details))
    return lines or [_as_it_stands(entry)]


def _submitted(details: Details) -> Iterator[str]:
    engine_id = details.get("engine_id")
    yield f"submitted to {details.get('engine')}{f' as {engine_id}' if engine_id else ''}"


def _supervisor_started(details: Details) -> Iterator[str]:
    yield f"its supervisor starts (process {details.get('pid')} on {details.get('host')})"


def _allocated(details: Details) -> Iterator[str]:
    hosts = _names(details.get("hosts"))
    yield f"has {_count(len(hosts), 'host')}: {', '.join(hosts)}"


def _planned(details: Details) -> Iterator[str]:
    spares = _names(details.get("spares"))
    also = f"; spare: {', '.join(spares)}" if spares else ""
    yield f"starts on {', '.join(_names(details.get('hosts')))}{also}"


def _started(details: Details) -> Iterator[str]:
    yield f"the trainer has it: {details.get('owner')}"
    yield from (f"changed: {change}" for change in _names(details.get("changes")))


def _running(details: Details) -> Iterator[str]:
    yield f"trains, from step {details.get('step')}"


def _incident(details: Details) -> Iterator[str]:
    rank = details.get("rank")
    who = f"rank {rank} on {details.get('host')}" if rank is not None else str(details.get("host"))
    after = _number(details.get("detected_s"))
    seen = "" if after is None else f" (seen after {after:.1f} s)"
    yield f"{who}: {details.get('cause')}: {details.get('message')}{seen}"


def _unhealthy(details: Details) -> Iterator[str]:
    yield f"{details.get('host')} is not healthy: {details.get('message')}"


def _stacks(details: Details) -> Iterator[str]:
    where = details.get("folder") or details.get("file")
    ranks = details.get("ranks")
    of = f" of {', '.join(map(str, ranks))}" if isinstance(ranks, list) else ""
    yield f"stacks{of} are in {where}"


def _ended(details: Details) -> Iterator[str]:
    reason = _reason(details)
    code = reason.get("code")
    meaning = f" ({ending(code).meaning})" if isinstance(code, int) else ""
    yield f"ends with {code}{meaning}"
    if code == 0:
        return
    rank, host = reason.get("rank"), reason.get("host")
    who = f"rank {rank} on {host}: " if rank is not None else f"{host}: " if host else ""
    if reason.get("message"):
        cause = f"{reason['cause']}: " if reason.get("cause") else ""
        yield f"first cause: {who}{cause}{reason['message']}"
    if lost := _lost(reason):
        steps = _count(lost, "step")
        saved = reason.get("saved_step")
        kept = "nothing" if saved is None else f"step {saved}"
        yield f"reached step {reason.get('step')}, had saved {kept}: {steps} again"
    elif reason.get("saved_step") is not None:
        yield f"saved step {reason['saved_step']}: nothing is lost"
    if details.get("excused") or details.get("displaced"):
        yield "counts against no budget"


def _decided(details: Details) -> Iterator[str]:
    delay = _number(details.get("delay_s"))
    later = f", in {ago(delay)}" if delay else ""
    if details.get("action") == "done":
        yield "decides that the run is complete"
        return
    yield f"decides: {details.get('action')}{later}. {details.get('why')}"
    if excluded := _names(details.get("exclude")):
        yield f"avoids from now on: {', '.join(excluded)}"


def _recovered(details: Details) -> Iterator[str]:
    timeline = details.get("timeline")
    if not isinstance(timeline, dict):
        return
    parts = {name.removesuffix("_s"): seconds for name, seconds in timeline.items()}
    total = parts.pop("total", None)
    shown = ", ".join(f"{name.replace('_', ' ')} {seconds}" for name, seconds in parts.items())
    yield f"is back at step {details.get('step')} after {total} s: {shown}"


def _final(what: str) -> Callable[[Details], Iterator[str]]:
    def teller(details: Details) -> Iterator[str]:
        why = f": {details['why']}" if details.get("why") else ""
        code = details.get("code")
        yield f"{what}{why}{f' (exit code {code})' if code else ''}"

    return teller


def _readmitted(details: Details) -> Iterator[str]:
    yield f"trusts again: {', '.join(_names(details.get('hosts')))}"


def _resumed(details: Details) -> Iterator[str]:
    yield f"resumed by {details.get('by', 'a person')}; budgets start afresh"


_TELLERS: Mapping[str, Callable[[Details], Iterator[str]]] = {
    "submitted": _submitted,
    "supervisor_started": _supervisor_started,
    "allocated": _allocated,
    "attempt_planned": _planned,
    "attempt_started": _started,
    "attempt_running": _running,
    "incident": _incident,
    "unhealthy": _unhealthy,
    "stacks": _stacks,
    "attempt_ended": _ended,
    "decided": _decided,
    "recovered": _recovered,
    "held": _final("is held for a person"),
    "stopped": _final("is stopped"),
    "failed": _final("has failed"),
    "done": lambda _: iter(["is complete"]),
    "readmitted": _readmitted,
    "pods": lambda _: iter(["goes on in new pods"]),
    "resumed": _resumed,
}
"""Event -> how it is told."""


def _as_it_stands(entry: JournalEntry) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in entry.details.items())
    return f"{entry.event.replace('_', ' ')}{f': {shown}' if shown else ''}"


def _reason(details: Details) -> Details:
    reason = details.get("reason")
    return reason if isinstance(reason, dict) else {}


def _lost(reason: Details) -> int | None:
    """Steps that were computed and not saved; None where that is not known."""
    step, saved = reason.get("step"), reason.get("saved_step")
    if not isinstance(step, int):
        return None
    return max(step - (saved if isinstance(saved, int) else 0), 0)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _names(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, (list, tuple)) else []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
