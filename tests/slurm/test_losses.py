"""Lost hosts, cut links and taken allocations on a real Slurm."""

import json
import time
from collections.abc import Callable

from launch.engines.engine import EngineState
from launch.exit_codes import RetryClass
from launch.spec import OnLoss, Seconds
from tests.slurm.lab import Lab, wait_until
from tests.slurm.runs import SlurmRun
from trainer.checkpoints import fencing, layout
from trainer.checkpoints.layout import StepName
from trainer.checkpoints.root import open_root


def hosts(run: SlurmRun, attempt: int = -1) -> list[str]:
    """Nodes of an attempt in order of ranks; -1 is the newest.

    A machine that stands still for seconds ends an attempt, too, so that a loss need not come in
    the first one.
    """
    planned = run.events("attempt_planned")
    chosen = planned[-1:] if attempt == -1 else [e for e in planned if e.attempt == attempt]
    return list(chosen[0].details["hosts"])


def test_a_host_that_lost_its_power_is_excluded_from_the_next_allocation(
    slurm: Lab, new_run
) -> None:
    run = new_run(steps=60)
    run.submit()
    run.wait_for_step(12)
    lost = run.rank_host(1)
    slurm.power_off(lost)
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    reason = run.reasons()[-2]  # the last one is the end
    told = (reason.host, reason.cause, reason.retry)
    assert told == (lost, "HostLost", RetryClass.INFRASTRUCTURE), run.story()
    assert lost not in hosts(run)
    first, second = run.job_ids()
    assert run.show("ExcNodeList") == lost
    assert int(second) > int(first)


def test_a_spare_takes_the_place_of_a_host_whose_link_is_cut(slurm: Lab, new_run) -> None:
    run = new_run(steps=60, recovery={"spares": 1})
    run.submit()
    run.wait_for_step(12)
    before = hosts(run)
    (spare,) = {"n1", "n2", "n3", "n4"} - set(before)
    slurm.cut(before[1])
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert run.reasons()[-2].host == before[1]
    assert hosts(run) == [before[0], spare, before[2]], run.story()
    assert len(run.job_ids()) == 1


def test_a_run_goes_on_smaller_in_what_is_left_of_its_allocation(slurm: Lab, new_run) -> None:
    run = new_run(steps=60, resources={"min_hosts": 2}, recovery={"on_loss": OnLoss.SHRINK})
    run.submit()
    run.wait_for_step(12)
    before = hosts(run)
    slurm.power_off(before[2])
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert hosts(run) == before[:2], run.story()
    assert len(run.job_ids()) == 1


def test_a_cut_off_writer_never_counts_and_the_run_survives_its_batch_host(
    slurm: Lab, new_run
) -> None:
    """Rank 0 is stopped between its last check and its publish, on the supervisor's own host."""
    run = new_run(steps=60, faults=["freeze@10:0:1"], recovery={"spares": 1})
    run.submit()
    run.wait_for(lambda: (run.folder / "frozen").exists())
    batch_host = run.rank_host(0)
    assert run.show("BatchHost") == batch_host
    stop_all(slurm, batch_host, "launch.agent", "launch.supervisor")  # nobody ends the writer
    slurm.cut(batch_host)
    slurm.run(["scontrol", "update", f"nodename={batch_host}", "state=down", "reason=cut off"])
    run.wait_for(lambda: any(entry.attempt > 1 for entry in run.events("attempt_running")))
    (run.folder / "thaw").touch()  # it had checked before; it publishes now
    root = open_root(str(run.folder / layout.CHECKPOINTS))
    run.wait_for(lambda: StepName(10, 1) in fencing.written(root))
    assert run.wait_for_end() == 0, run.story()
    assert batch_host not in hosts(run, run.events("attempt_planned")[-1].attempt)
    assert StepName(10, 1) not in fencing.admitted(root, fencing.current(root))
    assert json.loads((run.folder / "final.json").read_text())["steps"] == 60


def test_a_supervisor_that_is_cut_off_blames_nobody(slurm: Lab, new_run) -> None:
    run = new_run(steps=60)
    run.submit()
    run.wait_for_step(12)
    batch_host = run.rank_host(0)
    slurm.cut(batch_host)
    run.wait_for(lambda: run.events("attempt_ended"))
    slurm.mend(batch_host)
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert not any(entry.details["exclude"] for entry in run.events("decided")), run.story()
    assert hosts(run) == hosts(run, 1), run.story()
    assert len(run.job_ids()) == 1


def stop_all(slurm: Lab, name: str, *modules: str) -> None:
    """Stops processes of a node, its alone, by what they run."""
    node = slurm.node(name)
    for module in modules:
        found = slurm.run(["pgrep", "-f", "--", f"-m {module}"], on=node).stdout.split()
        slurm.run(["kill", "-STOP", *found], on=node)


