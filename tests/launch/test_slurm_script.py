import dataclasses
import pathlib
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings

from launch.engines import slurm_script
from launch.engines.engine import EngineError
from launch.engines.slurm import Slurm
from launch.spec import (
    Checkpoint,
    Job,
    JobSpec,
    OnLoss,
    Owner,
    Placement,
    Priority,
    Recovery,
    Resources,
    Runtime,
    Seconds,
    SlurmOptions,
    Spot,
    SpotUse,
    Topology,
    TopologyLevel,
    Workload,
)
from tests.launch.job_files import TEXTS


def job(*, job_dir: str = "/runs/a", code_dir: str = "/code", **changes: Any) -> Job:
    spec = JobSpec(
        name="a",
        owner=Owner(team="research", user="ada"),
        workload=Workload(command=("true",)),
        resources=Resources(accelerator="h100", hosts=4, per_host=8),
        checkpoint=Checkpoint(root="/runs/a"),
    )
    return Job(
        run_id="a-x7k2p9",
        spec=dataclasses.replace(spec, **changes),
        engine="slurm",
        job_dir=job_dir,
        code_dir=code_dir,
        python="/usr/bin/python3",
    )


def option(made: Job, name: str, **kwargs: Any) -> str | None:
    """The value of an option; None where it is not given."""
    found = [text for text in slurm_script.options(made, **kwargs) if text.startswith(f"--{name}")]
    values = [text.partition("=")[2] for text in found if text.split("=")[0] == f"--{name}"]
    return values[0] if values else None


def test_a_gang_is_whole_nodes_with_one_agent_each() -> None:
    options = slurm_script.options(job())
    wanted = ["--nodes=4", "--ntasks-per-node=1", "--exclusive", "--mem=0", "--gres=gpu:8"]
    assert [text for text in wanted if text not in options] == []
    assert not any("gpus-per-task" in text or "gpu-bind" in text for text in options)
    assert option(job(resources=Resources(accelerator="cpu")), "gres") is None


def test_the_five_priorities_are_five_qos() -> None:
    found = {option(job(priority=priority), "qos") for priority in Priority}
    assert found == {"critical", "high", "normal", "low", "preemptible"}
    assert option(job(slurm=SlurmOptions(qos="gold")), "qos") == "gold"


def test_the_account_is_the_teams_or_its_own() -> None:
    assert option(job(), "account") == "research"
    assert option(job(owner=Owner(team="research", account="prj7")), "account") == "prj7"


def test_an_allocation_outlives_a_host_only_where_the_run_can_use_what_is_left() -> None:
    assert "--no-kill" not in slurm_script.options(job())
    with_spares = job(recovery=Recovery(spares=2))
    assert option(with_spares, "nodes") == "6"
    assert "--no-kill" in slurm_script.options(with_spares)
    shrinking = job(recovery=Recovery(on_loss=OnLoss.SHRINK))
    assert "--no-kill" in slurm_script.options(shrinking)


def test_an_elastic_run_starts_with_its_hosts_and_comes_back_with_fewer() -> None:
    elastic = job(
        resources=Resources(accelerator="h100", hosts=4, per_host=8, min_hosts=2, max_hosts=8),
        recovery=Recovery(spares=1),
    )
    assert option(elastic, "nodes") == "5-9"
    assert option(elastic, "nodes", again=True) == "2-9"
    assert option(job(recovery=Recovery(spares=1)), "nodes", again=True) == "4-5"


def test_excluded_nodes_are_those_of_the_file_and_of_the_run() -> None:
    made = job(slurm=SlurmOptions(exclude=("n1", "n2")))
    assert option(made, "exclude") == "n1,n2"
    assert option(made, "exclude", exclude=("n2", "n7")) == "n1,n2,n7"
    assert option(job(), "exclude") is None


