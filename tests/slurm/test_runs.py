"""Runs on a real Slurm: whatever happens to a process, the run ends as if nothing had."""

import pytest

from launch.engines.engine import EngineState
from launch.exit_codes import ExitCode, RetryClass
from launch.run_status import RunState
from launch.spec import Placement, Seconds, SlurmOptions, TopologyLevel
from tests.slurm.lab import Lab, wait_until


def test_a_gang_runs_to_its_end_and_its_code_is_the_jobs(new_run) -> None:
    run = new_run()
    assert run.finish() == 0, run.story()
    run.check_end()
    run.wait_for_state("COMPLETED")
    standing = run.standing()
    assert (standing.state, standing.exit_code) == (EngineState.ENDED, 0)


def test_a_gang_waits_for_all_its_hosts_and_takes_none_before(slurm: Lab, new_run) -> None:
    other = slurm.run(["sbatch", "--parsable", "-N1", "-wn2", "-o/dev/null", "--wrap=sleep 300"])
    run = new_run(hosts=4, steps=5)
    run.submit()
    wait_until(lambda: run.show("Reason") in ("Resources", "Priority"), what="a reason")
    assert run.standing().state is EngineState.QUEUED
    assert run.show("NodeList") in ("", "(null)")
    slurm.run(["scancel", other.stdout.strip()])
    assert run.wait_for_end() == 0, run.story()


def test_a_killed_rank_is_named_and_the_gang_starts_again_in_its_allocation(new_run) -> None:
    run = new_run(faults=["kill@7:1"])
    assert run.finish() == 0, run.story()
    run.check_end()
    reason, _ = run.reasons()
    assert (reason.rank, reason.code, reason.host) == (1, 137, run.rank_host(1))
    assert len(run.job_ids()) == 1


def test_stacks_of_a_stuck_rank_come_whole_through_srun(new_run) -> None:
    run = new_run(faults=["sleep@7:2"])
    assert run.finish() == 0, run.story()
    run.check_end()
    folder = run.folder / "attempts/1/stacks"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert "in strike" in texts["rank2.txt"]
    assert "in all_reduce" in texts["rank0.txt"]
    assert "in all_reduce" in texts["rank1.txt"]
    assert run.reasons()[0].retry is RetryClass.HANG


@pytest.mark.parametrize(
    ("code", "state"), [(ExitCode.CONFIGURATION, RunState.FAILED), (ExitCode.HOLD, RunState.HELD)]
)
def test_an_end_that_no_retry_can_help_is_the_jobs_exit_code(new_run, code, state) -> None:
    run = new_run(faults=[f"exit={code.value}@7:1"])
    assert run.finish() == code, run.story()
    run.wait_for_state("FAILED")
    assert run.show("ExitCode") == f"{code.value}:0"
    status = run.status()
    assert status is not None
    assert status.state is state
    assert len(run.job_ids()) == 1


def test_a_dead_supervisor_has_a_successor_in_the_same_allocation(slurm: Lab, new_run) -> None:
    run = new_run(steps=120)
    run.submit()
    run.wait_for_step(7)
    batch_host = slurm.node(run.show("BatchHost"))
    slurm.run(["kill", "-KILL", str(run.status().pid)], on=batch_host)
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert run.reasons()[0].cause == "SupervisorLost"
    assert len(run.job_ids()) == 1


def test_a_lost_controller_does_not_disturb_a_run(slurm: Lab, new_run) -> None:
    run = new_run(steps=220, faults=["kill@200:1"])
    run.submit()
    run.wait_for_step(5)
    slurm.wait_until_saved()
    slurm.kill_controller()
    run.wait_for(lambda: run.events("attempt_ended"))
    slurm.start_controller()
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert run.reasons()[0].code == 137
    assert len(run.job_ids()) == 1


def test_hosts_of_a_rack_stand_together(slurm: Lab, new_run) -> None:
    run = new_run(
        hosts=2,
        steps=5,
        options=SlurmOptions(exclude=("n1",)),
        topology={"level": TopologyLevel.RACK, "placement": Placement.REQUIRED},
    )
    assert run.finish() == 0, run.story()
    assert run.events("attempt_planned")[0].details["hosts"] == ["n3", "n4"]


def test_no_walltime_is_lost(new_run) -> None:
    """The run saves before its allocation ends, and goes on in the next one."""
    run = new_run(steps=600, runtime={"max_walltime_s": Seconds(48.0)})
    run.submit()
    run.wait_for(lambda: len(run.job_ids()) > 1)
    run.wait_for(lambda: len(run.events("attempt_running")) > 1)
    (reason,) = run.reasons()
    assert reason.retry is RetryClass.PREEMPTION
    assert reason.saved_step == reason.step
    assert run.events("attempt_running")[1].details["step"] > reason.saved_step