def test_an_urgent_job_gets_the_hosts_after_a_save_and_the_run_comes_back(
    slurm: Lab, new_run
) -> None:
    run = new_run(hosts=4, steps=60)
    run.submit()
    run.wait_for_step(12)
    urgent = slurm.run(
        ["sbatch", "--parsable", "-phigh", "-N4", "-o/dev/null", "--wrap=sleep 2"], as_user=True
    ).stdout.strip()
    run.wait_for(lambda: run.events("attempt_ended"))
    wait_until(lambda: state(slurm, urgent) == "COMPLETED", what="the urgent job's end")
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    first = run.reasons()[0]
    assert first.retry is RetryClass.PREEMPTION
    assert first.saved_step == first.step
    assert run.events("attempt_ended")[0].details["displaced"]
    assert len(run.job_ids()) == 2


def state(slurm: Lab, job_id: str) -> str:
    return slurm.run(["squeue", "-h", "-tall", f"-j{job_id}", "-o%T"]).stdout.strip()


def test_a_job_that_slurm_itself_requeues_goes_on_with_the_next_attempt(
    slurm: Lab, new_run
) -> None:
    run = new_run(steps=60)
    run.submit()
    run.wait_for_step(12)
    (job_id,) = run.job_ids()
    start_again(
        slurm, job_id, until=lambda: state(slurm, job_id) == "RUNNING", what="the second start"
    )
    assert run.wait_for_end() == 0, run.story()
    run.check_end()
    assert run.show("Restarts") == "1"
    assert run.job_ids() == [job_id]


def start_again(slurm: Lab, job_id: str, *, until: Callable[[], bool], what: str) -> None:
    """Requeues a job and takes away the two minutes that Slurm keeps it; they begin at its end.

    A start in the very second of that end would be refused: its credential counts as revoked.
    """
    slurm.run(["scontrol", "requeue", job_id])
    wait_until(lambda: state(slurm, job_id) == "PENDING", what=f"job {job_id} in the queue")
    time.sleep(2)

    def started() -> bool:
        update = ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
        slurm.run(update, check=False)
        return until()

    wait_until(started, what=what)


def test_a_superseded_job_that_slurm_starts_again_leaves_the_run_alone(slurm: Lab, new_run) -> None:
    run = new_run(hosts=2, steps=4000)
    run.submit()
    run.wait_for_step(12)
    lost = run.rank_host(1)
    slurm.power_off(lost)
    run.wait_for(lambda: len(run.job_ids()) > 1)
    first, _ = run.job_ids()
    ending = {"COMPLETING", "FAILED"}
    wait_until(lambda: state(slurm, first) in ending, what="the end of the first supervisor")
    slurm.power_cycle(lost)
    wait_until(lambda: state(slurm, first) == "FAILED", what="the end of the first job")
    run.wait_for(lambda: run.events("recovered"))
    planned = len(run.events("attempt_planned"))
    log = run.folder / "supervisor.log"
    # It may be over before a look at its state would find it running.
    start_again(
        slurm, first, until=lambda: f"job {first} ends" in log.read_text(), what="its last words"
    )
    wait_until(lambda: state(slurm, first) == "FAILED", what="its second end")
    assert len(run.events("attempt_planned")) == planned, run.story()


def test_cancel_saves_and_ends_a_running_run(slurm: Lab, new_run) -> None:
    run = new_run(steps=2000)
    run.submit()
    run.wait_for_step(12)
    run.cancel()
    run.wait_for_end()
    wait_until(lambda: run.standing().state is not EngineState.RUNNING, what="its end")
    assert len(run.reasons()) == 1, run.story()
    reason = run.reasons()[0]
    assert reason.saved_step == reason.step
    assert len(run.job_ids()) == 1


def test_cancel_takes_a_waiting_run_out_of_the_queue(slurm: Lab, new_run) -> None:
    slurm.run(["sbatch", "-N4", "-o/dev/null", "--wrap=sleep 300"])
    run = new_run(hosts=4)
    run.submit()
    assert run.standing().state is EngineState.QUEUED
    run.cancel()
    wait_until(lambda: run.standing().state is EngineState.ENDED, what="its end")


def test_a_run_is_submitted_once(slurm: Lab, new_run) -> None:
    run = new_run(steps=2000)
    first = run.submit()
    assert run.submit().engine_id == first.engine_id
    run.wait_for_step(1)
    assert run.submit().engine_id == first.engine_id
    assert run.job_ids() == [first.engine_id]


def test_a_held_run_goes_on_when_it_is_released(slurm: Lab, new_run) -> None:
    run = new_run(faults=["exit=86@7:1:1"], runtime={"grace_s": Seconds(5.0)})
    assert run.finish() == 86, run.story()
    run.wait_for_state("FAILED")
    run.resume()
    run.wait_for(lambda: run.events("done"))
    run.check_end()
    assert len(run.job_ids()) == 2
