"""One process's part in a run: joining the others, reporting progress, and leaving.

Imports jax only where the run is joined. `run_guarded` wraps the trainer's main function, and is
the only way out: it writes how the process ended and leaves with ``os._exit``, because a process
that reaches Python's ordinary end after a failure waits there for its peers (facts: 31 s to 5
minutes), and because survivors must hear of a failure before the coordination service is gone.
"""

import contextlib
import faulthandler
import json
import math
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import util
from typing import NoReturn, TextIO

from launch import contract
from launch.contract import Environment, ExitCode, Phase, Progress, RankExit
from trainer import endings
from trainer.checkpoints.root import Root
from trainer.coordination import Alone, Coordination, PeersMissingError
from trainer.joining import HEARTBEAT_S, INITIALIZATION_S, join
from trainer.lifeline import Lifeline
from trainer.preemption import Preemption

_FINISH_S = 1800.0
_PREEMPTED_FINISH_S = 60.0
_HEARD_S = 3.0
_LAST_ANSWER_S = 0.2
_PROGRESS_EVERY_NS = 500_000_000
_EVER = 10.0**9
_HEARD_OF = "PeerEnded"
_QUIET = (
    ExitCode.CONFIGURATION,
    ExitCode.DATA,
    ExitCode.HOLD,
    ExitCode.INTERRUPTED,
    ExitCode.NUMERICS,
    ExitCode.PREEMPTED,
)


