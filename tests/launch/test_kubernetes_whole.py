"""A job file submitted to an API server runs as what is stored there, and comes back by itself."""

import dataclasses
import pathlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from launch.engines import kubernetes_names as names
from launch.engines.kubernetes import Kubernetes
from launch.journal import Journal
from launch.pod_output import last_status
from launch.run_status import RunState
from launch.spec import (
    Checkpoint,
    Job,
    KubernetesOptions,
    Recovery,
    Resources,
    Runtime,
    Secret,
    SecretForm,
    Watchdog,
    Workload,
)
from tests.launch import kubernetes_jobs as jobs
from tests.launch.kubernetes_kubelet import Kubelet
from tests.launch.kubernetes_server import ApiServer
from tests.launch.pods import described, kill_container

SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True)\n"
PLACE = """
import os, pathlib, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["LAUNCH_ATTEMPT"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
shared = pathlib.Path(os.environ["SHARED"])
(shared / f"up.{attempt}.{rank}").touch()
"""


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path)))
        yield found


@pytest.fixture
def submitted(server: ApiServer, tmp_path: pathlib.Path) -> Iterator[Any]:
    kubelets: list[Kubelet] = []

    def submit(program: str, *, env: dict[str, str] | None = None, **changes: Any) -> Kubelet:
        job = made(program, tmp_path, env=env or {}, **changes)
        Kubernetes().submit(job)
        kubelets.append(Kubelet(server, names.jobset_name(job), tmp_path))
        return kubelets[-1]

    yield submit
    for kubelet in kubelets:
        for process in kubelet.pods.values():
            kill_container(process)


def made(program: str, folder: pathlib.Path, *, env: dict[str, str], **changes: Any) -> Job:
    """Returns a job of two hosts whose run directory is on a claim."""
    watchdog = Watchdog(lost_after_s=2.0, beat_s=0.5)  # type: ignore[arg-type]
    base = jobs.spec(
        workload=Workload(
            command=(sys.executable, "-c", program), env={"SHARED": str(folder), **env}
        ),
        resources=Resources(accelerator="cpu", hosts=2),
        checkpoint=Checkpoint(root=f"{folder}/run"),
        kubernetes=KubernetesOptions(volume_claim="runs", volume_path=str(folder)),
        runtime=Runtime(grace_s=5.0),  # type: ignore[arg-type]
        recovery=Recovery(watchdog=watchdog),
    )
    spec = dataclasses.replace(base, **changes)
    return jobs.job(spec, job_dir=f"{folder}/submitter", python=sys.executable)


def test_what_is_stored_runs_with_every_value_as_it_was_given(submitted: Any) -> None:
    values = {f"V{index}": value for index, value in enumerate(jobs.HOSTILE)}
    secrets = (
        Secret(name="TOKEN", ref="k8s:hub/token", form=SecretForm.ENV),
        Secret(name="KEY", ref="k8s:hub/key"),
    )
    show_key = "print(json.dumps({'key': open(os.environ['KEY_FILE']).read()}), flush=True)"
    kubelet = submitted(SHOW + show_key, env=values, secrets=secrets)
    kubelet.add_secret("hub", token="hunter2", key="$(HOME)\n")
    assert kubelet.run() == "Completed"
    for rank, pod in enumerate(("0-0", "0-1")):
        seen, key = described(kubelet.output(pod))
        assert {name: seen[name] for name in values} == values
        assert (seen["RANK"], seen["WORLD_SIZE"], seen["LAUNCH_ATTEMPT"]) == (str(rank), "2", "1")
        assert seen["TOKEN"] == "hunter2"
        assert key == {"key": "$(HOME)\n"}


def test_a_lost_pod_brings_new_pods_and_the_next_attempt(
    submitted: Any, tmp_path: pathlib.Path
) -> None:
    kubelet = submitted(PLACE + "time.sleep(60) if attempt == 1 else None")
    kill_when_up(kubelet, tmp_path, attempt=1, pod="0-1")
    assert kubelet.run_on() == "Completed"
    assert kubelet.actions == ["RestartJobSet"]
    planned = [e for e in Journal(tmp_path / "submitter").entries() if e.event == "attempt_planned"]
    assert [e.attempt for e in planned] == [1, 2]


def kill_when_up(kubelet: Kubelet, folder: pathlib.Path, *, attempt: int, pod: str) -> None:
    kubelet.start()
    wait_until_up(folder, attempt)
    kill_container(kubelet.pods[pod])


def wait_until_up(folder: pathlib.Path, attempt: int) -> None:
    until = time.monotonic() + 60.0
    while len(list(folder.glob(f"up.{attempt}.*"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_drained_node_costs_nothing_of_the_budget(submitted: Any, tmp_path: pathlib.Path) -> None:
    kubelet = submitted(PLACE + "time.sleep(60) if attempt == 1 else None")
    kubelet.start()
    wait_until_up(tmp_path, 1)
    kubelet.pods["0-1"].send_signal(signal.SIGTERM)
    assert kubelet.run_on() == "Completed"
    assert kubelet.actions == ["RestartJobSetAndIgnoreMaxRestarts"]
    assert kubelet.counted == 0


def test_a_set_that_is_suspended_and_started_again_has_a_new_number(
    submitted: Any, tmp_path: pathlib.Path
) -> None:
    """Its labels are what they were, so that only the pods can tell."""
    kubelet = submitted(PLACE + "time.sleep(60) if attempt == 1 else None")
    kubelet.start()
    wait_until_up(tmp_path, 1)
    kubelet.end()
    assert [p.returncode for p in kubelet.pods.values()] == [75, 75]
    assert kubelet.run() == "Completed"
    assert kubelet.restarts == 0
    assert (tmp_path / "up.2.0").exists()


@pytest.mark.parametrize(("code", "attempts"), [(64, 1), (71, 1)])
def test_a_users_error_ends_the_set_at_once(
    submitted: Any, tmp_path: pathlib.Path, code: int, attempts: int
) -> None:
    kubelet = submitted(PLACE + f"sys.exit({code})")
    assert kubelet.run() == "Failed"
    assert kubelet.actions == ["FailJobSet"]
    assert len(list(tmp_path.glob("up.*.0"))) == attempts


def test_without_a_shared_folder_numbers_still_grow(submitted: Any, tmp_path: pathlib.Path) -> None:
    kubelet = submitted(
        PLACE + "time.sleep(60) if not list(shared.glob('again')) else None",
        checkpoint=Checkpoint(root="gs://bucket/run"),
        kubernetes=KubernetesOptions(),
    )
    kubelet.start()
    until = time.monotonic() + 60.0
    while len(list(tmp_path.glob("up.*"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    first = {int(path.name.split(".")[1]) for path in tmp_path.glob("up.*")}
    kill_container(kubelet.pods["0-1"])
    (tmp_path / "again").touch()
    assert kubelet.run_on() == "Completed"
    numbers = {int(path.name.split(".")[1]) for path in tmp_path.glob("up.*")}
    assert len(first) == 1
    assert len(numbers) == 2
    status = last_status(kubelet.output("0-0"))
    assert status is not None
    assert (status.state, status.attempt) == (RunState.DONE, max(numbers))
    assert max(numbers) > max(first) > 1_700_000_000
