"""One attempt against agents that are silent, late, wrong or gone."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import pytest

from launch.attempt import AttemptRun, Stop
from launch.channel import Channel
from launch.exit_codes import ExitCode
from launch.orders import Host, Orders, Place
from launch.spec import (
    Checkpoint,
    Job,
    JobSpec,
    Owner,
    Recovery,
    Resources,
    Seconds,
    Watchdog,
    Workload,
)

AGENT = pathlib.Path(__file__).with_name("scripted_agent.py")
READY = 'say {"kind": "ready", "host": "HOST"}'
DONE = 'say {"kind": "done", "host": "HOST"}'


@dataclasses.dataclass
class ScriptedGang:
    """Hosts whose agents follow scripts."""

    scripts: dict[str, list[str]]
    unreachable: tuple[str, ...] = ()
    elsewhere: bool = True
    carrier: list[str] | None = None
    """Script of the one process that carries the lines of all, as srun does."""

    def start(self, orders: Orders) -> list[subprocess.Popen[bytes]]:
        if self.carrier is not None:
            return [_agent(self.carrier)]
        return [
            _agent([line.replace("HOST", host.name) for line in self.scripts[host.name]])
            for host in orders.hosts
        ]

    def reachable(self, host: Host) -> bool:
        return host.name not in self.unreachable


def _agent(script: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, AGENT, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


class Attempt:
    """An attempt on hosts h0, h1, ... with one rank each."""

    def __init__(
        self, *scripts: list[str], unreachable: tuple[str, ...] = (), lost_after_s: float = 1.0
    ) -> None:
        names = [f"h{index}" for index in range(len(scripts))]
        self.gang = ScriptedGang(dict(zip(names, scripts, strict=True)), unreachable)
        watchdog = Watchdog(beat_s=Seconds(0.1), lost_after_s=Seconds(lost_after_s))
        self.job = Job(
            run_id="r",
            spec=JobSpec(
                name="n",
                owner=Owner(team="t"),
                workload=Workload(command=("true",)),
                resources=Resources(accelerator="cpu", hosts=len(scripts)),
                checkpoint=Checkpoint(root="/r"),
                recovery=Recovery(watchdog=watchdog),
            ),
            engine="local",
            job_dir="/r",
            code_dir="/",
            python=sys.executable,
        )
        self.orders = Orders(
            run_id="r",
            attempt=3,
            job_dir="/r",
            coordinator="127.0.0.1:1",
            hosts=tuple(Host(name=name, address=name) for name in names),
            places=tuple(Place(rank=rank, host=name) for rank, name in enumerate(names)),
        )
        self.notes: list[tuple[str, dict]] = []
        self.wanted: Stop | None = None

    def run(self):
        return AttemptRun(
            self.job,
            self.orders,
            self.gang,
            wanted=lambda: self.wanted,
            beat=lambda snapshot: None,
            note=lambda event, **details: self.notes.append((event, details)),
        ).run()


def exited(rank: int, code: int, **more: object) -> str:
    record = {
        "version": 1,
        "attempt": 3,
        "rank": rank,
        "host": f"h{rank}",
        "pid": 1,
        "code": code,
        "cause": "X",
        "message": "m",
        "time": time.time(),
    }
    event = {"kind": "exited", "host": f"h{rank}", "exits": [record | more]}
    return f"say {json.dumps(event)}"


def test_all_done_is_done():
    outcome = Attempt([READY, exited(0, 0), DONE], [READY, exited(1, 0), DONE]).run()
    assert outcome.reason.code == 0


def test_agents_end_together_and_not_one_after_the_other(monkeypatch):
    told: list[str] = []
    for name in ("hang_up", "close"):
        method = getattr(Channel, name)

        def noting(channel, *, name=name, method=method, **limits):
            told.append(name)
            method(channel, **limits)

        monkeypatch.setattr(Channel, name, noting)
    Attempt([READY, exited(0, 0), DONE], [READY, exited(1, 0), DONE]).run()
    assert told == ["hang_up", "hang_up", "close", "close"]


def test_what_others_print_between_the_lines_is_no_event():
    noise = [
        "garbage srun: Node failure on h1",
        "garbage {",
        "garbage []",
        'garbage {"version": 9}',
    ]
    outcome = Attempt([READY, *noise, exited(0, 0), DONE]).run()
    assert outcome.reason.code == 0


def test_events_of_another_attempt_or_host_are_not_heard():
    lies = [
        'say {"kind": "done", "host": "h0", "attempt": 2}',
        'say {"kind": "unhealthy", "host": "nobody", "drain": true, "message": "x"}',
    ]
    outcome = Attempt([READY, *lies, exited(0, 70, cause="Real"), DONE]).run()
    assert outcome.reason.cause == "Real"


def test_silence_of_a_host_that_does_not_answer_is_its_loss():
    outcome = Attempt([READY, "hear kill HOST", DONE], [READY, "wait"], unreachable=("h1",)).run()
    assert (outcome.reason.cause, outcome.reason.host) == ("HostLost", "h1")
    assert outcome.banned == ("h1",)


def test_silence_of_a_host_that_answers_is_the_loss_of_its_agent():
    outcome = Attempt([READY, "hear kill HOST", DONE], [READY, "wait"]).run()
    assert (outcome.reason.cause, outcome.reason.host) == ("AgentLost", "h1")
    assert outcome.banned == ()


def test_hosts_that_are_cut_off_together_are_lost_together():
    silent = [[READY, "wait"] for _ in range(3)]
    attempt = Attempt([READY, "hear kill HOST", DONE], *silent, unreachable=("h1", "h2", "h3"))
    assert attempt.run().banned == ("h1", "h2", "h3")


@pytest.mark.parametrize("code", [85, 70])
def test_a_host_is_lost_although_its_peers_end_before_its_silence_is_long_enough(code: int):
    ended = [READY, exited(0, code, cascade=code == 85), "hear kill HOST", DONE]
    attempt = Attempt(ended, [READY, "wait"], unreachable=("h1",), lost_after_s=60.0)
    attempt_ended = attempt.run()
    assert attempt_ended.banned == ("h1",)
    if code == 85:  # one that failed by itself before is a cause of its own
        assert (attempt_ended.reason.cause, attempt_ended.reason.host) == ("HostLost", "h1")


@pytest.mark.parametrize("spoke", [(), ("h0", "h2")], ids=["none spoke", "others spoke"])
def test_a_host_that_cannot_be_started_on_is_lost(spoke: tuple[str, ...]):
    attempt = Attempt([], [], [], unreachable=("h1",))
    attempt.gang.carrier = [READY.replace("HOST", name) for name in spoke]
    outcome = attempt.run()
    assert (outcome.reason.cause, outcome.reason.host) == ("HostLost", "h1")
    assert outcome.banned == ("h1",)


@pytest.mark.parametrize("end", [[exited(0, 0)], [exited(0, 85, cascade=True)]], ids=["0", "85"])
def test_ends_of_others_do_not_hide_a_host_that_cannot_be_started_on(end: list[str]):
    attempt = Attempt([], [], unreachable=("h1",))
    attempt.gang.carrier = [*end, DONE.replace("HOST", "h0")]
    outcome = attempt.run()
    assert (outcome.reason.host, outcome.banned) == ("h1", ("h1",))


@pytest.mark.parametrize("carrier", [[], ["hear stop h9"]], ids=["dead", "living"])
@pytest.mark.parametrize("stop", list(Stop))
def test_a_stop_before_the_first_word_blames_no_host(stop: Stop, carrier: list[str]):
    attempt = Attempt([], [], unreachable=("h1",))
    attempt.gang.carrier = carrier
    attempt.wanted = stop
    outcome = attempt.run()
    assert (outcome.reason.cause, outcome.banned) == ("NoWord", ())


def test_a_host_that_was_not_started_on_does_not_hide_why_another_failed():
    attempt = Attempt([], [], unreachable=("h1",))
    attempt.gang.carrier = [exited(0, 64), DONE.replace("HOST", "h0")]
    outcome = attempt.run()
    assert (outcome.reason.code, outcome.banned) == (64, ())


def test_a_start_that_fails_on_hosts_that_answer_blames_none():
    attempt = Attempt([], [])
    attempt.gang.carrier = []
    outcome = attempt.run()
    assert (outcome.reason.cause, outcome.banned) == ("NoWord", ())


def test_an_agent_that_dies_before_a_word_is_named():
    outcome = Attempt([READY, "hear kill HOST", DONE], ["garbage no"]).run()
    assert (outcome.reason.cause, outcome.reason.host) == ("AgentLost", "h1")


def test_a_broken_device_ends_the_attempt_and_a_hot_one_does_not():
    hot = 'say {"kind": "unhealthy", "host": "h0", "message": "hot"}'
    broken = 'say {"kind": "unhealthy", "host": "h1", "message": "Xid 79", "drain": true}'
    attempt = Attempt([READY, hot, "hear kill HOST", DONE], [READY, broken, "hear kill HOST", DONE])
    outcome = attempt.run()
    assert (outcome.reason.host, outcome.banned) == ("h1", ("h1",))
    assert ("unhealthy", {"host": "h0", "message": "hot"}) in attempt.notes


@pytest.mark.parametrize(("off", "word"), [(3600, "ahead"), (-3600, "behind")])
def test_a_wrong_clock_is_noticed(off, word):
    late = f'say {{"kind": "ready", "host": "h0", "time": {time.time() + off}}}'
    attempt = Attempt([late, exited(0, 0), DONE])
    attempt.run()
    [(event, details)] = attempt.notes
    assert (event, details["host"]) == ("unhealthy", "h0")
    assert word in details["message"]


def test_a_stop_that_was_asked_for_is_told_with_its_reason():
    attempt = Attempt([READY, "hear stop HOST", exited(0, 75, saved_step=9), DONE])
    attempt.wanted = Stop.ENGINE
    outcome = attempt.run()
    assert (outcome.reason.code, outcome.stop) == (ExitCode.PREEMPTED, Stop.ENGINE)
    assert outcome.displaced
    assert outcome.reason.saved_step == 9


def test_processes_that_did_not_leave_within_the_grace_have_saved_nothing():
    attempt = Attempt([READY, "hear stop HOST", exited(0, 137), DONE])
    attempt.wanted = Stop.DRAIN
    outcome = attempt.run()
    assert "had to be killed after 120 s" in outcome.reason.message
    assert outcome.stop is Stop.DRAIN
