"""``python -m launch.supervisor``: one per run; starts attempts until the run has ended.

It can be killed at any instant: whatever it is about to do stands in the journal first, and a
successor, which launch/keeper.py starts, reads that, ends what is left of the last attempt, and
goes on with the next number. Standard library only.
"""

import argparse
import dataclasses
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from launch import placement
from launch.agent import attempt_folder
from launch.attempt import AttemptRun, Outcome, Snapshot, Stop
from launch.control import Control, Want
from launch.engines.engine import EngineError, Gang, LeftAllocation, SupervisedEngine, engine_named
from launch.exit_codes import ExitCode, RetryClass
from launch.journal import Journal
from launch.orders import Orders, RankState
from launch.placement import Cast
from launch.records import JournalEntry, Phase, Reason, replace_file
from launch.recovery import Action, Decision, History, decide
from launch.run_status import FINAL, RunState, RunStatus
from launch.spec import Job
from launch.timeline import Stamps, recovery_timeline, stamped

_REASONS = 5
_LEFTOVERS_S = 20.0
_WALLTIME_MARGIN_S = 30.0
_WAIT_S = 0.25


class Supervisor:
    """Takes a run from wherever its journal says it is to its end."""

    def __init__(self, job: Job, gang: Gang, *, interrupted: Callable[[], bool]) -> None:
        """Nothing is started yet.

        Args:
          job: the run.
          gang: the allocation.
          interrupted: whether this process was told to stop.
        """
        self._job, self._gang, self._interrupted = job, gang, interrupted
        self._journal = Journal(job.job_dir)
        self._history = History()
        self._began = time.monotonic()
        self._holds_allocation = False
        self._before: tuple[str, ...] = ()
        self._spares: tuple[str, ...] = ()
        self._at_most: int | None = None
        self._reasons: tuple[Reason, ...] = ()
        self._next_action = ""
        self._stamps: Stamps = {}
        self._snapshot: Snapshot | None = None
        self._trains = False

    def run(self) -> int:
        """Runs to the end of the run, or of the allocation; returns the exit code."""
        self._replay()
        if self._history.final is not None:
            return self._ended_before()
        self._note("supervisor_started", pid=os.getpid(), host=socket.gethostname())
        self._gang.end(timeout_s=self._job.spec.runtime.grace_s + _LEFTOVERS_S)
        try:
            self._go_on()
        except LeftAllocation:
            return int(ExitCode.PREEMPTED)
        assert self._history.final is not None
        return self._history.final

    def _go_on(self) -> None:
        if self._history.open:
            self._end_orphan()
        if self._history.undecided:
            self._decide()
        while self._history.final is None and not self._stopped_by_person():
            self._attempt()

    def _replay(self) -> None:
        for entry in self._journal.entries():
            self._history = self._history.then(entry)
            self._stamps = stamped(self._stamps, entry)
            if entry.event == "attempt_planned":
                self._before = tuple(entry.details["hosts"])
                self._spares = tuple(entry.details["spares"])
            if entry.event == "decided":
                action, excluded = entry.details["action"], entry.details["exclude"]
                if action == Action.SHRINK:
                    self._at_most = len(self._before) - len(excluded)
                elif action == Action.REQUEUE:
                    self._at_most = None
        reasons = (incident.reason for incident in self._history.incidents[-_REASONS:])
        self._reasons = tuple(reasons)

    def _attempt(self) -> None:
        """Plans, runs and judges one attempt."""
        cast = self._assemble()
        if cast is None:
            return
        number = self._next_number()
        orders = Orders(
            run_id=self._job.run_id,
            attempt=number,
            job_dir=self._job.job_dir,
            coordinator=self._gang.address(cast.active[0], attempt=number),
            hosts=cast.active,
            places=placement.places(cast.active, spec=self._job.spec),
        )
        names = [host.name for host in cast.active]
        self._before, self._spares = tuple(names), tuple(host.name for host in cast.spares)
        self._note(
            "attempt_planned",
            attempt=number,
            hosts=names,
            spares=list(self._spares),
            coordinator=orders.coordinator,
        )
        self._next_action = ""
        self._trains = False
        run = AttemptRun(
            self._job,
            orders,
            self._gang,
            wanted=self._wanted,
            beat=self._beat,
            note=self._note,
        )
        self._judge(run.run())

    def _assemble(self) -> Cast | None:
        """Hosts for the next attempt; None after a requeue, or where the run is held for want."""
        spec = self._job.spec
        if not self._allocated():
            return None
        avoided = self._avoided()
        usable = [host for host in self._gang.hosts() if host.name not in avoided]
        cast = placement.cast(usable, spec=spec, before=self._before, at_most=self._at_most)
        if cast is not None:
            return cast
        why = f"only {len(usable)} of the allocation's hosts can be used"
        if self._gang.elsewhere:
            why = f"{why}; queues again"
            self._note("decided", action=Action.REQUEUE, exclude=[], why=why, delay_s=0.0)
            self._requeue(why)
        else:
            self._finish("held", code=ExitCode.HOLD, why=f"{why}, and there are no others")
        return None

    def _allocated(self) -> bool:
        """Waits for hosts; False where nobody wants the run any more."""
        waited = False
        while (why := self._gang.waiting()) is not None:
            waited = True
            self._next_action = f"starts when it has its hosts: {why}"
            self._write_status(RunState.WAITING)
            if self._stopped_by_person():
                return False
            time.sleep(_WAIT_S)
        if waited or not self._holds_allocation:
            self._holds_allocation = True
            self._began = time.monotonic()
            self._next_action = ""
            self._note("allocated", hosts=[host.name for host in self._gang.hosts()])
        return True

    def _judge(self, outcome: Outcome) -> None:
        reason = outcome.reason
        done = reason.retry is RetryClass.DONE and reason.step is not None
        if done and self._snapshot is not None:
            self._note_recovery(self._snapshot, first=reason.time)  # faster than any beat
        self._save_stacks(outcome)
        self._note(
            "attempt_ended",
            reason=dataclasses.asdict(reason),
            banned=list(outcome.banned),
            displaced=outcome.displaced and reason.retry is not RetryClass.DONE,
            expired=outcome.stop is Stop.WALLTIME,
        )
        self._write_reason(reason)
        self._reasons = (*self._reasons, reason)[-_REASONS:]
        person = outcome.stop in (Stop.DRAIN, Stop.CANCEL)
        if person and reason.retry in (RetryClass.PREEMPTION, RetryClass.SIGNAL):
            why = f"{outcome.stop}: {reason.message}"
            self._finish("stopped", code=ExitCode.PREEMPTED, why=why)
        else:
            self._decide()

    def _decide(self) -> None:
        avoided = self._avoided()
        decision = decide(
            self._history,
            spec=self._job.spec,
            spares=sum(name not in avoided for name in self._spares),
            hosts=len(self._before),
            elsewhere=self._gang.elsewhere,
        )
        self._note(
            "decided",
            action=decision.action,
            exclude=list(decision.exclude),
            why=decision.why,
            delay_s=decision.delay_s,
        )
        self._next_action = f"{decision.action}: {decision.why}"
        self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        if decision.is_final:
            event = {Action.DONE: "done", Action.FAIL: "failed", Action.HOLD: "held"}
            self._finish(event[decision.action], code=decision.code, why=decision.why)
            return
        self._pause(decision.delay_s)
        if decision.action is Action.SHRINK:
            self._at_most = len(self._before) - len(decision.exclude)
        if decision.action is Action.REQUEUE:
            self._requeue(decision.why)

    def _requeue(self, why: str) -> None:
        self._write_status(RunState.WAITING)
        self._gang.requeue(exclude=self._avoided(), reason=why)
        self._at_most = None
        self._holds_allocation = False

    def _ended_before(self) -> int:
        """The end is in the journal; whoever wrote it may have died before the status told."""
        last = next(e for e in reversed(self._journal.entries()) if e.event in FINAL)
        self._tell_end(last.event, **last.details)
        return int(last.details["code"])

    def _finish(self, event: str, *, code: int, why: str) -> None:
        self._note(event, code=int(code), why=why)
        self._tell_end(event, code=code, why=why)

    def _tell_end(self, event: str, *, code: int, why: str) -> None:
        word = "to go on" if event == "stopped" else "then"
        resume = f"; {word}: python -m launch.main resume {self._job.run_id}"
        self._next_action = why if event == "done" else f"{why}{resume}"
        self._write_status(FINAL[event], code=code)

    def _stopped_by_person(self) -> bool:
        wanted = self._wanted()
        if wanted not in (Stop.DRAIN, Stop.CANCEL):
            return False
        why = f"{wanted} before the next attempt"
        self._finish("stopped", code=ExitCode.PREEMPTED, why=why)
        return True

    def _end_orphan(self) -> None:
        """The supervisor before this one has died during an attempt; its agents have ended it."""
        status = RunStatus.read(self._job.job_dir)  # its last sign of life
        reason = Reason(
            attempt=self._history.attempt,
            code=int(ExitCode.INFRASTRUCTURE),
            retry=RetryClass.INFRASTRUCTURE,
            rank=None,
            host="",
            cause="SupervisorLost",
            message="the supervisor of this attempt died",
            action="retried",
            time=status.time if status is not None else time.time(),
            saved_step=self._history.saved_step,
        )
        self._note("attempt_ended", reason=dataclasses.asdict(reason), excused=True)
        self._write_reason(reason)

    def _wanted(self) -> Stop | None:
        control = Control.read(self._job.job_dir)
        if control is not None and control.want is Want.CANCEL:
            return Stop.CANCEL
        if (control is not None and control.want is Want.DRAIN) or self._interrupted():
            return Stop.DRAIN
        if self._gang.notice() is not None:
            return Stop.ENGINE
        runtime = self._job.spec.runtime
        left = runtime.max_walltime_s - (time.monotonic() - self._began)
        if runtime.max_walltime_s and left < runtime.grace_s + _WALLTIME_MARGIN_S:
            return Stop.WALLTIME
        return None

    def _pause(self, seconds: float) -> None:
        """Waits before a restart, and hears of a stop meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._wanted() is None:
            self._write_status(RunState.RECOVERING)
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))

    def _next_number(self) -> int:
        """Larger than any that was ever used, whoever used it."""
        folder = pathlib.Path(self._job.job_dir) / "attempts"
        used = [int(p.name) for p in folder.glob("*") if p.name.isdecimal()]
        return max([self._history.attempt, *used], default=0) + 1

    def _avoided(self) -> tuple[str, ...]:
        return self._history.avoided(now=time.time(), for_s=self._job.spec.recovery.exclude_s)

    def _note(self, event: str, *, attempt: int | None = None, **details: Any) -> None:
        number = self._history.attempt if attempt is None else attempt
        entry: JournalEntry = self._journal.append(event, attempt=number, **details)
        self._history = self._history.then(entry)
        self._stamps = stamped(self._stamps, entry)

    def _write_reason(self, reason: Reason) -> None:
        folder = attempt_folder(self._job, reason.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "reason.json", text=reason.to_json())

    def _save_stacks(self, outcome: Outcome) -> None:
        if not outcome.stacks:
            return
        folder = attempt_folder(self._job, outcome.reason.attempt) / "stacks"
        folder.mkdir(parents=True, exist_ok=True)
        for rank, text in outcome.stacks.items():
            (folder / f"rank{rank}.txt").write_text(text, encoding="utf-8")
        self._note("stacks", folder=str(folder), ranks=sorted(outcome.stacks))

    def _beat(self, snapshot: Snapshot) -> None:
        self._note_recovery(snapshot, first=snapshot.entered.get(Phase.STEP))
        self._snapshot = snapshot
        silent = not snapshot.entered and not self._job.spec.is_trainer  # need not say a word
        works = snapshot.ready is not None if silent else Phase.STEP in snapshot.entered
        state = RunState.RUNNING if works else RunState.STARTING
        self._write_status(state, ranks=snapshot.ranks)

    def _note_recovery(self, snapshot: Snapshot, *, first: float | None) -> None:
        """Writes once per attempt when it trains, and where the time until then went."""
        if first is None or self._trains:
            return
        self._trains = True
        stamps = self._stamps
        step = max((state.step or 0 for state in snapshot.ranks), default=0)
        self._note("attempt_running", step=step)
        if "cause" in stamps:
            timeline = recovery_timeline(
                stamps, ready=snapshot.ready, entered=snapshot.entered, first=first
            )
            self._note("recovered", timeline=timeline, step=step)

    def _write_status(
        self, state: RunState, *, ranks: Sequence[RankState] = (), code: int | None = None
    ) -> None:
        last = self._reasons[-1].step if self._reasons and not ranks else None
        steps = [step for step in (last, *(rank.step for rank in ranks)) if step is not None]
        saves = (self._history.saved_step, *(rank.saved_step for rank in ranks))
        phases = [rank.phase or Phase.START for rank in ranks]
        status = RunStatus(
            run_id=self._job.run_id,
            state=state,
            attempt=self._history.attempt,
            time=time.time(),
            pid=os.getpid(),
            supervisor_host=socket.gethostname(),
            hosts=self._before,
            spares=self._spares,
            excluded=self._avoided(),
            phase=min(phases, key=list(Phase).index, default=None),
            step=min(steps, default=None),
            saved_step=max((step for step in saves if step is not None), default=None),
            loss=next((rank.loss for rank in ranks if rank.loss is not None), None),
            ranks=tuple(ranks),
            reasons=self._reasons,
            next_action=self._next_action,
            exit_code=None if code is None else int(code),
        )
        status.write(self._job.job_dir)


def supervise(job_dir: str) -> int:
    """Runs the supervisor of a job folder; returns the exit code of the run."""
    job = Job.of_folder(job_dir)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, frame: signals.append(which))
    engine = engine_named(job.engine)
    assert isinstance(engine, SupervisedEngine), f"{job.engine} starts no supervisor"
    try:
        return Supervisor(job, engine.gang(job), interrupted=lambda: bool(signals)).run()
    except EngineError as error:
        print(f"The engine cannot be used: {error}", file=sys.stderr)  # noqa: T201
        return int(ExitCode.ENGINE_UNREACHABLE)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m launch.supervisor", description=__doc__)
    parser.add_argument("--job_dir", required=True, help="Folder that holds job.json.")
    return supervise(parser.parse_args(argv).job_dir)


if __name__ == "__main__":
    sys.exit(main())
