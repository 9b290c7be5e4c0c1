"""What happens after an attempt has ended: a pure function of the journal and the last reason.

The journal is folded into a `History`; `decide` looks at nothing else, so a supervisor that died
between two lines of the journal decides again what it had decided (docs/failures.md draws it).
"""

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any

from launch.exit_codes import ExitCode, RetryClass
from launch.records import JournalEntry, Reason
from launch.spec import Budgets, JobSpec, OnLoss

BACKOFF_MAX_S = 600.0


class Action(enum.StrEnum):
    """What to do next.

    RESTART: the next attempt on the same hosts. REPLACE: on a spare instead of a bad host.
    SHRINK: on fewer hosts. REQUEUE: in a new allocation. HOLD: wait for a person. FAIL and DONE:
    the run has ended.
    """

    RESTART = "restart"
    REPLACE = "replace"
    SHRINK = "shrink"
    REQUEUE = "requeue"
    HOLD = "hold"
    FAIL = "fail"
    DONE = "done"


_FINAL = (Action.HOLD, Action.FAIL, Action.DONE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and why.

    Attributes:
      action: what.
      exclude: hosts that are avoided from now on.
      why: one sentence for people.
      delay_s: pause before.
      code: exit code of a run that ends here.
    """

    action: Action
    why: str
    exclude: tuple[str, ...] = ()
    delay_s: float = 0.0
    code: int = 0

    @property
    def is_final(self) -> bool:
        """Whether the run ends here."""
        return self.action in _FINAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Incident:
    """An attempt that ended, as `decide` sees it.

    Attributes:
      reason: why.
      banned: hosts that must not be used again (lost, or with a broken device).
      excused: it counts against nothing: the engine stopped it, or the supervisor died.
      displaced: the engine wants the allocation back.
      expired: it does because the allocation's time is up.
    """

    reason: Reason
    banned: tuple[str, ...] = ()
    excused: bool = False
    displaced: bool = False
    expired: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """What the journal says of a run so far.

    Attributes:
      attempt: number of the newest planned attempt; 0 before the first.
      incidents: attempts that ended, in order, since a person last said `resume`.
      excluded: host -> time at which it was excluded.
      saved_step: newest committed step.
      stalled: attempts in a row without a new committed step.
      open: the newest attempt has no recorded end.
      undecided: the newest end has no recorded decision, or one that ends the run and was not
        carried out; it is decided again, and alike.
      final: exit code of a run that has ended; None while it goes on.
    """

    attempt: int = 0
    incidents: tuple[Incident, ...] = ()
    excluded: dict[str, float] = dataclasses.field(default_factory=dict)
    saved_step: int | None = None
    stalled: int = 0
    open: bool = False
    undecided: bool = False
    final: int | None = None

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> "History":
        """Folds a journal."""
        history = cls()
        for entry in entries:
            history = history.then(entry)
        return history

    def then(self, entry: JournalEntry) -> "History":
        """Returns the history after one more line; lines of others change nothing."""
        details = entry.details
        if entry.event == "attempt_planned":
            return dataclasses.replace(
                self, attempt=max(self.attempt, entry.attempt), open=True, final=None
            )
        if entry.event == "attempt_ended":
            return self._ended(_incident(details))
        if entry.event == "decided":
            excluded = {**self.excluded, **dict.fromkeys(details["exclude"], entry.time)}
            stalled = 0 if details["exclude"] else self.stalled  # something has changed
            ends = details["action"] in _FINAL
            return dataclasses.replace(self, undecided=ends, excluded=excluded, stalled=stalled)
        if entry.event == "readmitted":
            gone = set(details["hosts"])
            left = {host: at for host, at in self.excluded.items() if host not in gone}
            return dataclasses.replace(self, excluded=left)
        if entry.event in ("done", "failed", "held", "stopped"):
            return dataclasses.replace(self, final=details["code"], undecided=False)
        if entry.event == "resumed":
            return dataclasses.replace(self, final=None, incidents=(), stalled=0, undecided=False)
        return self

    def avoided(self, *, now: float, for_s: float) -> tuple[str, ...]:
        """Returns hosts whose exclusion has not yet run out."""
        return tuple(sorted(host for host, at in self.excluded.items() if now - at < for_s))

    def _ended(self, incident: Incident) -> "History":
        saved = incident.reason.saved_step
        newer = saved is not None and (self.saved_step is None or saved > self.saved_step)
        counts = not incident.excused and (incident.expired or not incident.displaced)
        stalled = 0 if newer else self.stalled + counts
        return dataclasses.replace(
            self,
            incidents=(*self.incidents, incident),
            saved_step=saved if newer else self.saved_step,
            stalled=stalled,
            open=False,
            undecided=True,
        )


def decide(
    history: History, *, spec: JobSpec, spares: int, hosts: int, elsewhere: bool = True
) -> Decision:
    """Returns what to do after the newest incident of a history.

    Args:
      history: of the run, that incident included.
      spec: the job.
      spares: usable idle hosts of the allocation.
      hosts: hosts of the attempt that ended.
      elsewhere: whether the engine has hosts beside those of the allocation.
    """
    incident = history.incidents[-1]
    reason = incident.reason
    ended = _ends(reason)
    if ended is not None:
        return ended
    if incident.displaced:
        why = f"the engine took the hosts back; queues again and goes on from {_step(reason)}"
        again = Decision(action=Action.REQUEUE, why=why)
        # An allocation that is too short for a step to be saved stays so.
        return (_exhausted(history, spec=spec) if incident.expired else None) or again
    if incident.excused:
        return Decision(
            action=Action.RESTART, why=f"{reason.message}; goes on from {_step(reason)}"
        )
    spent = _exhausted(history, spec=spec)
    if spent is not None:
        return spent
    decision = _again(history, spec=spec, spares=spares, hosts=hosts)
    if elsewhere or decision.action is not Action.REQUEUE:
        return decision
    if incident.banned:
        names = ", ".join(incident.banned)
        why = f"{names} cannot be used ({reason.message}), and there is no other host"
        return Decision(action=Action.HOLD, why=why, code=ExitCode.HOLD)
    why = f"{reason.retry}; there is no other host; goes on from {_step(reason)}"
    return dataclasses.replace(decision, action=Action.RESTART, why=why, exclude=())


def _ends(reason: Reason) -> Decision | None:
    """The decision where another attempt could not end differently."""
    match reason.retry:
        case RetryClass.DONE:
            return Decision(action=Action.DONE, why="the run is complete")
        case RetryClass.USER:
            told = reason.message.rstrip(".")
            why = f"{told}. Trying again cannot help; correct it"
            return Decision(action=Action.FAIL, why=why, code=reason.code)
        case RetryClass.MEMORY:
            why = "out of device memory: the same step would fail again; make it smaller and resume"
            return Decision(action=Action.FAIL, why=why, code=reason.code)
        case RetryClass.HOLD | RetryClass.NO_PROGRESS:
            return Decision(action=Action.HOLD, why=reason.message, code=reason.code)
    return None


def _exhausted(history: History, *, spec: JobSpec) -> Decision | None:
    """The decision where the budget of this kind of failure is spent."""
    budgets, reason = spec.recovery.budgets, history.incidents[-1].reason
    count = _count(history, retry=reason.retry, window_s=budgets.window_s)
    allowed = _budget(budgets, reason.retry)
    if allowed is not None and count > allowed:
        why = f"{count} failures of class {reason.retry} within the window; {allowed} are allowed"
        return Decision(action=Action.HOLD, why=why, code=ExitCode.HOLD)
    if reason.retry is RetryClass.EXCEPTION and reason.step is not None:
        alike = _alike(history)
        if alike >= budgets.same_step:
            why = f"{reason.cause} at step {reason.step} for the {alike}th time: not by chance"
            return Decision(action=Action.HOLD, why=why, code=ExitCode.HOLD)
    saves = spec.is_trainer or history.saved_step is not None or allowed is None
    if saves and history.stalled >= budgets.no_progress:
        why = f"{history.stalled} attempts in a row saved no new step"
        return Decision(action=Action.HOLD, why=why, code=ExitCode.NO_PROGRESS)
    return None


def _again(history: History, *, spec: JobSpec, spares: int, hosts: int) -> Decision:
    incident, recovery = history.incidents[-1], spec.recovery
    reason = incident.reason
    delay = 0.0
    if history.stalled > 1:
        delay = min(recovery.backoff_s * 2.0 ** (history.stalled - 2), BACKOFF_MAX_S)
    bad = _bad_hosts(history, spec=spec)
    if not bad:
        why = f"{reason.retry}; goes on from {_step(reason)}"
        return Decision(action=Action.RESTART, why=why, delay_s=delay)
    least = spec.resources.min_hosts or spec.resources.hosts
    names, left = ", ".join(bad), hosts - len(bad)
    if spares >= len(bad):
        what = "a spare takes" if len(bad) == 1 else f"{len(bad)} spares take"
        why, action = f"{what} the place of {names}", Action.REPLACE
    elif recovery.on_loss is OnLoss.SHRINK and left >= least:
        why, action = f"goes on without {names}, on {left} hosts", Action.SHRINK
    else:
        why, action = f"queues again for hosts other than {names}", Action.REQUEUE
    return Decision(action=action, why=why, exclude=bad, delay_s=delay)


def _bad_hosts(history: History, *, spec: JobSpec) -> tuple[str, ...]:
    """Hosts that must be avoided after the newest incident."""
    incident, recovery = history.incidents[-1], spec.recovery
    reason = incident.reason
    if incident.banned or not reason.host:
        return incident.banned
    if reason.retry is RetryClass.CORRUPTION:
        return (reason.host,)
    hardware = (RetryClass.INFRASTRUCTURE, RetryClass.HANG)
    same = [
        each
        for each in _recent(history, window_s=recovery.budgets.window_s)
        if each.reason.host == reason.host and each.reason.retry in hardware
    ]
    again = reason.retry in hardware and len(same) >= recovery.exclude_after
    return (reason.host,) if again else ()


def _count(history: History, *, retry: RetryClass, window_s: float) -> int:
    recent = _recent(history, window_s=window_s)
    return sum(
        each.reason.retry is retry and not each.excused and not each.displaced for each in recent
    )


def _recent(history: History, *, window_s: float) -> Sequence[Incident]:
    newest = history.incidents[-1].reason.time
    return [each for each in history.incidents if newest - each.reason.time <= window_s]


def _alike(history: History) -> int:
    newest = history.incidents[-1].reason
    return sum(
        (each.reason.cause, each.reason.step) == (newest.cause, newest.step)
        for each in history.incidents
    )


def _budget(budgets: Budgets, retry: RetryClass) -> int | None:
    """Saving and leaving on request is free, as long as something new was saved."""
    return None if retry is RetryClass.PREEMPTION else int(getattr(budgets, retry.value))


def _step(reason: Reason) -> str:
    return "the newest saved step" if reason.saved_step is None else f"step {reason.saved_step}"


def _incident(details: dict[str, Any]) -> Incident:
    reason = Reason.from_object(details["reason"], source="journal: reason")
    return Incident(
        reason=reason,
        banned=tuple(details.get("banned", ())),
        excused=bool(details.get("excused", False)),
        displaced=bool(details.get("displaced", False)),
        expired=bool(details.get("expired", False)),
    )
