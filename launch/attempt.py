"""One attempt: its agents are started, heard, and ended when the first thing goes wrong.

Reports what happened and decides nothing about what comes next. Standard library only.
"""

import dataclasses
import enum
import itertools
import selectors
import signal
import time
from collections.abc import Callable, Mapping

from launch import classify
from launch.channel import Channel
from launch.classify import Evidence, Fault
from launch.engines.engine import Gang
from launch.exit_codes import ExitCode
from launch.orders import Command, Event, EventKind, Host, Orders, RankState, Verb
from launch.records import ContractError, Phase, RankExit, Reason
from launch.spec import Job

_READY_S = 60.0
_SETTLE_S = 5.0
_SETTLE_KNOWN_S = 1.0
_SETTLE_LOST_S = 0.5
_STACKS_S = 6.0
_ENDED_S = 15.0
_LEFT_S = 10.0
_MISSED_BEATS = 2.5
_CLOCK_S = 10.0
_LEFT_BROKEN_S = 2.0


class Stop(enum.StrEnum):
    """Why an attempt is asked to save and end."""

    DRAIN = "drain"
    CANCEL = "cancel"
    ENGINE = "engine"
    WALLTIME = "walltime"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an attempt.

    Attributes:
      reason: why it ended.
      banned: hosts that must not be used again.
      displaced: the engine wants the hosts back.
      stop: what it was asked to stop for.
      stacks: rank -> text.
    """

    reason: Reason
    banned: tuple[str, ...] = ()
    displaced: bool = False
    stop: Stop | None = None
    stacks: Mapping[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """How an attempt stands.

    Attributes:
      ranks: newest state of each living process.
      entered: phase -> seconds since 1970 at which the last process entered it.
      ready: seconds since 1970 at which all agents had started their processes; None before.
    """

    ranks: tuple[RankState, ...]
    entered: Mapping[Phase, float]
    ready: float | None


class AttemptRun:
    """Drives the agents of one attempt."""

    def __init__(
        self,
        job: Job,
        orders: Orders,
        gang: Gang,
        *,
        wanted: Callable[[], Stop | None],
        beat: Callable[[Snapshot], None],
        note: Callable[..., None],
    ) -> None:
        """Nothing is started yet.

        Args:
          job: what runs.
          orders: which processes where.
          gang: starts agents.
          wanted: asked with every beat whether to stop.
          beat: told with every beat how the attempt stands.
          note: writes an event with details to the journal.
        """
        self._note = note
        self._job, self._orders, self._gang = job, orders, gang
        self._wanted, self._beat = wanted, beat
        self._watchdog = job.spec.recovery.watchdog
        self._hosts = {host.name: host for host in orders.hosts}
        self._channels: list[Channel] = []
        self._began = time.time()
        self._heard: dict[str, float] = {}
        self._heard_wall: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._over: set[str] = set()
        self._states: dict[int, RankState] = {}
        self._entered: dict[int, dict[Phase, float]] = {}
        self._exits: dict[int, RankExit] = {}
        self._faults: list[Fault] = []
        self._banned: set[str] = set()
        self._stacks: dict[int, str] = {}
        self._stacks_from: set[str] = set()
        self._stop: Stop | None = None
        self._troubled = False
        self._kill_at: float | None = None
        self._killed_at: float | None = None

    def run(self) -> Outcome:
        """Runs the attempt to its end."""
        began = time.monotonic()
        self._heard = dict.fromkeys(self._hosts, began)
        try:
            processes = self._gang.start(self._orders)
        except OSError as error:
            return Outcome(reason=classify.not_started(error, attempt=self._orders.attempt))
        each = len(processes) == len(self._hosts)
        with selectors.DefaultSelector() as selector:
            for process, host in itertools.zip_longest(processes, self._hosts if each else ()):
                channel = Channel(process, hosts={host} if host else set())
                self._channels.append(channel)
                selector.register(channel.descriptor, selectors.EVENT_READ, channel)
                channel.send(self._orders.to_json())
            try:
                self._loop(selector)
            finally:
                self._close()
        return self._outcome()

    def _loop(self, selector: selectors.BaseSelector) -> None:
        beat_at = 0.0
        while not self._ended():
            for key, _ in selector.select(min(0.2, self._watchdog.beat_s)):
                self._read(key.data, selector)
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + self._watchdog.beat_s
                self._tell(Verb.BEAT)
                self._check_stop()
                self._beat(self._snapshot())
            self._check_silence(now)
            if self._kill_at is not None and now >= self._kill_at and self._killed_at is None:
                # Its peers may miss a host sooner than its silence is long enough to count.
                self._look_for_more(now)
                self._killed_at = now
                self._tell(Verb.KILL)
        self._beat(self._snapshot())

    def _ended(self) -> bool:
        if self._over >= set(self._hosts) or all(channel.closed for channel in self._channels):
            return True
        return self._killed_at is not None and time.monotonic() > self._killed_at + _ENDED_S

    def _read(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        lines = channel.lines()
        if lines is None:
            selector.unregister(channel.descriptor)
            self._check_closed(channel)
            return
        for line in lines:
            try:
                event = Event.from_json(line, source="agent")
            except ContractError:
                continue  # what srun or a library says between the lines
            if event.attempt == self._orders.attempt and event.host in self._hosts:
                channel.hosts.add(event.host)
                self._heard[event.host] = time.monotonic()
                self._heard_wall[event.host] = time.time()
                self._hear(event)

    def _hear(self, event: Event) -> None:
        for state in event.ranks:
            self._saw(state, event.time)
        match event.kind:
            case EventKind.READY:
                self._ready[event.host] = time.time()
                self._check_clock(event)
            case EventKind.EXITED:
                for ended in event.exits:
                    self._exited(ended)
            case EventKind.NOTICE:
                self._ask_to_stop(Stop.ENGINE)
            case EventKind.STUCK:
                self._stuck(event)
            case EventKind.STACKS:
                self._stacks |= {int(rank): text for rank, text in event.stacks.items()}
                self._stacks_from.add(event.host)
                stuck = any(fault.cause == "Stuck" for fault in self._faults)
                if stuck and self._stacks_from | self._over >= set(self._hosts):
                    self._end_in(0.0)
            case EventKind.UNHEALTHY:
                self._unhealthy(event)
            case EventKind.DONE:
                self._over.add(event.host)

    def _check_clock(self, event: Event) -> None:
        """Times of hosts are compared to find a first cause; what is heard is at most late."""
        ahead = event.time - time.time()
        if abs(ahead) > _CLOCK_S:
            message = f"its clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
            self._note("unhealthy", host=event.host, message=message)

    def _saw(self, state: RankState, at: float) -> None:
        self._states[state.rank] = state
        if state.phase is not None:
            self._entered.setdefault(state.rank, {}).setdefault(state.phase, at - state.idle_s)

    def _exited(self, ended: RankExit) -> None:
        """Keeps an exit, unless the supervisor itself caused it."""
        if ended.code == ExitCode.DONE:
            self._states.pop(ended.rank, None)
        if self._killed_at is not None and ended.code == 128 + 9:
            return
        self._exits[ended.rank] = ended
        if ended.code == ExitCode.DONE or (ended.code == ExitCode.PREEMPTED and self._stop):
            return
        self._trouble(ended.host, cause=ended.cause, message=ended.message, rank=ended.rank)
        if not ended.cascade:
            self._end_in(_SETTLE_KNOWN_S)
            return
        if self._kill_at is None:
            self._tell(Verb.DUMP)  # whoever failed may still live
        self._end_in(_SETTLE_S)

    def _stuck(self, event: Event) -> None:
        if self._kill_at is not None or self._stop is not None:
            return
        self._trouble(event.host, cause="Stuck", message=event.message)
        longest = max(state.idle_s for state in event.ranks)
        fault = Fault(
            code=ExitCode.HANG,
            host=event.host,
            cause="Stuck",
            message=event.message,
            time=event.time - longest,
        )
        self._faults.append(fault)
        self._tell(Verb.DUMP)
        self._end_in(_STACKS_S)

    def _unhealthy(self, event: Event) -> None:
        if not event.drain:
            self._note("unhealthy", host=event.host, message=event.message)
            return
        self._fault(event.host, cause="Unhealthy", message=event.message, at=event.time, ban=True)

    def _check_closed(self, channel: Channel) -> None:
        """Agents that end without saying so have died, or their host has."""
        self._look_for_unheard()
        for name in sorted(channel.hosts - self._over):
            self._lost(self._hosts[name])

    def _check_silence(self, now: float) -> None:
        for name, host in self._hosts.items():
            patience = self._watchdog.lost_after_s if name in self._ready else _READY_S
            if name not in self._over and now - self._heard[name] > patience:
                self._lost(host)
                self._look_for_more(now)

    def _look_for_more(self, now: float) -> None:
        """What cut one host off may have cut off others, which are not silent for as long yet."""
        for name, host in self._hosts.items():
            silent = now - self._heard[name] > _MISSED_BEATS * self._watchdog.beat_s
            if name not in self._over and silent and not self._gang.reachable(host):
                self._lost(host)

    def _look_for_unheard(self) -> None:
        """Whoever carries the lines of all hosts ends, too, when one of them starts no agent.

        Only where nothing else ended the attempt; if all hosts answer, it was the carrier itself.
        """
        self._check_stop()  # it may have come since the last beat
        own = any(not each.cascade and each.code != ExitCode.DONE for each in self._exits.values())
        if self._stop or self._faults or own:
            return
        heard = self._over.union(*(channel.hosts for channel in self._channels))
        for name, host in self._hosts.items():
            if name not in heard and not self._gang.reachable(host):
                self._over.add(name)
                message = f"no agent could be started on {name}, which does not answer"
                self._fault(name, cause="HostLost", message=message, at=self._began, ban=True)

    def _lost(self, host: Host) -> None:
        self._over.add(host.name)
        if self._killed_at is not None:
            return
        at = self._heard_wall.get(host.name, time.time())
        if self._gang.reachable(host):
            message = f"the agent of {host.name} has died; the host itself answers"
            self._fault(host.name, cause="AgentLost", message=message, at=at)
        else:
            message = f"{host.name} is silent and does not answer"
            self._fault(host.name, cause="HostLost", message=message, at=at, ban=True)

    def _fault(self, host: str, *, cause: str, message: str, at: float, ban: bool = False) -> None:
        self._trouble(host, cause=cause, message=message)
        if ban:
            self._banned.add(host)
        code = ExitCode.INFRASTRUCTURE
        self._faults.append(Fault(code=code, host=host, cause=cause, message=message, time=at))
        self._end_in(_SETTLE_LOST_S)

    def _trouble(self, host: str, *, cause: str, message: str, rank: int | None = None) -> None:
        """Writes down the first sign of trouble, which need not be its cause."""
        if not self._troubled:
            self._troubled = True
            self._note("incident", host=host, rank=rank, cause=cause, message=message)

    def _end_in(self, seconds: float) -> None:
        """All processes are killed then, at the latest: a broken gang only waits for itself."""
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _check_stop(self) -> None:
        wanted = self._wanted()
        if wanted is not None:
            self._ask_to_stop(wanted)

    def _ask_to_stop(self, why: Stop) -> None:
        if self._stop is None:
            self._stop = why
            self._tell(Verb.STOP)

    def _tell(self, verb: Verb) -> None:
        line = Command(verb=verb).to_json()
        for channel in self._channels:
            channel.send(line)

    def _snapshot(self) -> Snapshot:
        ready = max(self._ready.values()) if len(self._ready) == len(self._hosts) else None
        phases = {phase for entered in self._entered.values() for phase in entered}
        entered = {
            phase: max(ranks[phase] for ranks in self._entered.values() if phase in ranks)
            for phase in phases
        }
        living = tuple(state for _, state in sorted(self._states.items()))
        return Snapshot(ranks=living, entered=entered, ready=ready)

    def _close(self) -> None:
        for channel in self._channels:
            channel.hang_up()
        # Whoever carries the lines of a lost host, too, would wait for it for minutes.
        clean = self._killed_at is None and not self._faults
        until = time.monotonic() + (_LEFT_S if clean else _LEFT_BROKEN_S)
        for channel in self._channels:
            channel.close(timeout_s=max(0.0, until - time.monotonic()))

    def _outcome(self) -> Outcome:
        evidence = Evidence(
            attempt=self._orders.attempt,
            ranks=len(self._orders.places),
            exits=self._exits,
            faults=self._faults,
            states=self._states,
            stacks=self._stacks,
            pause=self._watchdog.lost_after_s + _SETTLE_S,
        )
        reason = classify.reason(evidence)
        if self._stop is not None and self._stopped_by_kill():
            reason = _unsaved(reason, self._job.spec.runtime.grace_s, stop=self._stop)
        return Outcome(
            reason=reason,
            banned=tuple(sorted(self._banned)),
            displaced=self._stop in (Stop.ENGINE, Stop.WALLTIME) and not self._faults,
            stop=self._stop,
            stacks=self._stacks,
        )

    def _stopped_by_kill(self) -> bool:
        """Whether processes that were asked to stop had to be killed, or died of the signal."""
        codes = {ended.code for ended in self._exits.values()}
        return (
            not self._faults
            and bool(codes)
            and codes <= {128 + signal.SIGKILL, 128 + signal.SIGTERM}
        )


def _unsaved(reason: Reason, grace_s: float, *, stop: Stop) -> Reason:
    """A stop that saved nothing is still a stop: the run goes on from what was saved before."""
    killed = reason.code == 128 + signal.SIGKILL
    how = f"processes had to be killed after {grace_s:g} s" if killed else "nothing was saved"
    message = f"stopped on request ({stop}); {how}"
    return dataclasses.replace(reason, message=message, cause="SIGTERM", rank=None, host="")
