"""What a submission carries, and what Slurm remembers of it."""

import dataclasses
import json
import pathlib
import sys

import pytest

from launch.engines import slurm_accounting
from launch.engines.engine import EngineError, EngineState
from launch.spec import Owner, Priority, Secret, SlurmOptions
from tests.slurm.lab import Lab, wait_until
from tests.slurm.runs import SlurmRun, slurm_run

HOSTILE = [
    "a b",
    "'\"`",
    "$HOME $(id) ${X:-y}",
    "line\nbreak",
    "back\\slash",
    "*?[a]~!#&;|<>",
    "ä☃",
    "",
]
SAY = """
import json, os, sys, pathlib
pathlib.Path(sys.argv[1]).write_text(json.dumps({"argv": sys.argv[2:], "env": dict(os.environ)}))
"""


def saying(run: SlurmRun, *words: str, **changes: object) -> pathlib.Path:
    """Makes the run's one rank write down what it was given."""
    said = run.folder / "said.json"
    workload = dataclasses.replace(
        run.spec.workload,
        command=(sys.executable, "-c", SAY, str(said), *words),
        env={"X": HOSTILE[2]},
    )
    run.spec = dataclasses.replace(run.spec, workload=workload, **changes)
    return said


def test_hostile_values_and_paths_survive_the_batch_script(slurm: Lab, new_run) -> None:
    run = new_run(hosts=1, folder=slurm.shared / "a 'b\" $c %j\nd")
    said = saying(run, *HOSTILE)
    assert run.finish() == 0, run.story()
    given = json.loads(said.read_text())
    assert given["argv"] == HOSTILE
    assert given["env"]["X"] == HOSTILE[2]
    assert (run.folder / "supervisor.log").exists()


def test_secrets_travel_by_reference(slurm: Lab, new_run, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "8d1f-of-the-submitter")
    key = slurm.shared / "key"
    key.write_text("5ecret")
    key.chmod(0o600)
    slurm.run(["chown", "nobody", str(key)])
    run = new_run(hosts=1)
    secret = Secret(name="TOKEN", ref=f"file:{key}")
    said = saying(run, secrets=(secret,))
    assert run.finish() == 0, run.story()
    given = json.loads(said.read_text())
    assert "WANDB_API_KEY" not in given["env"]
    assert given["env"]["TOKEN_FILE"]
    assert not pathlib.Path(given["env"]["TOKEN_FILE"]).exists(), "gone with the run"
    kept = [path for path in run.folder.rglob("*") if path.is_file() and path != said]
    assert not any(b"5ecret" in path.read_bytes() for path in kept)
    written = slurm.run(["scontrol", "-o", "show", "job", run.job_ids()[-1]]).stdout
    assert "5ecret" not in written


def test_ranks_have_their_accelerators_and_a_coordinator_of_their_attempt(new_run) -> None:
    run = new_run(hosts=1, resources={"accelerator": "h100", "per_host": 8})
    said = saying(run)
    assert run.finish() == 0, run.story()
    given = json.loads(said.read_text())["env"]
    assert given["SLURM_GPUS_ON_NODE"] == "8"
    assert given["LAUNCH_COORDINATOR"].startswith("10.77.0.")
    assert given["LAUNCH_HOST_ID"] == given["SLURMD_NODENAME"]
    assert given["LAUNCH_FAILURE_DOMAIN"].startswith("leaf")


def test_a_controller_that_cannot_be_reached_is_said_so(slurm: Lab, new_run, monkeypatch) -> None:
    monkeypatch.setattr("launch.engines.slurm._PATIENCE_S", 0.0)
    monkeypatch.setattr("launch.engines.slurm._LOOK_S", 0.0)
    run = new_run()
    slurm.kill_controller()
    assert run.standing().state is EngineState.UNKNOWN
    with pytest.raises(EngineError, match=r"(?i)unable to contact"):
        run.submit()


def test_a_refusal_says_what_to_change(new_run) -> None:
    run = new_run(options=SlurmOptions(partition="nowhere"))
    with pytest.raises(EngineError, match=r"nvalid partition[^;]*; set slurm\.partition"):
        run.submit()
    with pytest.raises(EngineError, match="for what the nodes have"):
        new_run(resources={"accelerator": "h100", "per_host": 16}).submit()


@pytest.fixture
def accounted(slurm_with_accounting: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("PATH", str(slurm_with_accounting.user_bin), prepend=":")
    return slurm_with_accounting


def test_with_accounting_teams_priorities_and_ends_are_slurms_own(accounted: Lab) -> None:
    run = slurm_run(accounted, "accounted", hosts=2, steps=5)
    run.spec = dataclasses.replace(
        run.spec, owner=Owner(team="x", account="research"), priority=Priority.HIGH
    )
    assert run.finish() == 0, run.story()
    wait_until(lambda: _ends(run) == ["COMPLETED"], what="sacct's word", limit_s=30)
    (ended,) = slurm_accounting.jobs(run.job) or []
    assert (ended.exit_code, ended.nodes) == (0, "n[1-2]")
    shown = accounted.run(["sacct", "-X", "-n", "-P", "-j", ended.id, "-o", "account,qos,user"])
    assert shown.stdout.strip() == "research|high|nobody"
    refused = slurm_run(accounted, "unknown-team", hosts=2)
    with pytest.raises(EngineError, match=r"owner\.account"):
        refused.submit()


def test_each_priority_goes_before_those_below_it(accounted: Lab) -> None:
    accounted.run(
        ["sbatch", "-Aresearch", "--qos=critical", "-N4", "-o/dev/null", "--wrap=sleep 90"]
    )
    for priority in Priority:
        run = slurm_run(accounted, f"priority-{priority}", hosts=4, steps=5)
        owner = Owner(team="research")
        run.spec = dataclasses.replace(run.spec, owner=owner, priority=priority)
        run.submit()

    def order() -> list[str]:
        listed = ["squeue", "-h", "-t", "pending", "--sort=-p", "-o", "%Q %q"]
        rows = [line.split() for line in accounted.run(listed).stdout.splitlines()]
        return [qos for weight, qos in rows if int(weight) > 1]

    wait_until(lambda: order() == [priority.value for priority in Priority], what="the order")


def _ends(run: SlurmRun) -> list[str]:
    return [job.state for job in slurm_accounting.jobs(run.job) or []]
