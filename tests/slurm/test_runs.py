"""Runs on a real Slurm: whatever happens to a process, the run ends as if nothing had."""

from launch.engines.engine import EngineState


def test_a_gang_runs_to_its_end_and_its_code_is_the_jobs(new_run) -> None:
    run = new_run()
    assert run.finish() == 0, run.story()
    run.check_end()
    run.wait_for_state("COMPLETED")
    standing = run.standing()
    assert (standing.state, standing.exit_code) == (EngineState.ENDED, 0)


def test_a_killed_rank_is_named_and_the_gang_starts_again_in_its_allocation(new_run) -> None:
    run = new_run(faults=["kill@7:1"])
    assert run.finish() == 0, run.story()
    run.check_end()
    reason, _ = run.reasons()
    assert (reason.rank, reason.code, reason.host) == (1, 137, run.rank_host(1))
    assert len(run.job_ids()) == 1
