"""``python -m launch.agent``: one per host; starts the host's processes and watches over them.

Takes orders on stdin and reports on stdout (launch/orders.py). Holds no policy: it reports what it
sees, stops what it is told to stop, and stops everything by itself when its supervisor is gone or
silent. Standard library only, one thread, never imports jax.
"""

import argparse
import contextlib
import os
import pathlib
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from launch import fabric, ranks, secret_values, state_dirs
from launch.contract import Environment
from launch.exit_codes import ExitCode, of_system
from launch.health import Finding, Health
from launch.lines import LineReader, Splitter
from launch.orders import Command, Event, EventKind, Orders, Place, Verb
from launch.ranks import RankProcess
from launch.records import ContractError, Phase, RankExit
from launch.spec import Job
from launch.watchdog import Limits

_POLL_S = 0.1
_STACKS_S = 2.0
_PIDS = "pids"


class HostAgent:
    """The processes of one attempt on one host.

    Everything that happens is passed to ``emit``; whoever drives it calls `tick` at least every
    tenth of a second, and `handle` with what the supervisor asks.
    """

    def __init__(
        self, job: Job, orders: Orders, *, host: str, emit: Callable[[Event], None]
    ) -> None:
        """Nothing is started yet."""
        self.job, self.orders, self.host = job, orders, host
        self._emit_event = emit
        self._places = [place for place in orders.places if place.host == host]
        self._folder: pathlib.Path | None = None
        self._secrets = secret_values.NONE
        self._secrets_folder: pathlib.Path | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._health: Health | None = None
        self._beat_at = 0.0
        self._phases: tuple[Phase | None, ...] = ()
        self._kill_at: float | None = None
        self._stacks_at: float | None = None
        self._stuck: set[int] = set()
        self._stopping = False

    @property
    def finished(self) -> bool:
        """Whether all processes have ended."""
        return all(rank.ended is not None for rank in self._ranks.values())

    def start(self) -> None:
        """Ends what an earlier agent left here, and starts the processes."""
        try:
            self._start()
        except secret_values.SecretError as error:
            self._refuse(error, code=ExitCode.CONFIGURATION)
        except OSError as error:  # no room, or a folder that is somebody else's
            self.kill()
            self._ranks.clear()
            self._refuse(error, code=of_system(error))

    def _start(self) -> None:
        spec = self.job.spec
        self._folder = state_dirs.host_folder(self.job.run_id, host=self.host)
        ranks.end_leftovers(self._folder / _PIDS)
        gpus = fabric.is_gpu(spec.resources.accelerator)
        self._health = Health(folder=self.job.job_dir, host=self.host, gpus=gpus)
        if spec.secrets:
            self._secrets_folder = state_dirs.secrets_folder(self.job.run_id, host=self.host)
            self._secrets = secret_values.read(spec.secrets, folder=self._secrets_folder)
        limits = Limits.of(spec)
        for place in self._places:
            log = attempt_folder(self.job, self.orders.attempt) / "logs" / f"rank{place.rank}.log"
            rank = RankProcess(
                place,
                environment=self._environment(place, state_dir=self._folder),
                limits=limits,
                log=log,
                hide=self._secrets.hide,
            )
            self._ranks[place.rank] = rank
            rank.start(
                self.job.command(), cwd=self.job.code_dir, variables=self._variables(place, rank)
            )
        ranks.write_pids(self._folder / _PIDS, [rank.pid for rank in self._ranks.values()])
        self._emit(EventKind.READY)
        self._emit_exits([rank.ended for rank in self._ranks.values() if rank.ended])

    def tick(self) -> None:
        """Looks after everything once."""
        now = time.monotonic()
        self._emit_exits([ended for rank in self._ranks.values() if (ended := rank.poll())])
        self._look_for_stuck()
        for finding in self._health.check() if self._health else ():
            self._unhealthy(finding)
        phases = tuple(rank.state().phase for rank in self._ranks.values())
        if now >= self._beat_at or phases != self._phases:
            self._phases = phases
            self._beat_at = now + self.job.spec.recovery.watchdog.beat_s
            self._emit(EventKind.BEAT, ranks=True)
        if self._stacks_at is not None and now >= self._stacks_at:
            self._stacks_at = None
            self._emit_stacks()
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()

    def handle(self, command: Command) -> None:
        """Does what the supervisor asks; a beat asks for nothing."""
        if command.verb is Verb.STOP:
            self.stop()
        elif command.verb is Verb.KILL:
            self.kill()
        elif command.verb is Verb.DUMP:
            for rank in self._ranks.values():
                rank.ask_for_stacks()
            self._stacks_at = time.monotonic() + _STACKS_S

    def notice(self, message: str) -> None:
        """The engine has told this host to stop; all hosts stop, since a gang saves together."""
        self._emit(EventKind.NOTICE, message=message)
        self.stop()

    def stop(self) -> None:
        """Asks the processes, once, to save and leave; kills what is left after the grace."""
        if self._stopping:
            return  # a second SIGTERM means to the trainer: leave without a save
        self._stopping = True
        self._kill_at = time.monotonic() + self.job.spec.runtime.grace_s
        for rank in self._ranks.values():
            rank.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends all processes now."""
        self._kill_at = None
        for rank in self._ranks.values():
            rank.kill()

    def close(self) -> None:
        """Says that all is over, and removes secrets."""
        if self._secrets_folder is not None:
            shutil.rmtree(self._secrets_folder, ignore_errors=True)
        if self._folder is not None:
            (self._folder / _PIDS).unlink(missing_ok=True)
        self._emit(EventKind.DONE)

    def _look_for_stuck(self) -> None:
        if self._stopping:
            return
        for number, rank in self._ranks.items():
            message = rank.overdue()
            if message is None:
                self._stuck.discard(number)
            elif number not in self._stuck:
                self._stuck.add(number)
                self._emit(EventKind.STUCK, message=f"rank {number}: {message}", ranks=True)

    def _unhealthy(self, finding: Finding) -> None:
        self._emit(EventKind.UNHEALTHY, message=finding.message, drain=finding.drain)

    def _refuse(self, error: Exception, *, code: ExitCode) -> None:
        """No process is started: each of them has ended with that fault."""
        self._emit(EventKind.READY)
        self._emit_exits(
            [
                RankExit(
                    attempt=self.orders.attempt,
                    rank=place.rank,
                    host=self.host,
                    pid=0,
                    code=code,
                    cause=type(error).__name__,
                    message=str(error),
                    time=time.time(),
                )
                for place in self._places
            ]
        )

    def _emit_stacks(self) -> None:
        living = {str(n): rank.stacks() for n, rank in self._ranks.items() if rank.ended is None}
        self._emit(EventKind.STACKS, stacks=living)

    def _emit_exits(self, exits: Sequence[RankExit]) -> None:
        if exits:
            self._emit(EventKind.EXITED, exits=tuple(exits))

    def _emit(
        self,
        kind: EventKind,
        *,
        ranks: bool = False,
        exits: tuple[RankExit, ...] = (),
        message: str = "",
        drain: bool = False,
        stacks: Mapping[str, str] | None = None,
    ) -> None:
        states = (rank.state() for rank in self._ranks.values() if rank.ended is None)
        event = Event(
            kind=kind,
            host=self.host,
            attempt=self.orders.attempt,
            time=time.time(),
            ranks=tuple(states) if ranks else (),
            exits=exits,
            message=message,
            drain=drain,
            stacks=dict(stacks or {}),
        )
        self._emit_event(event)

    def _environment(self, place: Place, *, state_dir: pathlib.Path) -> Environment:
        spec, orders = self.job.spec, self.orders
        host = next(host for host in orders.hosts if host.name == place.host)
        return Environment(
            run_id=orders.run_id,
            attempt=orders.attempt,
            coordinator=orders.coordinator,
            num_processes=len(orders.places),
            process_id=place.rank,
            state_dir=str(state_dir),
            local_devices=place.devices,
            host_id=place.host,
            failure_domain=host.failure_domain,
            slice_id=host.slice_id,
            num_slices=spec.topology.slices,
            grace_s=spec.runtime.grace_s,
        )

    def _variables(self, place: Place, rank: RankProcess) -> dict[str, str]:
        """The host's variables, then the job's, then ours, then secrets."""
        spec = self.job.spec
        mine = {name: text for name, text in os.environ.items() if not name.startswith("LAUNCH_")}
        foreign = rank.environment.foreign_variables(
            local_rank=place.local_rank, local_size=len(self._places)
        )
        trial = {"LAUNCH_TRIAL": str(self.job.trial)} if spec.trials > 1 else {}
        theirs = fabric.environment(spec)
        return {**mine, **theirs, **foreign, **trial} | dict(self._secrets.variables)


def attempt_folder(job: Job, attempt: int) -> pathlib.Path:
    """Where logs and stacks of an attempt are."""
    return pathlib.Path(job.job_dir) / "attempts" / str(attempt)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves a supervisor until its processes have ended and it was told so."""
    parser = argparse.ArgumentParser(prog="python -m launch.agent", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--host", help="Name of this host in the orders.")
    which.add_argument("--host_variable", help="Environment variable that holds that name.")
    parser.add_argument("--job_dir", help="Where job.json is, if not in the orders' folder.")
    arguments = parser.parse_args(argv)
    host = arguments.host or os.environ[arguments.host_variable]
    return _Service(host, job_dir=arguments.job_dir).run()


class _Service:
    """Connects a `HostAgent` to stdin, stdout and signals."""

    def __init__(self, host: str, *, job_dir: str | None) -> None:
        self._host, self._job_dir = host, job_dir
        self._input = LineReader(0)
        self._splitter = Splitter(host)
        self._agent: HostAgent | None = None
        self._heard = time.monotonic()
        self._gone = False
        self._signals: list[int] = []

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, lambda which, frame: self._signals.append(which))
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            while not self._over():
                for _ in selector.select(_POLL_S):
                    self._read(selector)
                self._check_supervisor()
                self._look()
        if self._agent is not None:
            self._agent.close()
        return 0

    def _over(self) -> bool:
        if self._agent is None:
            return self._gone or bool(self._signals)
        return self._agent.finished

    def _read(self, selector: selectors.BaseSelector) -> None:
        lines = self._input.lines()
        if lines is None:
            selector.unregister(0)
            self._gone = True
            if self._agent is not None:
                self._agent.stop()  # a successor goes on from what they save
            return
        for line in lines:
            self._heard = time.monotonic()
            if self._agent is None:
                self._begin(line)
            else:
                self._agent.handle(Command.from_json(line, source="command"))

    def _begin(self, line: str) -> None:
        orders = Orders.from_json(line, source="orders")
        job = Job.of_folder(self._job_dir or orders.job_dir)
        self._agent = HostAgent(job, orders, host=self._host, emit=self._write)
        self._agent.start()

    def _check_supervisor(self) -> None:
        """A host that hears nothing is cut off: what its processes do can no longer count."""
        if self._agent is None or self._gone:
            return
        if time.monotonic() - self._heard > self._agent.job.spec.recovery.watchdog.lost_after_s:
            self._gone = True
            print("Nothing heard of the supervisor; ending.", file=sys.stderr)  # noqa: T201
            self._agent.kill()

    def _look(self) -> None:
        if self._agent is None:
            return
        if self._signals:
            names = ", ".join(signal.Signals(number).name for number in self._signals)
            self._signals.clear()
            self._agent.notice(f"{names} to the agent of {self._host}")
        self._agent.tick()

    def _write(self, event: Event) -> None:
        """Reports; where nobody reads any more there is nobody to tell."""
        with contextlib.suppress(BrokenPipeError):
            for part in self._splitter.parts(event.to_json()):
                data = part.encode() + b"\n"
                while data:
                    data = data[os.write(1, data) :]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ContractError as wrong:
        print(f"The agent cannot go on: {wrong}", file=sys.stderr)  # noqa: T201
        sys.exit(int(ExitCode.CONFIGURATION))
