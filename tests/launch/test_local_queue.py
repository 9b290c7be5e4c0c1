"""This machine's devices: all or none, never too many, in order, and never lost with a holder."""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

import pytest

from launch import ranks
from launch.engines.local_queue import Ask, LocalQueue
from launch.spec import Priority


def ask(run: str, devices: int, *, team: str = "a", priority: Priority = Priority.NORMAL) -> Ask:
    return Ask(run, team, priority, devices)


@pytest.fixture
def queue(tmp_path) -> LocalQueue:
    return LocalQueue(tmp_path / "queue.sqlite", capacity=8)


def test_all_or_none(queue):
    assert len(queue.ask(ask("one", 6)).held) == 6
    waiting = queue.ask(ask("two", 6))
    assert waiting.held == ()
    assert "2 are free" in waiting.why
    assert "one" in waiting.why
    queue.leave("one")
    assert len(queue.ask(ask("two", 6)).held) == 6


def test_asking_again_gives_the_same(queue):
    held = queue.ask(ask("one", 3)).held
    assert queue.ask(ask("one", 3)).held == held


def test_holders_never_share_a_device(queue):
    held = [queue.ask(ask(name, 2)).held for name in "abcd"]
    assert sorted(device for each in held for device in each) == list(range(8))


@pytest.mark.parametrize("devices", [0, -1, 9])
def test_what_can_never_be_is_refused(queue, devices):
    with pytest.raises(ValueError, match="this machine has 8"):
        queue.ask(ask("one", devices))


def test_priority_goes_first(queue):
    queue.ask(ask("holder", 8))
    for priority in reversed(Priority):
        queue.ask(ask(priority.value, 8, priority=priority))
    queue.leave("holder")
    order = []
    while claims := queue.line():
        for claim in claims:
            if queue.ask(ask(claim["run"], 8, priority=Priority(claim["run"]))).held:
                order.append(claim["run"])
                queue.leave(claim["run"])
    assert order == [priority.value for priority in Priority]


def test_the_first_in_line_is_not_overtaken_by_a_smaller_one(queue):
    queue.ask(ask("holder", 4))
    assert not queue.ask(ask("large", 8)).held
    assert "1 before it" in queue.ask(ask("small", 1)).why


def test_the_team_that_used_less_goes_first(queue, monkeypatch):
    queue.ask(ask("greedy1", 8, team="greedy"))
    later = time.time() + 60
    monkeypatch.setattr("time.time", lambda: later)
    queue.ask(ask("greedy2", 8, team="greedy"))
    queue.ask(ask("modest1", 8, team="modest"))
    queue.leave("greedy1")
    assert queue.ask(ask("greedy2", 8, team="greedy")).held == ()
    assert queue.ask(ask("modest1", 8, team="modest")).held


def test_a_dead_holder_gives_its_devices_back(queue):
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    queue.ask(ask("one", 8), pid=living.pid)
    assert queue.ask(ask("two", 8)).held == ()
    living.kill()
    living.wait()
    dead.wait()
    assert queue.ask(ask("two", 8)).held


def test_what_a_dead_holder_had_started_keeps_its_devices_until_it_ends(queue, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    agents = tmp_path / "agents.pids"
    ranks.write_pids(agents, [agent.pid])
    one = dataclasses.replace(ask("one", 8), agents=agents)
    queue.ask(one, pid=holder.pid)
    holder.kill()
    holder.wait()
    assert queue.ask(ask("two", 8)).held == (), "two runs would use one device"
    assert queue.ask(one).held, "its next supervisor goes on"
    agent.kill()
    agent.wait()
    assert queue.ask(ask("two", 8)).held == (), "the next supervisor holds them now"
    queue.leave("one")
    assert queue.ask(ask("two", 8)).held


def test_a_file_of_before_is_still_read(tmp_path):
    path = tmp_path / "queue.sqlite"
    LocalQueue(path, capacity=8).ask(ask("one", 8))
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("ALTER TABLE claims DROP COLUMN agents")
    assert LocalQueue(path, capacity=8).ask(ask("two", 8)).held == ()


def test_a_preemptible_holder_is_asked_to_leave(queue, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_MIN_RUN_S", "0")
    queue.ask(ask("spot", 6, priority=Priority.PREEMPTIBLE))
    queue.ask(ask("safe", 2))
    queue.ask(ask("urgent", 8, priority=Priority.HIGH))
    assert queue.wanted_by("spot") is None, "leaving would not make room"
    queue.leave("safe")
    queue.ask(ask("urgent", 8, priority=Priority.HIGH))
    assert queue.wanted_by("spot") == "urgent"


def test_a_preemptible_holder_may_get_somewhere_first(queue, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_MIN_RUN_S", "60")
    queue.ask(ask("spot", 8, priority=Priority.PREEMPTIBLE))
    queue.ask(ask("urgent", 8))
    assert queue.wanted_by("spot") is None


def take_turns(path: pathlib.Path, worker: int, times: int) -> None:
    """Holds 6 of 8 devices again and again; a file per holder shows who holds at a time."""
    queue = LocalQueue(path, capacity=8)
    holders = path.parent / "holders"
    for number in range(times):
        run = f"{worker}-{number}"
        while not (held := queue.ask(ask(run, 6, team=str(worker))).held):
            time.sleep(0)
        assert len(held) == 6, "partial"
        with (holders).open("a") as file:
            file.write(f"+{run}\n")
            file.flush()
            file.write(f"-{run}\n")
        queue.leave(run)


def test_a_thousand_attempts_at_once_are_never_partial_and_never_too_many(tmp_path):
    path = tmp_path / "queue.sqlite"
    LocalQueue(path, capacity=8)
    workers, times = 10, 100
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(take_turns, path, worker, times) for worker in range(workers)]
        for job in jobs:
            job.result()
    lines = (tmp_path / "holders").read_text().split()
    assert len(lines) == 2 * workers * times
    for taken, left in zip(lines[::2], lines[1::2], strict=True):
        assert taken[1:] == left[1:], "two held at a time"
    assert LocalQueue(path, capacity=8).line() == []


def test_a_writer_that_is_stuck_holds_up_nobody_who_runs(queue, tmp_path):
    queue.ask(ask("one", 8))
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.sqlite")) as stuck:
        stuck.execute("BEGIN EXCLUSIVE")
        assert queue.wanted_by("one") is None


def test_a_full_disk_is_named(queue, monkeypatch):
    def full(base: sqlite3.Connection) -> None:
        base.execute("ROLLBACK")  # as SQLite does
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(queue, "_reclaim", full)
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        queue.ask(ask("one", 8))


def test_the_file_survives_a_kill_in_the_middle(queue, tmp_path):
    code = (
        "import sys, os, signal, pathlib\n"
        "from launch.engines.local_queue import Ask, LocalQueue\n"
        "from launch.spec import Priority\n"
        "queue = LocalQueue(pathlib.Path(sys.argv[1]), capacity=8)\n"
        "with queue._transaction() as base:\n"
        "    base.execute('DELETE FROM claims')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    queue.ask(ask("one", 5))
    root = pathlib.Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "queue.sqlite"],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
        timeout=60,
    )
    assert [claim["run"] for claim in queue.line()] == ["one"]
