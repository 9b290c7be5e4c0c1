"""Several hosts, several jobs and a person on one machine: spares, sizes, turns, drain, secrets."""

import dataclasses
import json
import os
import pathlib
import time

from launch.control import Control, Want
from launch.exit_codes import ExitCode
from launch.journal import Journal
from launch.run_status import RunState
from launch.spec import OnLoss, Priority, Resources, Secret, SecretForm, Topology, Workload


def sicken(run, *hosts: int) -> None:
    """The kernel's log of hosts gets an Xid, all in one instant."""
    for index in hosts:
        with run.kernel_log(index).open("a") as file:
            file.write("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")


def test_a_broken_device_moves_the_run_to_a_spare(chaos):
    run = chaos(hosts=2, spares=1, steps=200, step_s=0.03)
    process = run.start()
    run.wait_for_step(20)
    sicken(run, 1)
    run.wait_for(lambda: run.events("recovered"))
    decided = run.events("decided")[0].details
    assert decided["action"] == "replace", run.story()
    [bad] = decided["exclude"]
    first, second = (entry.details["hosts"] for entry in run.events("attempt_planned"))
    assert bad in first
    assert bad not in second
    assert [a for a, b in zip(first, second, strict=True) if a == b], "the other rank has moved"
    assert "Xid 79" in run.reasons()[0].message
    assert process.wait(60) == 0
    run.check_end()


def test_a_twentieth_of_all_hosts_at_once_is_one_incident(chaos):
    run = chaos(hosts=20, spares=1, steps=100, step_s=0.05)
    process = run.start()
    run.wait_for_step(5)
    sicken(run, 7)
    assert process.wait(90) == 0, run.story()
    assert [e.details["action"] for e in run.events("decided")] == ["replace", "done"]
    run.check_end()


def test_several_hosts_at_once_need_one_recovery(chaos):
    run = chaos(hosts=4, spares=2, steps=300, step_s=0.03)
    process = run.start()
    run.wait_for_step(20)
    sicken(run, 1, 2)
    assert process.wait(90) == 0, run.story()
    decided = run.events("decided")
    assert len(decided) <= 3, "one decision for both, or one for each that was heard of too late"
    excluded = {host for entry in decided for host in entry.details["exclude"]}
    assert excluded == {run.kernel_log(n).stem.removeprefix("kernel-") for n in (1, 2)}
    run.check_end()


def test_without_a_spare_an_elastic_run_goes_on_smaller(chaos):
    run = chaos(hosts=3, steps=200, step_s=0.03, recovery={"on_loss": OnLoss.SHRINK})
    resources = Resources(accelerator="cpu", hosts=3, per_host=1, min_hosts=2)
    run.spec = dataclasses.replace(run.spec, resources=resources)
    process = run.start()
    run.wait_for_step(20)
    sicken(run, 1)
    assert process.wait(60) == 0, run.story()
    assert [len(entry.details["hosts"]) for entry in run.events("attempt_planned")] == [3, 2]
    run.check_end()


def test_one_machine_without_anything_else_is_held(chaos):
    run = chaos(hosts=1, steps=400, step_s=0.03)
    process = run.start()
    run.wait_for_step(20)
    sicken(run, 0)
    assert process.wait(60) == ExitCode.HOLD, run.story()
    assert run.status().state is RunState.HELD
    assert "Xid 79" in run.status().next_action


def test_slices_are_told_to_the_processes(chaos):
    code = "import os; print(os.environ['LAUNCH_SLICE_ID'], os.environ['LAUNCH_NUM_SLICES'])"
    run = chaos(hosts=4)
    run.spec = dataclasses.replace(
        run.spec,
        workload=Workload(command=("python3", "-c", code)),
        topology=Topology(slices=2),
    )
    assert run.run() == 0
    logs = [(run.folder / f"attempts/1/logs/rank{n}.log").read_text() for n in range(4)]
    assert logs == ["0 2\n", "0 2\n", "1 2\n", "1 2\n"]


def ask_for(run, want: Want) -> None:
    Control(want=want, by="tests", time=time.time()).write(str(run.folder))


def test_drain_saves_stops_and_resumes(chaos):
    run = chaos(steps=100, step_s=0.03, save_every=1000)
    process = run.start()
    run.wait_for_step(10)
    ask_for(run, Want.DRAIN)
    assert process.wait(30) == ExitCode.PREEMPTED
    status = run.status()
    assert status.state is RunState.STOPPED
    assert status.saved_step == run.reasons()[0].step
    assert run.run() == ExitCode.PREEMPTED, "stopped runs stay so"
    ask_for(run, Want.GO_ON)
    Journal(run.folder).append("resumed", attempt=1)
    assert run.run() == 0
    run.check_end()
    assert len((run.folder / "values.jsonl").read_text().splitlines()) == 100


