"""Submit, look, cancel, release and read logs, against an API server.

The server is a small one on loopback; with LOCKSTEP_KUBECONFIG it is that of the kubeconfig. What
JobSet, Kueue and kubelets would do, the tests do by changing statuses.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from launch.control import Control, Want
from launch.engines import kubernetes_names as names
from launch.engines.engine import EngineError, EngineState, engine_named
from launch.engines.kubernetes import Kubernetes
from launch.engines.kubernetes_client import Api
from launch.spec import Job, KubernetesOptions, Runtime
from tests.launch import kubernetes_clusters as clusters
from tests.launch import kubernetes_jobs as jobs
from tests.launch.kubernetes_clusters import Cluster, condition

RUN = "train-0a1b2c"


@pytest.fixture
def cluster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with clusters.cluster(tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
        yield found


@pytest.fixture
def job(cluster: Cluster, tmp_path: pathlib.Path) -> Job:
    spec = jobs.spec(
        kubernetes=KubernetesOptions(namespace=cluster.namespace, queue="research"),
        runtime=Runtime(grace_s=1.0),  # type: ignore[arg-type]
    )
    return jobs.job(spec, job_dir=str(tmp_path / "job"))


def admit(cluster: Cluster) -> None:
    """Does what Kueue does when all of a set fits."""
    cluster.change("JobSet", RUN, {"spec": {"suspend": False}})


def uid(job: Job) -> str:
    found = Api(names.namespace(job)).get("JobSet", RUN)
    assert found is not None
    return found["metadata"]["uid"]


def workload(cluster: Cluster, job: Job, *conditions: dict[str, Any], active: bool = True) -> None:
    """Makes what Kueue makes of a set."""
    cluster.make(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": f"jobset-{RUN}",
                "labels": {names.WORKLOAD_OF_LABEL: uid(job)},
            },
            "spec": {"active": active, "queueName": "research"},
            "status": {"conditions": list(conditions)},
        }
    )


def child(cluster: Cluster, name: str, message: str, *, reason: str = "PodFailurePolicy") -> None:
    """Makes a child Job that has failed."""
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]},
    }
    cluster.make(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {names.JOBSET_LABEL: RUN}},
            "spec": {"template": template},
            "status": {"conditions": [condition("Failed", "True", reason, message)]},
        }
    )


def failed_with(code: int) -> str:
    return (
        f"Container main for pod r/p failed with exit code {code} matching FailJob rule at index 1"
    )


def end_set(cluster: Cluster, terminal: str, message: str = "", **status: Any) -> None:
    """Does what JobSet does when it gives a set up, or when it is complete."""
    found = condition(terminal, "True", "x", message)
    cluster.change(
        "JobSet", RUN, {"status": {"terminalState": terminal, "conditions": [found], **status}}
    )


def pods(cluster: Cluster, *statuses: dict[str, Any]) -> None:
    for index, status in enumerate(statuses):
        name = f"{RUN}-host-0-{index}-abcde"
        node = f"node-{index}"
        cluster.make(clusters.pod(name, labels={names.RUN_LABEL: RUN}, status=status, node=node))


def test_the_registry_knows_the_engine() -> None:
    assert isinstance(engine_named("kubernetes"), Kubernetes)


def test_a_job_is_submitted_once(cluster: Cluster, job: Job) -> None:
    engine = Kubernetes()
    first = engine.submit(job)
    assert first.state is EngineState.QUEUED
    assert first.engine_id == f"{cluster.namespace}/{RUN}"
    before = uid(job)
    assert engine.submit(job) == first
    assert uid(job) == before
    assert cluster.names("ConfigMap") == [f"{RUN}-agent", f"{RUN}-job"]
    assert cluster.names("NetworkPolicy") == [RUN]


def test_what_a_submission_left_half_done_is_completed(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    api = Api(cluster.namespace)
    api.delete("ConfigMap", f"{RUN}-job")
    api.delete("NetworkPolicy", RUN)
    Kubernetes().submit(job)
    assert cluster.names("ConfigMap") == [f"{RUN}-agent", f"{RUN}-job"]
    assert cluster.names("NetworkPolicy") == [RUN]


def test_all_objects_go_with_the_set(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    api = Api(cluster.namespace)
    for kind, name in (("ConfigMap", f"{RUN}-job"), ("NetworkPolicy", RUN)):
        found = api.get(kind, name)
        assert found is not None
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("JobSet", uid(job))


def test_another_runs_set_of_the_same_name_is_left_alone(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    annotation = {names.RUN_ANNOTATION: "somebody-elses"}
    cluster.change("JobSet", RUN, {"metadata": {"annotations": annotation}})
    with pytest.raises(EngineError, match="somebody-elses"):
        Kubernetes().submit(job)
    assert Kubernetes().standing(job).state is EngineState.UNKNOWN


def test_a_job_that_kueue_does_not_take_up_says_so(cluster: Cluster, job: Job) -> None:
    found = Kubernetes().submit(job)
    assert found.detail.startswith("suspended by queue research")
    assert "versions do not go together" in found.detail


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        (
            [condition("QuotaReserved", "False", "Pending", "insufficient unused quota for h100")],
            "suspended by queue research: Pending: insufficient unused quota for h100",
        ),
        (
            [
                condition("QuotaReserved", "False", "Pending", "x"),
                condition("Evicted", "True", "Preempted", "by a workload of higher priority"),
            ],
            "evicted: Preempted: by a workload of higher priority",
        ),
        ([condition("QuotaReserved", "True", "QuotaReserved", "x")], "admission checks"),
        (
            [
                condition("QuotaReserved", "True", "QuotaReserved", "x"),
                condition("Admitted", "True", "Admitted", "x"),
            ],
            "admitted, to be started",
        ),
    ],
)
def test_a_waiting_job_says_why_in_kueues_words(
    cluster: Cluster, job: Job, conditions: list[dict[str, Any]], words: str
) -> None:
    Kubernetes().submit(job)
    workload(cluster, job, *conditions)
    found = Kubernetes().standing(job)
    assert found.state is EngineState.QUEUED
    assert words in found.detail


def test_a_job_starts_runs_and_is_complete(cluster: Cluster, job: Job) -> None:
    engine = Kubernetes()
    engine.submit(job)
    admit(cluster)
    assert "0 of 2 pods run" in engine.standing(job).detail
    pods(cluster, clusters.running(), clusters.waiting("ContainerCreating"))
    assert engine.standing(job).detail == "starting: 1 of 2 pods run"
    cluster.change("Pod", f"{RUN}-host-0-1-abcde", {"status": clusters.running()})
    found = engine.standing(job)
    assert (found.state, found.detail) == (EngineState.RUNNING, "2 pods run")
    end_set(cluster, "Completed", restarts=2, restartsCountTowardsMax=1)
    found = engine.standing(job)
    assert (found.state, found.exit_code) == (EngineState.ENDED, 0)
    assert "restarted 2 times, 1 of them count, at most 50" in found.detail


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (clusters.waiting("ImagePullBackOff", "no such image"), "ImagePullBackOff: no such image"),
        (clusters.ended(64), "node-0 failed with exit code 64: the configuration cannot be used"),
        (clusters.ended(85, message="HostLost on n7"), "failed with exit code 85: HostLost on n7"),
        (
            {
                "phase": "Pending",
                "conditions": [condition("PodScheduled", "False", "Unschedulable", "0/4 nodes")],
            },
            "finds no node: Unschedulable: 0/4 nodes",
        ),
        (
            clusters.running()
            | {"conditions": [condition("DisruptionTarget", "True", "Evicted", "drained")]},
            "node-0 is disrupted: Evicted: drained",
        ),
    ],
)
def test_trouble_of_a_pod_is_named_with_its_node(
    cluster: Cluster, job: Job, status: dict[str, Any], words: str
) -> None:
    Kubernetes().submit(job)
    admit(cluster)
    pods(cluster, status)
    found = Kubernetes().standing(job)
    assert found.state is EngineState.RUNNING
    assert words in found.detail


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (64, EngineState.ENDED),
        (71, EngineState.ENDED),
        (85, EngineState.ENDED),
        (86, EngineState.HELD),
        (93, EngineState.HELD),
    ],
)
def test_a_set_that_is_given_up_has_the_runs_code(
    cluster: Cluster, job: Job, code: int, state: EngineState
) -> None:
    Kubernetes().submit(job)
    admit(cluster)
    child(cluster, f"{RUN}-host-0", failed_with(code))
    end_set(cluster, "Failed", "applying FailJobSet failure policy action")
    found = Kubernetes().standing(job)
    assert (found.state, found.exit_code) == (state, code)
    assert f"exit code {code}" in found.detail
    pods(cluster, clusters.ended(code, message="ValueError on node-3:\nrank 7"))
    assert "ValueError on node-3: rank 7" in Kubernetes().standing(job).detail


def test_the_users_error_is_told_not_what_came_with_it(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    admit(cluster)
    child(cluster, f"{RUN}-host-0", failed_with(85))
    child(cluster, f"{RUN}-host-1", failed_with(65))
    end_set(cluster, "Failed")
    assert Kubernetes().standing(job).exit_code == 65


def test_a_code_that_no_rule_names_is_read_from_the_pod(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    admit(cluster)
    child(cluster, f"{RUN}-host-0", "limit reached", reason="BackoffLimitExceeded")
    pods(cluster, clusters.running(), clusters.ended(137))
    end_set(cluster, "Failed", "reached max number of restarts")
    found = Kubernetes().standing(job)
    assert (found.state, found.exit_code) == (EngineState.ENDED, 137)


def test_cancel_leaves_nothing_and_can_be_said_twice(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    Kubernetes().cancel(job)
    assert cluster.names("JobSet") == []
    Kubernetes().cancel(job)
    found = Kubernetes().standing(job)
    assert found.state is EngineState.UNKNOWN
    assert "no JobSet" in found.detail
    assert found == Kubernetes().standing(job)


@pytest.mark.parametrize(
    ("want", "state"), [(Want.DRAIN, EngineState.HELD), (Want.CANCEL, EngineState.ENDED)]
)
def test_a_set_that_a_person_has_ended_is_told_from_one_that_never_was(
    cluster: Cluster, job: Job, want: Want, state: EngineState
) -> None:
    pathlib.Path(job.job_dir).mkdir()
    Kubernetes().submit(job)
    Control(want=want, by="ada", time=0.0).write(job.job_dir)
    assert Kubernetes().standing(job).state is EngineState.QUEUED
    Kubernetes().cancel(job)
    assert Kubernetes().standing(job).state is state
    assert Kubernetes().release(job).state is EngineState.QUEUED


def test_a_held_set_is_given_back_to_kueue(cluster: Cluster, job: Job) -> None:
    engine = Kubernetes()
    engine.submit(job)
    evicted = condition("Evicted", "True", "MaximumExecutionTimeExceeded", "ran for 24 h")
    workload(cluster, job, evicted, active=False)
    found = engine.standing(job)
    assert found.state is EngineState.HELD
    assert "MaximumExecutionTimeExceeded: ran for 24 h" in found.detail
    before = uid(job)
    assert engine.release(job).state is EngineState.QUEUED
    assert uid(job) == before


def test_a_set_that_has_ended_is_made_anew(cluster: Cluster, job: Job) -> None:
    engine = Kubernetes()
    engine.submit(job)
    before = uid(job)
    child(cluster, f"{RUN}-host-0", failed_with(86))
    end_set(cluster, "Failed")
    larger = dataclasses.replace(job.spec.resources, hosts=4)
    again = dataclasses.replace(job, spec=dataclasses.replace(job.spec, resources=larger))
    api = Api(cluster.namespace)
    if clusters.REAL:  # nobody owns what a test has made
        api.delete("Job", f"{RUN}-host-0")
    assert engine.release(again).state is EngineState.QUEUED
    assert uid(job) != before
    found = api.get("JobSet", RUN)
    assert found is not None
    assert found["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 4
    config = api.get("ConfigMap", f"{RUN}-job")
    assert config is not None
    read = Job.from_json(config["data"][names.JOB_FILE], source="job.json")
    assert read.spec.resources.hosts == 4


def test_a_set_that_runs_is_not_released(cluster: Cluster, job: Job) -> None:
    Kubernetes().submit(job)
    admit(cluster)
    before = uid(job)
    assert Kubernetes().release(job).state is EngineState.RUNNING
    assert uid(job) == before


def test_a_cancelled_run_is_submitted_by_its_release(cluster: Cluster, job: Job) -> None:
    assert Kubernetes().release(job).state is EngineState.QUEUED
    assert cluster.names("JobSet") == [RUN]
