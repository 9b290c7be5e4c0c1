"""Whatever happens to a process of a run: the run ends as if nothing had, and says what it was."""

import os
import signal
import time

import pytest

from launch.exit_codes import ExitCode, RetryClass
from launch.records import Phase
from launch.run_status import RunState
from launch.spec import Budgets


@pytest.mark.parametrize(
    ("fault", "rank", "code", "retry", "cause"),
    [
        ("kill@7:1", 1, 137, RetryClass.SIGNAL, "SIGKILL"),
        ("kill@7:0", 0, 137, RetryClass.SIGNAL, "SIGKILL"),
        ("kill@1:2", 2, 137, RetryClass.SIGNAL, "SIGKILL"),
        ("abort@12:1", 1, 134, RetryClass.SIGNAL, "SIGABRT"),
        ("raise@7:2", 2, ExitCode.EXCEPTION, RetryClass.EXCEPTION, "ArithmeticError"),
        ("exit=1@7:1", 1, 1, RetryClass.EXCEPTION, "ExitCode"),
        ("exit=0@7:1", None, ExitCode.INFRASTRUCTURE, RetryClass.INFRASTRUCTURE, "PeerLost"),
        ("exit=85@7:1", 1, ExitCode.INFRASTRUCTURE, RetryClass.INFRASTRUCTURE, "ExitCode"),
        ("exit=97@7:1", 1, ExitCode.NUMERICS, RetryClass.NUMERICS, "ExitCode"),
        ("import@0:2", 2, 1, RetryClass.EXCEPTION, "ExitCode"),
        ("sleep@7:1", 1, ExitCode.HANG, RetryClass.HANG, "Stuck"),
        ("sleep@13:0", 0, ExitCode.HANG, RetryClass.HANG, "Stuck"),
        ("stop@7:2", 2, ExitCode.HANG, RetryClass.HANG, "Stuck"),
    ],
)
def test_a_fault_of_one_rank_is_named_and_survived(chaos, fault, rank, code, retry, cause):
    run = chaos(hosts=3, faults=[fault])
    assert run.run() == 0, run.story()
    run.check_end()
    reason, done = run.reasons()
    assert (reason.rank, reason.code, reason.retry) == (rank, code, retry), run.story()
    assert reason.cause == cause
    assert done.code == 0
    if rank is not None:
        assert reason.host.endswith(f"-{rank}")


def test_a_missing_module_is_in_the_reason(chaos):
    run = chaos(faults=["import@0:1"])
    assert run.run() == 0
    assert "a_module_that_is_not_there" in run.reasons()[0].message


def test_a_stuck_run_leaves_stacks_and_says_where_the_culprit_was(chaos):
    run = chaos(hosts=3, faults=["sleep@7:2"])
    assert run.run() == 0
    folder = run.folder / "attempts/1/stacks"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert "in strike" in texts["rank2.txt"]
    assert "in all_reduce" in texts["rank0.txt"]
    assert "strike" in run.reasons()[0].message


def test_a_slow_start_is_no_hang(chaos):
    run = chaos(faults=["slow=5@0:1"])
    assert run.run() == 0, run.story()
    assert len(run.reasons()) == 1
    run.check_end()


def test_a_full_disk_is_held_for_a_person(chaos):
    run = chaos(faults=["disk@7:0"])
    assert run.run() == ExitCode.HOLD
    assert run.status().state is RunState.HELD
    assert "No space left" in run.status().next_action


@pytest.mark.parametrize("code", [64, 65, 71])
def test_an_error_of_the_user_is_never_retried(chaos, code):
    run = chaos(faults=[f"exit={code}@3:1:any"])
    assert run.run() == code, run.story()
    assert len(run.events("attempt_planned")) == 1
    assert run.status().state is RunState.FAILED


def test_a_command_that_is_not_there_fails_at_once(chaos):
    run = chaos()
    work = run.spec.workload.__class__(command=("/nowhere/at/all", "x"))
    run.spec = run.spec.__class__(**{**vars(run.spec), "workload": work})
    assert run.run() == ExitCode.CONFIGURATION
    assert "/nowhere/at/all" in run.status().next_action


def test_the_same_exception_twice_at_one_step_is_held(chaos):
    run = chaos(faults=["raise@7:1:any"])
    assert run.run() == ExitCode.HOLD
    assert len(run.events("attempt_planned")) == 2
    assert "step 6" in run.events("held")[0].details["why"]


def test_attempts_that_save_nothing_new_are_held(chaos):
    run = chaos(faults=["kill@7:1:any"])
    assert run.run() == ExitCode.NO_PROGRESS
    assert len(run.events("attempt_planned")) == 4  # the first has saved step 5


