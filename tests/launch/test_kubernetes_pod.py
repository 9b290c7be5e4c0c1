"""The pods of a run: what they ask for, what they may, and that no value is changed on its way."""

import dataclasses
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launch import manifests
from launch.engines import kubernetes_names as names
from launch.engines import kubernetes_objects, kubernetes_pod
from launch.engines.kubernetes import Kubernetes
from launch.spec import (
    Job,
    KubernetesOptions,
    Resources,
    Spot,
    SpotUse,
    Topology,
    TopologyLevel,
    Workload,
)
from tests.launch import kubernetes_jobs as jobs
from tests.launch import kubernetes_schemas as schemas
from tests.launch.kubernetes_specs import RACKS, SIXTEEN, SPECS, child, container, jobset, pod


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (Topology(), {}),
        (RACKS, {names.REQUIRED_TOPOLOGY: "cloud.provider.com/topology-rack"}),
        (
            Topology(level=TopologyLevel.BLOCK),
            {names.PREFERRED_TOPOLOGY: "cloud.provider.com/topology-block"},
        ),
        (
            dataclasses.replace(RACKS, slices=4),
            {
                names.PREFERRED_TOPOLOGY: "cloud.provider.com/topology-rack",
                names.SLICE_TOPOLOGY: "cloud.provider.com/topology-rack",
                names.SLICE_SIZE: "4",
            },
        ),
    ],
)
def test_topology_becomes_kueues_annotations(topology: Topology, expected: dict[str, str]) -> None:
    one = child(jobs.spec(resources=SIXTEEN, topology=topology))
    annotations = one["template"]["metadata"]["annotations"]
    found = {k: v for k, v in annotations.items() if k.startswith("kueue.")}
    assert found == expected


@pytest.mark.parametrize(
    ("accelerator", "resource"),
    [
        ("h100", "nvidia.com/gpu"),
        ("mi300x", "amd.com/gpu"),
        ("tpu-v5p", "google.com/tpu"),
        ("trn2", "aws.amazon.com/neuron"),
    ],
)
def test_accelerators_are_asked_for_by_their_kind(accelerator: str, resource: str) -> None:
    spec = jobs.spec(resources=Resources(accelerator=accelerator, hosts=1, per_host=4))
    assert container(spec)["resources"]["limits"] == {resource: "4"}
    assert pod(spec)["nodeSelector"] == {names.ACCELERATOR_LABEL: accelerator}


def test_memory_is_bounded_and_cores_are_not() -> None:
    found = container(SPECS["large"])["resources"]
    assert found["limits"] == {
        "nvidia.com/gpu": "8",
        "memory": "1024Gi",
        "vpc.amazonaws.com/efa": "32",
    }
    assert found["requests"] == {**found["limits"], "cpu": "96"}


@pytest.mark.parametrize(
    ("use", "tolerated", "selected"),
    [(SpotUse.NEVER, False, False), (SpotUse.ALLOW, True, False), (SpotUse.REQUIRE, True, True)],
)
def test_spot_is_a_toleration_and_where_required_a_selector(
    use: SpotUse, tolerated: bool, selected: bool
) -> None:
    found = pod(jobs.spec(spot=Spot(use=use)))
    assert any(t["key"] == names.CAPACITY_LABEL for t in found["tolerations"]) == tolerated
    assert (found["nodeSelector"].get(names.CAPACITY_LABEL) == names.SPOT) == selected


def test_excluded_nodes_are_asked_for_by_name() -> None:
    spec = jobs.spec(kubernetes=KubernetesOptions(exclude=("n1", "n2", "n1")))
    assert schemas.problems(jobset(spec)) == []
    rule = pod(spec)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((term,),) = rule.values()
    assert [(f["key"], f["operator"], f["values"]) for f in term["matchFields"]] == [
        ("metadata.name", "NotIn", ["n1"]),
        ("metadata.name", "NotIn", ["n2"]),
    ]
    assert "affinity" not in pod(jobs.spec())


def test_a_lost_node_is_left_after_seconds_not_minutes() -> None:
    lost = {
        t["key"]: t["tolerationSeconds"]
        for t in pod(jobs.spec())["tolerations"]
        if t.get("effect") == "NoExecute"
    }
    assert set(lost) == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all(15 <= seconds <= 30 for seconds in lost.values())


def test_the_container_outlives_the_grace_of_its_processes() -> None:
    assert pod(SPECS["large"])["terminationGracePeriodSeconds"] == 91 + 15