def test_cancel_while_it_waits_for_devices(chaos, tmp_path):
    holder, waiting = chaos(steps=1000, step_s=0.05), chaos()
    home = str(tmp_path / "home")
    for run in (holder, waiting):
        run.home, run.devices = home, 2
    holder.start()
    holder.wait_for_step(1)
    process = waiting.start()
    waiting.wait_for(lambda: waiting.status() and waiting.status().state is RunState.WAITING)
    assert holder.job.run_id in waiting.status().next_action
    ask_for(waiting, Want.CANCEL)
    assert process.wait(30) == ExitCode.PREEMPTED
    assert waiting.events("attempt_planned") == []


def test_an_urgent_job_gets_the_devices_and_gives_them_back(chaos, tmp_path):
    spot = chaos(steps=120, step_s=0.05, save_every=1000)
    urgent = chaos(steps=20)
    spot.spec = dataclasses.replace(spot.spec, priority=Priority.PREEMPTIBLE)
    urgent.spec = dataclasses.replace(urgent.spec, priority=Priority.HIGH)
    for run in (spot, urgent):
        run.home, run.devices = str(tmp_path / "home"), 2
    first = spot.start()
    spot.wait_for_step(5)
    second = urgent.start()
    assert second.wait(60) == 0, urgent.story()
    assert first.wait(60) == 0, spot.story()
    reason = spot.reasons()[0]
    assert reason.code == ExitCode.PREEMPTED
    assert reason.saved_step == reason.step
    assert spot.events("decided")[0].details["action"] == "requeue"
    for run in (spot, urgent):
        run.check_end()
    ended = urgent.events("done")[0].time
    assert spot.events("attempt_planned")[1].time >= ended
    assert len((spot.folder / "values.jsonl").read_text().splitlines()) == 120


def test_a_run_has_one_supervisor(chaos):
    run = chaos(steps=1000, step_s=0.05)
    run.start()
    run.wait_for_step(1)
    assert run.start(module="launch.supervisor").wait(30) == ExitCode.ENGINE_UNREACHABLE


def test_secrets_reach_processes_and_no_file_of_the_run(chaos, tmp_path):
    value = "tok-4711-secret"
    token = tmp_path / "token"
    token.write_text(value)
    token.chmod(0o600)
    code = (
        "import os, sys\n"
        "text = open(os.environ['HUB_FILE']).read()\n"
        "assert text == os.environ['OTHER'], 'not the same'\n"
        "sys.exit('login failed with ' + text)\n"
    )
    run = chaos(hosts=1)
    run.spec = dataclasses.replace(
        run.spec,
        workload=Workload(command=("python3", "-c", code)),
        secrets=(
            Secret(name="HUB", ref=f"file:{token}"),
            Secret(name="OTHER", ref=f"file:{token}", form=SecretForm.ENV),
        ),
    )
    run.run()
    assert "login failed with [secret]" in run.reasons()[0].message
    own_logs = set((run.folder / "attempts").glob("*/logs/rank*.log"))
    for path in run.folder.rglob("*"):
        if path.is_file() and path not in own_logs:
            assert value.encode() not in path.read_bytes(), path
    shm = pathlib.Path(f"/dev/shm/lockstep-{os.getuid()}") / run.job.run_id
    assert [path for path in shm.rglob("*") if path.is_file()] == []


def test_a_secret_that_cannot_be_read_is_the_users_error(chaos):
    run = chaos()
    secret = Secret(name="HUB", ref="file:/nowhere/token")
    run.spec = dataclasses.replace(run.spec, secrets=(secret,))
    assert run.run() == ExitCode.CONFIGURATION
    assert "file:/nowhere/token" in run.status().next_action


def test_programs_of_others_get_their_place(chaos):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    code = f"import os, json; print(json.dumps([os.environ[n] for n in {names!r}]))"
    run = chaos(hosts=2)
    run.spec = dataclasses.replace(
        run.spec,
        workload=Workload(command=("python3", "-c", code), processes_per_host=2),
        resources=Resources(accelerator="cpu", hosts=2, per_host=2),
    )
    assert run.run() == 0
    logs = [(run.folder / f"attempts/1/logs/rank{n}.log").read_text() for n in range(4)]
    assert [json.loads(text) for text in logs] == [
        [str(rank), "4", str(rank % 2), "2", "127.0.0.1"] for rank in range(4)
    ]


def test_hostile_arguments_arrive_as_they_are(chaos):
    hostile = ["a b", "it's", '"quoted"', "$HOME", "`id`", "new\nline", "tab\t", "*", "; rm -rf x"]
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    run = chaos(hosts=1)
    work = Workload(command=("python3", "-c", code, *hostile), env={"X": "$(HOME)\n'\""})
    run.spec = dataclasses.replace(run.spec, workload=work)
    assert run.run() == 0
    assert json.loads((run.folder / "attempts/1/logs/rank0.log").read_text()) == hostile
