"""One process of a run, as its host's agent sees it: started, watched, asked, ended.

Each rank has a process group of its own, so that whatever it started ends with it, and dies when
its agent does. Standard library only.
"""

import contextlib
import ctypes
import dataclasses
import functools
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from launch import stacks
from launch.contract import Environment
from launch.exit_codes import ExitCode, of_system
from launch.orders import Place, RankState
from launch.process_identity import started
from launch.records import (
    ContractError,
    Progress,
    RankExit,
    exit_path,
    progress_path,
    replace_file,
    stacks_path,
)
from launch.watchdog import Limits, Watch

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_SETTABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TAIL_BYTES = 32768
_CAUSE, _MESSAGE, _TRACEBACK = 200, 2000, 20_000
"""Characters that are kept of what a process says of its end; it stands in every status."""
_TELLING = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b|Fatal|F\d{4} |E\d{4} ")
_CASCADE = re.compile(
    r"another task died|heartbeat timeout|coordination service|connection closed by peer"
    r"|socket closed|connection reset by peer|leaving because rank|stopped sending heartbeats",
    re.IGNORECASE,
)


class RankProcess:
    """A process at its place."""

    def __init__(
        self,
        place: Place,
        *,
        environment: Environment,
        limits: Limits,
        log: pathlib.Path,
        hide: Callable[[str], str],
    ) -> None:
        """Nothing is started yet.

        Args:
          place: which rank it is.
          environment: its ``LAUNCH_*`` variables.
          limits: deadlines.
          log: file that takes its output.
          hide: removes secrets from a text.
        """
        self.place, self.environment = place, environment
        self.ended: RankExit | None = None
        self._limits, self._log, self._hide = limits, log, hide
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = Watch(limits, now=time.monotonic())
        self._began = time.time()

    @property
    def pid(self) -> int:
        """Process id, which is its process group's, too; 0 where it never ran."""
        return self._process.pid if self._process else 0

    def start(self, command: Sequence[str], *, cwd: str, variables: Mapping[str, str]) -> None:
        """Starts the process; a command that cannot be started has ended at once."""
        state_dir = self.environment.state_dir
        for path in (self._progress_path(), self._exit_path(), self._stacks_path()):
            path.unlink(missing_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._watch = Watch(self._limits, now=time.monotonic())
        self._began = time.time()
        own = {**variables, **self.environment.variables(), "LAUNCH_STATE_DIR": state_dir}
        try:
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    preexec_fn=functools.partial(_begin, os.getpid()),
                )
        except (OSError, ValueError) as error:
            message = self._hide(f"{command[0]} cannot be started: {error}")
            code = of_system(error, otherwise=ExitCode.CONFIGURATION)
            self.ended = self._exit(code, type(error).__name__, message)

    def poll(self) -> RankExit | None:
        """Returns how it ended, once; None while it runs, and afterwards."""
        if self._process is None or self.ended is not None:
            return None
        self._read_progress()
        code = self._process.poll()
        if code is None:
            return None
        self.kill()  # what it started ends with it
        self.ended = self._ending(128 - code if code < 0 else code)
        return self.ended

    def signal(self, number: int) -> None:
        """Sends a signal to the process, not to what it started: the process decides for those."""
        if self._process is not None and self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Ends the process and everything in its group."""
        if self._process is not None and self.ended is None:  # later the number is others'
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def state(self) -> RankState:
        """Returns where it stands."""
        last = self._watch.last
        return RankState(
            rank=self.place.rank,
            host=self.place.host,
            phase=last.phase if last else None,
            step=last.step if last else None,
            saved_step=last.saved_step if last else None,
            loss=last.loss if last else None,
            idle_s=round(self._watch.idle_s(time.monotonic()), 3),
        )

    def overdue(self) -> str | None:
        """Returns what is overdue; None while all is well."""
        self._read_progress()
        return self._watch.overdue(time.monotonic()) if self.ended is None else None

    def ask_for_stacks(self) -> None:
        """Has the process write its stacks, where it can."""
        if self.ended is None:
            stacks.request(self.pid)

    def stacks(self) -> str:
        """Returns what it wrote after `ask_for_stacks`, and what the kernel says of it."""
        try:
            text = self._stacks_path().read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        return self._hide(f"{stacks.describe(self.pid)}\n\n{text}")

    def _read_progress(self) -> None:
        path = self._progress_path()
        try:
            progress = Progress.read_file(path)
        except (OSError, ContractError):
            return  # a program of others wrote something else there
        if progress is not None and progress.attempt == self.environment.attempt:
            self._watch.saw(progress)

    def _ending(self, code: int) -> RankExit:
        """What the process said of its end, if that is true; else what can be seen from outside."""
        told = self._told()
        if told is not None and told.code == code and told.pid == self.pid:
            return told
        name = signal.Signals(code - 128).name if 128 < code < 160 else ""
        killed = code == 128 + signal.SIGKILL  # which leaves no last words
        line, cascade = ("", False) if code == 0 or killed else self._last_words()
        how = f"died of signal {code - 128}" if name else f"exit code {code}"
        message = f"{how}: {line}" if line else how
        return self._exit(code, name or ("done" if code == 0 else "ExitCode"), message, cascade)

    def _told(self) -> RankExit | None:
        """What the process left of itself; where and when that was is known better from here."""
        try:
            told = RankExit.read_file(self._exit_path())
        except (OSError, ContractError):
            told = None
        return told and dataclasses.replace(
            told,
            attempt=self.environment.attempt,
            rank=self.place.rank,
            host=self.place.host,
            cause=self._hide(told.cause)[:_CAUSE],
            message=self._hide(told.message)[:_MESSAGE],
            traceback=self._hide(told.traceback)[-_TRACEBACK:],
            time=min(max(told.time, self._began), time.time()),
        )

    def _exit(self, code: int, cause: str, message: str, cascade: bool = False) -> RankExit:
        last = self._watch.last
        return RankExit(
            attempt=self.environment.attempt,
            rank=self.place.rank,
            host=self.place.host,
            pid=self.pid,
            code=int(code),
            cause=cause,
            message=message,
            time=time.time(),
            cascade=cascade,
            step=last.step if last else None,
            saved_step=last.saved_step if last else None,
        )

    def _last_words(self) -> tuple[str, bool]:
        """The line of output that says most, without secrets; and whether it blames another rank.

        What a dying runtime prints last are stacks and lists of modules; what it died of stands
        before them.
        """
        with self._log.open("rb") as file:
            begins = file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            if begins:
                file.readline()  # the end of a line may be the end of a secret
            text = self._hide(file.read().decode(errors="replace"))
        lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
        blaming = next((line for line in lines if _CASCADE.search(line)), None)
        if blaming is not None:
            return blaming, True
        telling = [line for line in lines if _TELLING.match(line)]
        return next(reversed(telling or lines), ""), False

    def _progress_path(self) -> pathlib.Path:
        return progress_path(self.environment.state_dir, rank=self.place.rank)

    def _exit_path(self) -> pathlib.Path:
        return exit_path(self.environment.state_dir, rank=self.place.rank)

    def _stacks_path(self) -> pathlib.Path:
        return stacks_path(self.environment.state_dir, rank=self.place.rank)


def living(path: pathlib.Path) -> list[int]:
    """Returns process ids that a file of pids and start times names and that still are those."""
    return [pid for pid, start in _recorded(path) if started(pid) == start]


def end_leftovers(path: pathlib.Path) -> None:
    """Kills the process groups of what `living` finds, and of ranks that left theirs behind.

    A rank dies with its agent, but what the rank had started does not.
    """
    gone = [pid for pid, _ in _recorded(path) if started(pid) is None]
    for group in (*living(path), *_orphaned(gone, state_dir=path.parent)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _recorded(path: pathlib.Path) -> list[tuple[int, int]]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    pairs = re.findall(r"^(\d+) (\d+)$", text, re.ASCII | re.MULTILINE)
    return [(int(pid), int(start)) for pid, start in pairs]


def _orphaned(groups: Sequence[int], *, state_dir: pathlib.Path) -> set[int]:
    """Returns those of the groups that still have processes, started by ranks of this folder."""
    mark = f"LAUNCH_STATE_DIR={state_dir}".encode()
    found = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*") if groups else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            group = os.getpgid(int(folder.name))
            if group in groups and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(group)
    return found


def write_pids(path: pathlib.Path, pids: Sequence[int]) -> None:
    """Writes what `living` reads."""
    replace_file(path, text="".join(f"{pid} {started(pid) or 0}\n" for pid in pids if pid))


def _begin(agent: int) -> None:
    """In the child: signals as the kernel has them, whatever nohup or a shell has made of them.

    SIGKILL when the agent ends, however it ends, and if it just did.
    """
    for number in _SETTABLE:
        signal.signal(number, signal.SIG_DFL)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os.kill(os.getpid(), signal.SIGKILL)
