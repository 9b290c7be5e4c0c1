"""Rendered objects are what Kubernetes, JobSet and Kueue take, and mean what the job file says."""

import base64
import copy
import dataclasses
import itertools
import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launch import manifests
from launch.engines import kubernetes_names as names
from launch.engines import kubernetes_objects, kubernetes_pod, kubernetes_refusals
from launch.engines.kubernetes import Kubernetes
from launch.exit_codes import ExitCode, RetryClass, ending
from launch.spec import (
    Budgets,
    Fabric,
    Isolation,
    Job,
    JobSpec,
    KubernetesOptions,
    Owner,
    Placement,
    Priority,
    Recovery,
    Resources,
    Runtime,
    Secret,
    SecretForm,
    Spot,
    SpotUse,
    Topology,
    TopologyLevel,
    Workload,
)
from tests.launch import kubernetes_jobs as jobs
from tests.launch import kubernetes_schemas as schemas

SECRETS = (
    Secret(name="HF_TOKEN", ref="k8s:hub/token"),
    Secret(name="WANDB_KEY", ref="k8s:tracking/key", form=SecretForm.ENV),
)
RACKS = Topology(level=TopologyLevel.RACK, placement=Placement.REQUIRED)
SIXTEEN = Resources(accelerator="h100", hosts=16, per_host=8)

SPECS = {
    "small": jobs.spec(),
    "on_a_claim": jobs.on_a_claim(),
    "large": jobs.spec(
        resources=dataclasses.replace(
            SIXTEEN, cpus_per_host=96, memory_gib=1024, fabric=Fabric.EFA
        ),
        topology=dataclasses.replace(RACKS, slices=2),
        kubernetes=KubernetesOptions(resources={"vpc.amazonaws.com/efa": "32"}),
        priority=Priority.CRITICAL,
        runtime=Runtime(max_walltime_s=86400.0, grace_s=90.5),  # type: ignore[arg-type]
    ),
    "rack": jobs.spec(topology=RACKS),
    "spot": jobs.spec(spot=Spot(use=SpotUse.REQUIRE), priority=Priority.PREEMPTIBLE),
    "tpu": jobs.spec(
        resources=Resources(accelerator="tpu-v5p", hosts=4, per_host=4),
        kubernetes=KubernetesOptions(
            node_selector={"cloud.google.com/gke-tpu-topology": "2x2x4"}, namespace="tpus"
        ),
    ),
    "cpu": jobs.spec(resources=Resources(accelerator="cpu", hosts=1, per_host=1)),
    "secrets": jobs.spec(secrets=SECRETS),
    "open": jobs.spec(
        isolation=Isolation(deny_other_jobs=False, run_as_non_root=False, service_account="trainer")
    ),
    "torch": jobs.spec(workload=Workload(command=("python", "train.py", "--a b"))),
}


def objects(job: Job) -> list[dict[str, Any]]:
    return [o for group in kubernetes_objects.objects(job).values() for o in group]


def jobset(spec: JobSpec) -> dict[str, Any]:
    return kubernetes_objects.jobset(jobs.job(spec))


