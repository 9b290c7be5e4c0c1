"""Why an attempt ended: its first cause, not the cascade that follows. Pure.

When one process of a gang dies, the others fail within seconds, each with an error of its own
(known faults P096, P100). What counts is the earliest thing that nobody else had caused: a lost
host, a failed device, a process without progress, or the first exit that was not a survivor's.
"""

import dataclasses
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from launch import stacks
from launch.exit_codes import ExitCode, ending, of_system
from launch.orders import RankState
from launch.records import RankExit, Reason

_ABORTED = 128 + signal.SIGABRT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that an agent or the supervisor saw, beside exits.

    Attributes:
      code: exit code that it stands for.
      host: where.
      rank: process; None for the whole host.
      cause: name, such as HostLost, AgentLost, Unhealthy or Stuck.
      message: for people.
      time: seconds since 1970 at which it happened, as well as that is known.
    """

    code: ExitCode
    host: str
    cause: str
    message: str
    time: float
    rank: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of an attempt that has ended.

    Attributes:
      attempt: its number.
      ranks: how many processes it had.
      exits: how processes ended, by rank; those that the supervisor killed are not here.
      faults: what else was seen.
      states: last state of each process, by rank.
      stacks: text of stacks, by rank, where a process was stuck.
      pause: seconds within which an exit may be the consequence of a fault seen after it.
    """

    attempt: int
    ranks: int
    exits: Mapping[int, RankExit]
    faults: Sequence[Fault] = ()
    states: Mapping[int, RankState] = dataclasses.field(default_factory=dict)
    stacks: Mapping[int, str] = dataclasses.field(default_factory=dict)
    pause: float = 15.0


def reason(evidence: Evidence) -> Reason:
    """Returns why an attempt ended."""
    exits = sorted(evidence.exits.values(), key=lambda each: (each.time, each.rank))
    failed = [each for each in exits if each.code not in (ExitCode.DONE, ExitCode.PREEMPTED)]
    roots = [each for each in failed if not each.cascade]
    fault = min(evidence.faults, key=lambda each: each.time, default=None)
    if fault is not None and not _earlier(roots, fault, evidence.pause):
        if fault.cause == "Stuck":
            fault = _blame(fault, evidence)
        return _of_fault(fault, evidence)
    if roots:
        return _of_exit(roots[0], evidence)
    if failed:
        return _of_survivors(failed[0], evidence)
    if any(each.code == ExitCode.PREEMPTED for each in exits):
        return _of_exit(next(e for e in exits if e.code == ExitCode.PREEMPTED), evidence)
    if len(exits) == evidence.ranks:
        return _of_exit(exits[-1], evidence)
    return _without_word(evidence)


def not_started(error: OSError, *, attempt: int) -> Reason:
    """Returns why an attempt ended that had no agent: no interpreter, or no room for its log."""
    fault = Fault(
        code=of_system(error),
        host="",
        cause=type(error).__name__,
        message=f"the agents cannot be started: {error}",
        time=time.time(),
    )
    return reason(Evidence(attempt=attempt, ranks=0, exits={}, faults=[fault]))


def culprit(states: Mapping[int, RankState], texts: Mapping[int, str]) -> tuple[int | None, str]:
    """Returns the process that holds up the others, and why it is that one.

    In turn: a process that the kernel has stopped; the only one that does not wait inside a
    collective library; the one whose main thread stands elsewhere than all others'; the one that
    is furthest behind.
    """
    for rank, text in sorted(texts.items()):
        if text.startswith(("State: T", "State: t", "State: D")):
            return rank, f"its process is in state {text.splitlines()[0].removeprefix('State: ')}"
    frames = {rank: stacks.main_thread(text) for rank, text in texts.items()}
    known = {rank: found for rank, found in frames.items() if found}
    busy = [rank for rank, found in known.items() if not stacks.waits_for_others(found)]
    if len(busy) == 1 and len(known) > 1:
        return busy[0], f"it is in {_where(known[busy[0]])} while the others wait for it"
    places = Counter(found[0] for found in known.values())
    odd = [rank for rank, found in known.items() if places[found[0]] == 1]
    if len(odd) == 1 and len(known) > 2:
        return odd[0], f"it is in {_where(known[odd[0]])} while the others are elsewhere"
    steps = {rank: state.step if state.step is not None else -1 for rank, state in states.items()}
    behind = [rank for rank, step in steps.items() if step == min(steps.values(), default=0)]
    if len(behind) == 1 and len(steps) > 1:
        return behind[0], "it is behind all others"
    return None, "all processes look alike"


