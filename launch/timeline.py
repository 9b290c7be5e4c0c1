"""Where the time of a recovery went. Pure, standard library only."""

from collections.abc import Mapping

from launch.records import JournalEntry, Phase

Stamps = Mapping[str, float]
"""Name of a moment -> seconds since 1970."""


def stamped(stamps: Stamps, entry: JournalEntry) -> Stamps:
    """Returns the moments of the recovery that is under way, after one more line of the journal."""
    match entry.event:
        case "incident" if "cause" not in stamps:
            return {"detected": entry.time}
        case "attempt_ended":
            cause = min(float(entry.details["reason"]["time"]), entry.time)
            return {"cause": cause, "detected": entry.time, **stamps, "ended": entry.time}
        case "decided" | "attempt_planned" if "cause" in stamps:
            return {**stamps, entry.event: entry.time}
        case "attempt_running":
            return {}
    return stamps


def recovery_timeline(
    stamps: Stamps, *, ready: float | None, entered: Mapping[Phase, float], first: float
) -> dict[str, float]:
    """Seconds of each part of a recovery, in order; they add up to ``total_s``.

    Args:
      stamps: as `stamped` leaves them.
      ready: when all processes had been started; None where that was not heard.
      entered: when the last process entered each phase.
      first: when the first step was done.
    """
    marks = {
        "detect_s": stamps["detected"],
        "stop_s": stamps["ended"],
        "decide_s": stamps.get("decided", 0.0),
        "wait_s": stamps.get("attempt_planned", 0.0),
        "restart_s": ready or 0.0,
        "start_s": entered.get(Phase.RESTORE, 0.0),
        "restore_s": entered.get(Phase.COMPILE, 0.0),
        "first_step_s": first,
    }
    parts, before = {}, stamps["cause"]
    for name, at in marks.items():
        at = min(max(at, before), max(first, before))
        parts[name] = round(at - before, 3)
        before = at
    return {**parts, "total_s": round(before - stamps["cause"], 3)}