class Participant:
    """This process in its run.

    Attributes:
      environment: what the launcher said; None without one.
      coordination: agreement with the other processes; of one process until `join`.
      preemption: SIGTERM; ``preemption.reached()`` is asked after every step.
      attempt: number of the attempt; set by whoever claims it.
      root: where the run's records are; None before the run directory is open.
      step: last completed step; the loop sets it.
      saved_step: newest committed step; the checkpoint store sets it.
    """

    def __init__(self, environment: Environment | None) -> None:
        self.environment = environment
        self.coordination: Coordination = Alone()
        # Whoever gives a grace also ends it.
        timed = environment is not None and environment.grace_s is not None
        self.preemption = Preemption(self._leave_on_signal, launched=timed)
        self.attempt = environment.attempt if environment else 0
        self.root: Root | None = None
        self.step: int | None = None
        self.saved_step: int | None = None
        self._leaving = threading.RLock()
        self._writing = threading.Lock()
        self._last_acts: list[Callable[[], None]] = []
        self._progress: tuple[Phase, int] | None = None
        self._loss: float | None = None
        self._stacks: TextIO | None = None

    @property
    def rank(self) -> int:
        """Process id of this process."""
        return self.environment.process_id if self.environment else 0

    @property
    def host(self) -> str:
        """Name of this process's host, as the launcher calls it."""
        return (self.environment and self.environment.host_id) or socket.gethostname()

    def join(
        self, *, initialization_s: float = INITIALIZATION_S, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        """Joins the other processes; must come before jax is first used. See `join`.

        Raises:
          PeerLostError: not all came in time, or the coordinator cannot be reached.
        """
        self.coordination = join(
            self.environment, initialization_s=initialization_s, heartbeat_s=heartbeat_s
        )
        self.preemption.connect(self.coordination)
        threading.Thread(target=self._hear_of_failures, daemon=True, name="failures").start()
        if self.environment is not None:
            host = self.environment.coordinator.rpartition(":")[0].strip("[]")
            Lifeline(self.coordination, host=host, lost=self._leave_on_death)

    def before_leaving(self, act: Callable[[], None]) -> None:
        """Has ``act`` called before this process leaves, however it leaves; the last one first.

        It may be called from another thread while the main thread is still busy.
        """
        self._last_acts.append(act)

    def offer_stacks(self) -> None:
        """From here on the agent of this host can have the stacks of all threads."""
        if self.environment is None:
            return
        _make_folder(self.environment.state_dir)
        path = contract.stacks_path(self.environment.state_dir, rank=self.rank)
        self._stacks = path.open("w")
        faulthandler.register(contract.STACKS_SIGNAL, file=self._stacks, all_threads=True)

    def progress(self, phase: Phase, *, step: int | None = None, loss: float | None = None) -> None:
        """Tells the agent of this host what the process is busy with; cheap enough per step."""
        if step is not None:
            self.step = step
        if loss is not None:
            self._loss = loss if math.isfinite(loss) else None
        if self.environment is None:
            return
        now = time.monotonic_ns()
        same_phase = self._progress is not None and self._progress[0] is phase
        if same_phase and self._progress and now - self._progress[1] < _PROGRESS_EVERY_NS:
            return
        self._progress = phase, now
        self._write_progress()

    def committed(self, step: int) -> None:
        """A step is saved and counts; called from the thread that saves."""
        self.saved_step = step
        if self.environment is not None and self._progress is not None:
            self._write_progress()

    def _write_progress(self) -> None:
        assert self.environment is not None
        assert self._progress is not None
        with self._writing:
            record = Progress(
                attempt=self.attempt,
                phase=self._progress[0],
                step=self.step,
                monotonic_ns=time.monotonic_ns(),
                saved_step=self.saved_step,
                loss=self._loss,
            )
            path = contract.progress_path(self.environment.state_dir, rank=self.rank)
            contract.replace_file(path, text=record.to_json())

    def finish(self, code: int, *, message: str) -> NoReturn:
        """Leaves in order: when all processes have come here, and with the service shut down."""
        patience = _FINISH_S if code == ExitCode.DONE else _PREEMPTED_FINISH_S
        self.coordination.barrier("finish", timeout_s=patience)
        cause = "done" if code == ExitCode.DONE else "PreemptedError"
        self._enter_leaving()
        self._act()
        self._record(self._ending(code, cause=cause, message=message))
        if self.coordination.process_count > 1:
            import jax

            jax.distributed.shutdown()
        _end_children()
        # Unlinks semaphores of data workers; os._exit would leave them, with a warning about it.
        util._run_finalizers(0)  # type: ignore[attr-defined]  # has no public name
        _say("" if code == ExitCode.DONE else message)
        os._exit(int(code))

    def fail(self, error: BaseException) -> NoReturn:
        """Leaves because of an exception: writes it, tells the others, shows it last."""
        what = endings.classify(error)
        self._enter_leaving()
        ending = self._ending(
            what.code,
            cause=type(error).__name__,
            message=endings.first_line(error),
            cascade=what.cascade,
            error=error,
        )
        quiet = what.code in _QUIET or isinstance(error, (SystemExit, endings.UserError))
        self._leave(ending, last=_short(error) if quiet else ending.traceback)

    def _leave_on_signal(self, message: str) -> NoReturn:
        self._enter_leaving()
        ending = self._ending(ExitCode.PREEMPTED, cause="SIGTERM", message=message)
        self._leave(ending, last=message)

    def _hear_of_failures(self) -> None:
        """Leaves as soon as another process says that it failed."""
        try:
            told = json.loads(self.coordination.get("end/first", timeout_s=_EVER))
        except RuntimeError:
            return  # the service is gone; the main thread's next collective says so with more
        if told["rank"] == self.rank:
            return
        self._enter_leaving()
        preempted = told["code"] == ExitCode.PREEMPTED
        code = ExitCode.PREEMPTED if preempted else ExitCode.INFRASTRUCTURE
        message = f"rank {told['rank']} ended first: {told['cause']}: {told['message']}"
        ending = self._ending(code, cause=_HEARD_OF, message=message, cascade=True)
        self._leave(ending, last=f"Leaving because {message}")

    def _leave_on_death(self, rank: int) -> None:
        """Leaves because the connection to another process has ended, unless that was told."""
        # Where it was told, the thread that listens for that leaves with the better message. Rank
        # 0 waits until all others have heard; and once it is gone, jax soon aborts this process.
        try:
            if rank != 0:
                self.coordination.get("end/first", timeout_s=_HEARD_S)
                return
        except PeersMissingError:
            pass
        except RuntimeError as error:
            if "CANCELLED" in str(error):
                return  # this process has come to its own end
        self._enter_leaving()
        message = f"rank {rank} is gone without a word"
        code = ExitCode.INFRASTRUCTURE
        ending = self._ending(code, cause="PeerLostError", message=message, cascade=True)
        self._leave(ending, last=f"Leaving because {message}.")

    def _enter_leaving(self) -> None:
        """Whoever comes first leaves; a later thread waits here for the end of the process."""
        self._leaving.acquire()

    def _ending(
        self,
        code: int,
        *,
        cause: str,
        message: str,
        cascade: bool = False,
        error: BaseException | None = None,
    ) -> RankExit:
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        return RankExit(
            attempt=self.attempt,
            rank=self.rank,
            host=self.host,
            pid=os.getpid(),
            code=int(code),
            cause=cause,
            message=message,
            time=time.time(),
            cascade=cascade,
            step=self.step,
            saved_step=self.saved_step,
            traceback=text,
        )

    def _act(self) -> None:
        while self._last_acts:
            act = self._last_acts.pop()
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the ending itself must still be told
                _say(f"{act} failed while leaving: {type(error).__name__}: {error}")

    def _record(self, ending: RankExit) -> None:
        """Leaves word with the agent of this host, and with the run."""
        try:
            if self.environment is not None:
                path = contract.exit_path(self.environment.state_dir, rank=self.rank)
                contract.replace_file(path, text=ending.to_json())
            if self.root is not None:
                endings.write_ending(self.root, ending)
        except (OSError, ValueError) as error:
            _say(f"The end of rank {self.rank} could not be recorded: {error}")

    def _leave(self, ending: RankExit, *, last: str) -> NoReturn:
        """Writes the ending, tells the others, shows ``last`` as the last line, and is gone.

        Process 0 takes the coordination service with it, upon which jax aborts every process that
        is still there; so the others say as their last act that they go, and process 0 waits for
        that, three seconds at most.
        """
        try:
            self._record(ending)
            self._tell(ending)
            self._act()
            _end_children()
            _say(last)
            self._say_goodbye()
        finally:
            os._exit(int(ending.code))

    def _tell(self, ending: RankExit) -> None:
        peers = self.coordination
        try:
            if peers.process_count > 1 and ending.cause != _HEARD_OF:
                peers.put("end/first", _told(ending))
            if self.rank == 0:
                self._await_others(peers)
        except RuntimeError as error:
            _say(f"The other processes could not be told: {endings.first_line(error)}")

    def _say_goodbye(self) -> None:
        if self.rank == 0:
            return
        with contextlib.suppress(RuntimeError):  # process 0 may be gone; nobody waits then
            self.coordination.put(f"end/gone/{self.rank}", "")

    def _await_others(self, peers: Coordination) -> None:
        deadline = time.monotonic() + _HEARD_S
        for rank in range(1, peers.process_count):
            try:
                left = max(0.001, deadline - time.monotonic())
                peers.get(f"end/gone/{rank}", timeout_s=left)
            except PeersMissingError:
                _say(f"Rank {rank} did not answer that it heard of the end.")
        if peers.process_count > 1:
            time.sleep(_LAST_ANSWER_S)  # the service's answers to their last words are on the way


def run_guarded(
    main: Callable[[Participant], None], *, environ: Mapping[str, str] | None = None
) -> NoReturn:
    """Runs a process's main function and leaves with the right exit code.

    Returning means that the run is complete; `endings.PreemptedError` means stopped and saved. In
    both cases all processes leave together. Any other exception ends this process at once, and
    the others within seconds. Never returns, and never reaches atexit.
    """
    participant = Participant(None)
    try:
        participant = Participant(Environment.read(os.environ if environ is None else environ))
        participant.preemption.install()
        participant.offer_stacks()
        participant.progress(Phase.START)
        main(participant)
        participant.finish(ExitCode.DONE, message="complete")
    except endings.PreemptedError as stop:
        _finish_or_fail(participant, stop)
    except BaseException as error:  # noqa: BLE001 - the last frame: nobody else can report it
        participant.fail(error)


def _finish_or_fail(participant: Participant, stop: endings.PreemptedError) -> NoReturn:
    try:
        participant.finish(ExitCode.PREEMPTED, message=endings.first_line(stop))
    except (RuntimeError, PeersMissingError):
        participant.fail(stop)  # stopped and saved all the same, only not together


def _make_folder(state_dir: str) -> None:
    try:
        os.makedirs(state_dir, exist_ok=True)
    except OSError as error:
        raise contract.ContractError(
            f"LAUNCH_STATE_DIR={state_dir!r} cannot be made: {error}. Name a folder of this host."
        ) from error


def _short(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else ""
    text = str(error)
    if isinstance(error, endings.UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _told(ending: RankExit) -> str:
    fields = {"rank": ending.rank, "code": ending.code}
    return json.dumps({**fields, "cause": ending.cause, "message": ending.message})


def _end_children() -> None:
    """Data workers would outlive this process, which never reaches the end that stops them."""
    for child in multiprocessing.active_children():
        child.terminate()


def _say(text: str) -> None:
    sys.stdout.flush()
    if text:
        print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - the log may be gone by now