def test_names_resolve_before_pods_are_ready() -> None:
    assert jobset(jobs.spec())["spec"]["network"] == {
        "enableDNSHostnames": True,
        "publishNotReadyAddresses": True,
    }
    seen = jobs.environment(container(jobs.spec()))
    assert seen["LOCKSTEP_COORDINATOR_HOST"] == "train-0a1b2c-host-0-0.train-0a1b2c"


def test_secrets_are_references() -> None:
    found = pod(SPECS["secrets"])
    (volume,) = (v for v in found["volumes"] if v["name"] == "secrets")
    assert volume["projected"]["sources"] == [
        {"secret": {"name": "hub", "items": [{"key": "token", "path": "HF_TOKEN"}]}}
    ]
    variables = {v["name"]: v for v in container(SPECS["secrets"])["env"]}
    assert variables["HF_TOKEN_FILE"]["value"] == "/lockstep/secrets/HF_TOKEN"
    assert variables["WANDB_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "tracking", "key": "key"}
    }


@pytest.mark.parametrize("name", [n for n in SPECS if n != "open"])
def test_pods_meet_the_restricted_pod_security_standard(name: str) -> None:
    found = pod(SPECS[name])
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(SPECS[name])["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    allowed = {"configMap", "emptyDir", "projected", "persistentVolumeClaim"}
    assert {kind for v in found["volumes"] for kind in v if kind != "name"} <= allowed
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(found)
    assert found["automountServiceAccountToken"] is False


def test_pods_read_the_job_without_folders_that_they_have_not() -> None:
    def read(job: Job) -> Job:
        text = kubernetes_objects.job_config(job)["data"][names.JOB_FILE]
        return Job.from_json(text, source="job.json")

    here = read(jobs.job())
    assert (here.job_dir, here.code_dir) == ("/lockstep/state/job", ".")
    assert here.spec == jobs.spec()
    claim = read(jobs.job(jobs.on_a_claim(), job_dir="/runs/team/train", code_dir="/runs/code"))
    assert (claim.job_dir, claim.code_dir) == ("/runs/team/train", "/runs/code")
    elsewhere = read(jobs.job(jobs.on_a_claim()))
    assert elsewhere.job_dir == "/runs/team/train", "the run directory outlives pods"
    mounts = {m["name"]: m["mountPath"] for m in container(jobs.on_a_claim())["volumeMounts"]}
    assert mounts["runs"] == "/runs"


def test_the_longest_time_is_kueues_to_watch_over() -> None:
    job = jobs.job(SPECS["large"])
    labels = kubernetes_objects.jobset(job)["metadata"]["labels"]
    assert labels[names.WALLTIME_LABEL] == "86400"
    assert kubernetes_pod.in_pod(job).spec.runtime.max_walltime_s == 0


def test_mounts_and_volumes_belong_together() -> None:
    for spec in SPECS.values():
        volumes = [v["name"] for v in pod(spec)["volumes"]]
        assert sorted(volumes) == sorted(m["name"] for m in container(spec)["volumeMounts"])


@pytest.mark.parametrize("value", jobs.HOSTILE)
def test_hostile_values_reach_the_process_as_they_are(value: str) -> None:
    command = ("prog", value, f"--x={value}")
    spec = jobs.spec(workload=Workload(command=command, env={"VALUE": value, "NEXT": value}))
    read = {}
    for text in Kubernetes().render(jobs.job(spec)).files.values():
        read |= {obj["metadata"]["name"]: obj for obj in yaml.safe_load_all(text)}
    name = names.jobset_name(jobs.job(spec))
    template = read[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (main,) = template["spec"]["containers"]
    seen = jobs.environment(main)
    assert (seen["VALUE"], seen["NEXT"]) == (value, value)
    text = read[f"{name}-job"]["data"][names.JOB_FILE]
    assert Job.from_json(text, source="job.json").command() == command
    assert value not in ("$HOME", "$(HOME)") or value not in json.dumps(main["command"])


@given(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("$()\n\t"), max_size=30
    )
)
def test_any_text_survives_kubernetes_expansion(text: str) -> None:
    assert jobs.expanded(names.literal(text), {"HOME": "x", "": "y"}) == text
    (read,) = yaml.safe_load_all(manifests.text([{"value": text}]))
    assert read == {"value": text}


def test_the_interpreters_path_is_no_template_either() -> None:
    (main,) = kubernetes_objects.jobset(jobs.job(python="/opt/$(HOME)/python"))["spec"][
        "replicatedJobs"
    ][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert jobs.expanded(main["command"][0], {"HOME": "x"}) == "/opt/$(HOME)/python"