def test_a_budget_is_not_exceeded(chaos):
    faults = [f"kill@{6 + 5 * n}:1:{n + 1}" for n in range(3)]
    run = chaos(faults=faults, budgets=Budgets(signal=2), steps=30)
    assert run.run() == ExitCode.HOLD
    assert len(run.events("attempt_planned")) == 3
    assert "2 are allowed" in run.events("held")[0].details["why"]


def test_many_kills_in_one_run(chaos):
    faults = [f"kill@{4 + 3 * n}:{n % 2}:{n + 1}" for n in range(8)]
    run = chaos(faults=faults, steps=30, save_every=2)
    assert run.run() == 0, run.story()
    run.check_end()
    assert len(run.events("attempt_planned")) == 9


def test_an_agent_that_is_killed_takes_its_ranks_with_it(chaos):
    run = chaos(faults=["vanish@7:1"])
    assert run.run() == 0, run.story()
    run.check_end()
    reason = run.reasons()[0]
    assert (reason.cause, reason.code) == ("AgentLost", ExitCode.INFRASTRUCTURE)
    assert reason.host.endswith("-1")


def rank_pids(run) -> list[int]:
    """Process ids of the living ranks, from their agents' files."""
    found = []
    for path in (run.folder / "state").glob("lockstep-*/*/*/pids"):
        found += [int(line.split()[0]) for line in path.read_text().splitlines()]
    return found


@pytest.mark.parametrize("which", ["one", "all"])
def test_sigterm_to_ranks_saves_the_step_and_goes_on(chaos, which):
    run = chaos(steps=60, step_s=0.05, save_every=1000)
    process = run.start()
    run.wait_for_step(5)
    pids = rank_pids(run)
    for pid in pids[: 1 if which == "one" else None]:
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 0, run.story()
    run.check_end()
    first = run.reasons()[0]
    assert first.code == ExitCode.PREEMPTED
    assert first.saved_step == first.step
    values = (run.folder / "values.jsonl").read_text().splitlines()
    assert len(values) == 60, "a step was computed twice"


def test_sigterm_to_an_agent_stops_the_whole_gang_and_requeues(chaos):
    run = chaos(steps=60, step_s=0.05, save_every=1000)
    process = run.start()
    run.wait_for_step(5)
    agents = (run.folder / "agents.pids").read_text().splitlines()
    os.kill(int(agents[1].split()[0]), signal.SIGTERM)
    assert process.wait(60) == 0, run.story()
    assert run.events("decided")[0].details["action"] == "requeue"
    run.check_end()


def test_a_dead_supervisor_is_succeeded_and_nothing_is_computed_twice(chaos):
    run = chaos(steps=60, step_s=0.05, save_every=1000)
    process = run.start()
    run.wait_for_step(5)
    os.kill(run.status().pid, signal.SIGKILL)
    assert process.wait(60) == 0, run.story()
    run.check_end()
    assert run.reasons()[0].cause == "SupervisorLost"
    values = (run.folder / "values.jsonl").read_text().splitlines()
    assert len(values) == 60, "the ranks did not save when their supervisor was gone"


def test_keeper_and_supervisor_dead_leaves_nothing_running_and_resumes(chaos):
    run = chaos(steps=60, step_s=0.05, save_every=1000)
    keeper = run.start()
    run.wait_for_step(5)
    pids = rank_pids(run)
    keeper.kill()
    keeper.wait()
    os.kill(run.status().pid, signal.SIGKILL)
    run.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert run.run() == 0, run.story()
    run.check_end()


@pytest.mark.parametrize("kind", ["kill", "sleep", "raise"])
def test_detection_is_written_and_quick(chaos, kind):
    run = chaos(faults=[f"{kind}@7:1"])
    assert run.run() == 0
    [recovered] = run.events("recovered")
    timeline = recovered.details["timeline"]
    parts = [seconds for name, seconds in timeline.items() if name != "total_s"]
    assert sum(parts) == pytest.approx(timeline["total_s"], abs=0.01)
    assert set(timeline) == {
        "detect_s",
        "stop_s",
        "decide_s",
        "wait_s",
        "restart_s",
        "start_s",
        "restore_s",
        "first_step_s",
        "total_s",
    }


def test_progress_reaches_the_status_file(chaos):
    run = chaos(steps=200, step_s=0.05)
    run.start()
    run.wait_for_step(6)
    status = run.status()
    assert status.state is RunState.RUNNING
    assert status.phase in (Phase.STEP, Phase.SAVE)
    assert status.loss == pytest.approx(1 / status.ranks[0].step)
    assert [state.rank for state in status.ranks] == [0, 1]
    assert time.time() - status.time < 30
