"""What an API server can do wrong, and what it keeps: against the small server only."""

import io
import pathlib
import sys
from collections.abc import Iterator

import pytest

from launch.engines import kubernetes as engine_module
from launch.engines import kubernetes_names as names
from launch.engines.engine import EngineError, EngineState
from launch.engines.kubernetes import Kubernetes
from launch.pod_output import Output
from launch.run_status import RunState, RunStatus
from launch.spec import Job, Runtime
from tests.launch import kubernetes_clusters as clusters
from tests.launch import kubernetes_jobs as jobs
from tests.launch.kubernetes_clusters import Fake
from tests.launch.kubernetes_server import ApiServer

RUN = "train-0a1b2c"


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The small server, for what a real one cannot be made to do."""
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(Fake(server, tmp_path).kubeconfig))
        yield server


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Job:
    spec = jobs.spec(runtime=Runtime(grace_s=1.0))  # type: ignore[arg-type]
    return jobs.job(spec, job_dir=str(tmp_path / "job"))


def test_what_does_not_go_away_is_told(
    fake: ApiServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kubernetes().submit(job)
    fake.change("JobSet", RUN, lambda o: o.update(status={"terminalState": "Failed"}))
    monkeypatch.setattr(engine_module, "GONE_S", -1.0)
    monkeypatch.setattr(fake, "_delete", lambda key: {"kind": "Status"})
    with pytest.raises(EngineError, match=f"JobSet {RUN}.*out of service"):
        Kubernetes().release(job)


def test_logs_begin_with_the_pod_that_failed_first(fake: ApiServer, job: Job) -> None:
    Kubernetes().submit(job)
    statuses = [
        clusters.running(),
        clusters.ended(85, at="2026-11-30T09:00:05Z"),
        clusters.ended(64, at="2026-11-30T09:00:01Z"),
        clusters.waiting("ContainerCreating"),
    ]
    for index, status in enumerate(statuses):
        name = f"{RUN}-host-0-{index}-abcde"
        found = clusters.pod(name, labels={names.RUN_LABEL: RUN}, status=status)
        found["metadata"]["namespace"] = "research"
        fake.put(found)
        if index < 3:
            fake.logs[name] = f"lines of {index}, with ümläut\n"
    text = Kubernetes().logs(job)
    assert text is not None
    order = [text.index(f"lines of {index}") for index in (2, 1, 0)]
    assert order == sorted(order)
    assert "exit code 64" in text.splitlines()[0]
    assert "ümläut" in text


def test_what_the_first_pod_says_of_the_run_is_kept_here(fake: ApiServer, job: Job) -> None:
    pathlib.Path(job.job_dir).mkdir()
    Kubernetes().submit(job)
    shown = io.BytesIO()
    status = RunStatus(
        run_id=job.run_id,
        state=RunState.RUNNING,
        attempt=3,
        time=5.0,
        pid=7,
        supervisor_host="p",
        step=12,
    )
    Output(shown).show_status(status)
    for index in range(2):
        name = f"{RUN}-host-0-{index}-abcde"
        labels = {names.RUN_LABEL: RUN}
        found = clusters.pod(name, labels=labels, status=clusters.running())
        found["metadata"]["namespace"] = "research"
        fake.put(found)
        fake.logs[name] = "step 11\n"
    Kubernetes().standing(job)
    assert RunStatus.read(job.job_dir) is None
    fake.logs[f"{RUN}-host-0-0-abcde"] += shown.getvalue().decode()
    Kubernetes().standing(job)
    assert RunStatus.read(job.job_dir) == status
    fake.logs.clear()
    assert Kubernetes().standing(job).state is not EngineState.UNKNOWN
    assert RunStatus.read(job.job_dir) == status


def test_without_pods_there_are_no_logs(fake: ApiServer, job: Job) -> None:
    Kubernetes().submit(job)
    assert Kubernetes().logs(job) is None


def test_logs_that_are_in_the_jobs_folder_are_read_there(job: Job) -> None:
    folder = pathlib.Path(job.job_dir) / "attempts" / "1" / "logs"
    folder.mkdir(parents=True)
    (folder / "rank0.log").touch()
    assert Kubernetes().logs(job) is None


@pytest.mark.parametrize("status", [500, 503, 403, 0])
def test_an_answer_that_fails_is_not_a_job_that_fails(
    fake: ApiServer, job: Job, status: int
) -> None:
    engine = Kubernetes()
    engine.submit(job)
    fake.failures = [(status, "trouble")] * 20
    found = engine.standing(job)
    assert found.state is EngineState.UNKNOWN
    assert "Kubernetes" in found.detail
    fake.failures = []
    assert engine.standing(job).state is EngineState.QUEUED


def test_a_connection_that_breaks_once_is_made_again(fake: ApiServer, job: Job) -> None:
    engine = Kubernetes()
    engine.submit(job)
    fake.failures = [(0, "")]
    assert engine.standing(job).state is EngineState.QUEUED


def test_a_server_that_cannot_be_reached_is_told_and_nothing_is_submitted(
    job: Job, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    with pytest.raises(EngineError, match="cannot be reached"):
        Kubernetes().submit(job)
    assert Kubernetes().standing(job).state is EngineState.UNKNOWN


def test_without_a_kubeconfig_it_says_what_to_set(
    job: Job, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EngineError, match="Set KUBECONFIG"):
        Kubernetes().submit(job)


def test_without_the_package_it_says_which_extra_to_install(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(EngineError, match=r"lockstep\[kubernetes\]"):
        Kubernetes().submit(job)
    assert Kubernetes().render(job).files, "rendering does without it"


def test_a_server_that_refuses_is_quoted(fake: ApiServer, job: Job) -> None:
    fake.failures = [(404, "not found"), (422, "ConfigMap is invalid: nope")]
    with pytest.raises(EngineError, match=r"nope \(422\)"):
        Kubernetes().submit(job)


def test_the_server_keeps_exactly_what_was_rendered(fake: ApiServer, job: Job) -> None:
    Kubernetes().submit(job)
    kept = {(kind, name): obj for (kind, _, name), obj in fake.objects.items()}
    for rendered in engine_module.kubernetes_objects.objects(job).values():
        for obj in rendered:
            found = kept[obj["kind"], obj["metadata"]["name"]]
            assert {k: v for k, v in found.items() if k != "metadata"} == {
                k: v for k, v in obj.items() if k != "metadata"
            }
            assert found["metadata"].items() >= obj["metadata"].items()


def test_unknown_fields_are_refused_not_dropped(fake: ApiServer, job: Job) -> None:
    Kubernetes().submit(job)
    posts = [request for request in fake.requests if request.startswith("POST")]
    assert len(posts) == 4
    assert all("fieldValidation=Strict" in request for request in posts)