def child(spec: JobSpec) -> dict[str, Any]:
    (replicated,) = jobset(spec)["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod(spec: JobSpec) -> dict[str, Any]:
    return child(spec)["template"]["spec"]


def container(spec: JobSpec) -> dict[str, Any]:
    (found,) = pod(spec)["containers"]
    return found


@pytest.mark.parametrize("name", SPECS)
def test_every_object_is_valid_against_the_closed_schemas_and_their_rules(name: str) -> None:
    assert kubernetes_refusals.refusals(SPECS[name]) == []
    for obj in objects(jobs.job(SPECS[name])):
        assert schemas.problems(obj) == [], obj["kind"]


@pytest.mark.parametrize("name", SPECS)
def test_yaml_holds_exactly_the_objects_that_are_submitted(name: str) -> None:
    job = jobs.job(SPECS[name])
    rendered = Kubernetes().render(job)
    read = [o for text in rendered.files.values() for o in yaml.safe_load_all(text)]
    assert read == objects(job)
    assert rendered == Kubernetes().render(job)
    words = list(rendered.command)
    assert words[:2] == ["kubectl", "create"]
    assert [w for w in words[2:] if w != "--filename"] == list(rendered.files)
    assert list(rendered.files)[-1] == "jobset.yaml"
    assert read[-1]["kind"] == "JobSet", "what it needs is there before it"


def planted() -> list[tuple[str, Any, str]]:
    """(what, change of a valid JobSet, words of the complaint)"""
    template = ("spec", "replicatedJobs", 0, "template", "spec")
    main = (*template, "template", "spec", "containers", 0)
    return [
        ("misspelt field", ((*template, "backoffLimits"), 0), "backoffLimits"),
        ("misspelt field of a pod", ((*main, "comand"), ["x"]), "comand"),
        ("wrong type", ((*template, "parallelism"), "2"), "not of type 'integer'"),
        ("unknown strategy", (("spec", "failurePolicy", "restartStrategy"), "All"), "not one of"),
        (
            "two variables of one name",
            ((*main, "env", 1), {"name": "PYTHONUNBUFFERED"}),
            "same name",
        ),
        ("no containers", ((*template, "template", "spec", "containers"), None), "None"),
        (
            "order beside dependence",
            (("spec", "startupPolicy"), {"startupPolicyOrder": "InOrder"}),
            "mutually exclusive",
        ),
    ]


@pytest.mark.parametrize(("what", "change", "words"), planted(), ids=lambda v: str(v)[:25])
def test_errors_that_are_planted_are_found(what: str, change: Any, words: str) -> None:
    broken = copy.deepcopy(jobset(SPECS["large"]))
    path, value = change
    place = broken
    for key in path[:-1]:
        place = place[key]
    if what == "two variables of one name":
        place.insert(path[-1], value)
    else:
        place[path[-1]] = value
    if what == "order beside dependence":  # only a rule in CEL knows this one
        place["replicatedJobs"].append(
            copy.deepcopy(place["replicatedJobs"][0])
            | {"name": "second", "dependsOn": [{"name": "host", "status": "Ready"}]}
        )
    (found, *_) = schemas.problems(broken)
    assert words in found


def test_errors_in_core_kinds_are_found() -> None:
    policy = kubernetes_objects.network_policy(jobs.job())
    policy["spec"]["podSelectors"] = policy["spec"].pop("podSelector")
    assert any("podSelector" in problem for problem in schemas.problems(policy))


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


def matched(message: str, spec: JobSpec) -> str:
    """What JobSet does on a Job's failure: its rules in order, the first match."""
    for rule in jobset(spec)["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if any(re.search(pattern, message) for pattern in patterns):
            return rule["action"]
    raise AssertionError("no rule")


def of_code(code: int) -> str:
    rule = "matching FailJob rule at index 1"
    return f"Container main for pod research/p failed with exit code {code} {rule}"


@pytest.mark.parametrize("code", [*ExitCode, 1, 2, 42, 134, 137, 139, 143])
def test_every_exit_code_is_answered_as_the_contract_says(code: int) -> None:
    retry = ending(code).retry
    if code in (ExitCode.DONE, ExitCode.ENGINE_UNREACHABLE, ExitCode.INTERRUPTED):
        return  # no failure; codes of commands
    (_, on_codes) = child(jobs.spec())["podFailurePolicy"]["rules"]
    named = code in on_codes["onExitCodes"]["values"]
    message = of_code(code) if named else "Job has reached the specified backoff limit"
    final = {RetryClass.USER, RetryClass.MEMORY, RetryClass.HOLD, RetryClass.NO_PROGRESS}
    if retry in final:
        expected = "FailJobSet"
    elif retry is RetryClass.PREEMPTION:
        expected = "RestartJobSetAndIgnoreMaxRestarts"
    else:
        expected = "RestartJobSet"
    assert named == (code in set(ExitCode))
    assert matched(message, jobs.spec()) == expected


def test_a_code_is_not_taken_for_another_that_begins_alike() -> None:
    assert matched(of_code(64), jobs.spec()) == "FailJobSet"
    assert matched(of_code(640), jobs.spec()) == "RestartJobSet"
    assert matched(of_code(175), jobs.spec()) == "RestartJobSet"


def test_disruptions_count_against_no_limit_and_come_before_the_exit_code() -> None:
    (first, _) = child(jobs.spec())["podFailurePolicy"]["rules"]
    assert first == {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    message = "Pod research/p has condition DisruptionTarget matching FailJob rule at index 0"
    assert matched(message, jobs.spec()) == "RestartJobSetAndIgnoreMaxRestarts"


def test_one_failed_pod_ends_the_gang_and_it_starts_again_whole() -> None:
    policy = jobset(jobs.spec())["spec"]["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"
    one = child(jobs.spec())
    assert (one["backoffLimit"], one["podReplacementPolicy"]) == (0, "Failed")
    assert pod(jobs.spec())["restartPolicy"] == "Never"


def test_sets_are_restarted_as_often_as_hosts_may_fail() -> None:
    spec = jobs.spec(recovery=Recovery(budgets=Budgets(infrastructure=7)))
    assert jobset(spec)["spec"]["failurePolicy"]["maxRestarts"] == 7


def test_the_set_waits_for_kueue_whole_and_never_asks_for_a_part() -> None:
    for spec in SPECS.values():
        found = jobset(spec)
        assert found["spec"]["suspend"] is True
        assert "min-parallelism" not in json.dumps(found)
        assert found["metadata"]["labels"][names.QUEUE_LABEL] == "research"


def test_priorities_are_five_different_classes() -> None:
    found = [
        jobset(jobs.spec(priority=p))["metadata"]["labels"][names.PRIORITY_LABEL] for p in Priority
    ]
    assert found == ["critical", "high", "normal", "low", "preemptible"]


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


def test_spares_are_pods_of_the_set() -> None:
    assert child(jobs.spec(recovery=Recovery(spares=2)))["parallelism"] == 4


def test_slices_are_jobs_and_hosts_are_pods() -> None:
    spec = jobs.spec(resources=SIXTEEN, topology=dataclasses.replace(RACKS, slices=2))
    (replicated,) = jobset(spec)["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 2
    one = replicated["template"]["spec"]
    assert (one["parallelism"], one["completions"]) == (8, 8)
    assert one["completionMode"] == "Indexed"


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


def test_a_run_lets_in_its_own_pods_only() -> None:
    (policy,) = (o for o in objects(jobs.job()) if o["kind"] == "NetworkPolicy")
    own = {"matchLabels": {names.RUN_LABEL: "train-0a1b2c"}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
    labels = child(jobs.spec())["template"]["metadata"]["labels"]
    assert labels.items() >= own["matchLabels"].items()
    assert not any(o["kind"] == "NetworkPolicy" for o in objects(jobs.job(SPECS["open"])))


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


@given(run_id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,90}", fullmatch=True), hosts=st.integers(1, 4096))
def test_names_are_short_enough_for_the_longest_pod(run_id: str, hosts: int) -> None:
    resources = Resources(accelerator="h100", hosts=hosts)
    job = jobs.job(jobs.spec(resources=resources), run_id=run_id)
    name = names.jobset_name(job)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-{names.REPLICATED_JOB}-0-{hosts - 1}-abcde") <= 63
    assert name == names.jobset_name(job)


def test_long_ids_that_begin_alike_have_different_names() -> None:
    ids = [f"{'x' * 70}{i}" for i in range(20)]
    found = {names.jobset_name(jobs.job(run_id=run_id)) for run_id in ids}
    assert len(found) == 20


def test_trials_are_sets_of_their_own() -> None:
    found = [
        kubernetes_objects.jobset(jobs.job(run_id=f"sweep-{i}", trial=i))["metadata"]
        for i in range(3)
    ]
    assert len({m["name"] for m in found}) == 3
    assert [m["labels"][names.TRIAL_LABEL] for m in found] == ["0", "1", "2"]


def test_the_agent_fits_into_a_config_map() -> None:
    config = kubernetes_objects.agent_config(jobs.job())
    assert len(json.dumps(config)) < 2**20
    assert base64.b64decode(config["binaryData"][names.AGENT_FILE]).startswith(b"PK")


def test_labels_are_valid_for_any_team() -> None:
    for team in ("research", "Team With Spaces", "x" * 80, "-dash", "ünïcode"):
        spec = jobs.spec(
            owner=Owner(team=team), kubernetes=KubernetesOptions(namespace="n", queue="q")
        )
        for value in names.labels(jobs.job(spec)).values():
            assert re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", value)
            assert len(value) <= 63


def test_files_and_objects_have_distinct_names() -> None:
    found = [(o["kind"], o["metadata"]["name"]) for o in objects(jobs.job())]
    assert all(a != b for a, b in itertools.combinations(found, 2))