def progress(evidence: Evidence) -> tuple[int | None, int | None]:
    """Returns the last completed and the newest committed step."""
    known: list[RankExit | RankState] = [*evidence.exits.values(), *evidence.states.values()]
    steps = [each.step for each in known if each.step is not None]
    saved = [each.saved_step for each in known if each.saved_step is not None]
    return max(steps, default=None), max(saved, default=None)


def _earlier(roots: Sequence[RankExit], fault: Fault, pause: float) -> bool:
    """Whether a process failed by itself before a fault, rather than because of it.

    A lost host is noticed seconds after it was lost; survivors may have aborted meanwhile.
    """
    own = [each for each in roots if each.code != _ABORTED or each.time < fault.time - pause]
    return bool(own) and own[0].time <= fault.time and own[0].host != fault.host


def _blame(fault: Fault, evidence: Evidence) -> Fault:
    rank, why = culprit(evidence.states, evidence.stacks)
    if rank is None:
        return dataclasses.replace(fault, rank=None, host="", message=f"{fault.message}; {why}")
    state = evidence.states.get(rank)
    host = state.host if state else fault.host
    message = f"rank {rank} is stuck: {why} ({fault.message})"
    return dataclasses.replace(fault, rank=rank, host=host, message=message)


def _of_fault(fault: Fault, evidence: Evidence) -> Reason:
    return _reason(
        evidence,
        code=fault.code,
        rank=fault.rank,
        host=fault.host,
        cause=fault.cause,
        message=fault.message,
        time=fault.time,
    )


def _of_exit(first: RankExit, evidence: Evidence) -> Reason:
    return _reason(
        evidence,
        code=first.code,
        rank=first.rank,
        host=first.host,
        cause=first.cause,
        message=first.message,
        time=first.time,
    )


def _of_survivors(first: RankExit, evidence: Evidence) -> Reason:
    """Only survivors have left word: whoever failed did not, or still lives and answers nobody."""
    silent = sorted(set(range(evidence.ranks)) - set(evidence.exits))
    texts = {rank: evidence.stacks[rank] for rank in silent if evidence.stacks.get(rank)}
    rank, why = culprit({}, texts)
    if rank is None and len(silent) == 1:
        rank, why = silent[0], "it is the only one that left no word"
    state = evidence.states.get(rank) if rank is not None else None
    return _reason(
        evidence,
        code=ExitCode.HANG if rank in texts else ExitCode.INFRASTRUCTURE,
        rank=rank,
        host=state.host if state else "",
        cause="Stuck" if rank in texts else first.cause,
        message=first.message if rank is None else f"rank {rank}: {why}; {first.message}",
        time=first.time,
    )


def _without_word(evidence: Evidence) -> Reason:
    return _reason(
        evidence,
        code=ExitCode.INFRASTRUCTURE,
        rank=None,
        host="",
        cause="NoWord",
        message="the attempt ended and no process said why",
        time=time.time(),
    )


def _reason(
    evidence: Evidence,
    *,
    code: int,
    rank: int | None,
    host: str,
    cause: str,
    message: str,
    time: float,
) -> Reason:
    step, saved = progress(evidence)
    what = ending(code)
    return Reason(
        attempt=evidence.attempt,
        code=int(code),
        retry=what.retry,
        rank=rank,
        host=host,
        cause=cause,
        message=message,
        action=what.action,
        time=time,
        step=step,
        saved_step=saved,
    )


def _where(frames: Sequence[str]) -> str:
    path, _, function = frames[0].rpartition(":")
    return f"{function} ({path.rpartition('/')[2]})"
