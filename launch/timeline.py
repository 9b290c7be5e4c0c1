"""Where the time of a recovery went. Pure, standard library only."""

from launch.attempt import Snapshot
from launch.records import Phase


def recovery_timeline(
    stamps: dict[str, float], snapshot: Snapshot, *, first: float
) -> dict[str, float]:
    """Seconds of each part of a recovery, in order; they add up to ``total_s``."""
    entered = snapshot.entered
    marks = {
        "detect_s": stamps["detected"],
        "stop_s": stamps["ended"],
        "decide_s": stamps["decided"],
        "restart_s": stamps["ready"],
        "start_s": entered.get(Phase.RESTORE, stamps["ready"]),
        "restore_s": entered.get(Phase.COMPILE, entered.get(Phase.RESTORE, stamps["ready"])),
        "first_step_s": first,
    }
    parts, before = {}, stamps["cause"]
    for name, at in marks.items():
        at = max(at, before)
        parts[name] = round(at - before, 3)
        before = at
    return {**parts, "total_s": round(before - stamps["cause"], 3)}