@pytest.mark.parametrize(
    ("topology", "slurm", "switches", "segment"),
    [
        (Topology(), SlurmOptions(), None, None),
        (Topology(level=TopologyLevel.RACK), SlurmOptions(), "1@10", None),
        (
            Topology(level=TopologyLevel.RACK, slices=2, placement=Placement.REQUIRED),
            SlurmOptions(),
            "2@365-0",
            None,
        ),
        (Topology(level=TopologyLevel.BLOCK, slices=2), SlurmOptions(), None, "2"),
        (Topology(), SlurmOptions(segment=4), None, "4"),
    ],
)
def test_closeness_is_switches_or_segments(topology, slurm, switches, segment) -> None:
    made = job(topology=topology, slurm=slurm)
    assert (option(made, "switches"), option(made, "segment")) == (switches, segment)


def test_limits_and_signals() -> None:
    runtime = Runtime(grace_s=Seconds(120.0), max_walltime_s=Seconds(3601.0))
    made = job(runtime=runtime)
    assert option(made, "time") == "61"
    assert option(made, "signal") == "B:USR2@150"
    assert option(job(), "time") is None


def test_spot_nodes_are_a_feature() -> None:
    assert option(job(spot=Spot(use=SpotUse.REQUIRE)), "constraint") == "spot"
    both = job(spot=Spot(use=SpotUse.REQUIRE), slurm=SlurmOptions(constraint="a|b"))
    assert option(both, "constraint") == "(a|b)&spot"
    assert option(job(), "constraint") is None


def test_no_value_of_the_environment_goes_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "8d1f")
    made = Slurm().render(job())
    exported = set((option(job(), "export") or "").split(","))
    assert exported == {
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ"),
        *("LOCKSTEP_HOME", "LOCKSTEP_STATE"),
    }
    assert "8d1f" not in "".join([*made.files.values(), *made.command])


def test_what_slurm_cannot_do_is_refused_with_what_to_do() -> None:
    from launch.spec import Code, Secret

    spec = job(
        code=Code(image="x@sha256:0"),
        secrets=(Secret(name="KEY", ref="k8s:a/b"),),
        resources=Resources(accelerator="tpu-v5p", hosts=4, per_host=4),
        checkpoint=Checkpoint(root="/runs/a\\b"),
    ).spec
    refused = Slurm().refusals(spec)
    assert [text.split(":")[0] for text in refused] == [
        "code.image",
        "checkpoint.root",
        "resources.accelerator",
        "secrets.KEY",
    ]
    assert Slurm().refusals(job().spec) == []


def test_percent_signs_in_paths_are_not_slurms() -> None:
    assert slurm_script.output_pattern(job(job_dir="/a/50%j")) == "/a/50%%j/supervisor.log"
    with pytest.raises(EngineError, match="backslash"):
        slurm_script.output_pattern(job(job_dir="/a\\b"))


@settings(max_examples=30)
@given(TEXTS.filter(lambda text: "/" not in text and text not in ("", ".", "..")))
def test_any_path_survives_the_script(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Run by bash with a python that writes down what it was given."""
    folder = tmp_path_factory.mktemp("script")
    code = folder / name
    code.mkdir()
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\0" "$@" "$PWD" >"$(dirname "$0")/said"\n')
    python.chmod(0o755)
    made = dataclasses.replace(job(job_dir=f"/runs/{name}", code_dir=str(code)), python=str(python))
    script = folder / "script"
    script.write_bytes(slurm_script.script(made).encode())
    subprocess.run(["bash", str(script)], check=True, timeout=20)
    said = (folder / "said").read_bytes().decode().split("\0")[:-1]
    assert said == ["-m", "launch.keeper", "--job_dir", f"/runs/{name}", str(code)]


def test_a_missing_folder_is_a_fault_of_the_configuration(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script"
    script.write_text(slurm_script.script(job(code_dir=str(tmp_path / "gone"))))
    done = subprocess.run(["bash", str(script)], timeout=20, capture_output=True)
    assert done.returncode == 64
