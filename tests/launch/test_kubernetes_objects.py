"""Rendered objects are what Kubernetes, JobSet and Kueue take, and mean what the job file says."""

import base64
import copy
import dataclasses
import itertools
import json
import pathlib
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import spec_reader
from launch.engines import kubernetes_names as names
from launch.engines import kubernetes_objects
from launch.engines.kubernetes import Kubernetes
from launch.engines.kubernetes_refusals import refusals as refused
from launch.exit_codes import ExitCode, RetryClass, ending
from launch.spec import (
    Budgets,
    Checkpoint,
    Code,
    JobSpec,
    KubernetesOptions,
    OnLoss,
    Owner,
    Priority,
    Recovery,
    Resources,
)
from tests.launch import kubernetes_jobs as jobs
from tests.launch import kubernetes_schemas as schemas
from tests.launch.job_files import valid_specs
from tests.launch.kubernetes_specs import (
    RACKS,
    SIXTEEN,
    SPECS,
    child,
    jobset,
    objects,
    pod,
)

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", SPECS)
def test_every_object_is_valid_against_the_closed_schemas_and_their_rules(name: str) -> None:
    assert refused(SPECS[name]) == []
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


EXAMPLES = [
    path
    for path in sorted((REPOSITORY / "configs" / "jobs").glob("*.yaml"))
    if not refused(spec_reader.load(path).spec)
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_for_kubernetes_is_valid(path: pathlib.Path) -> None:
    for obj in objects(jobs.job(spec_reader.load(path).spec)):
        assert schemas.problems(obj) == [], obj["kind"]


def test_there_are_examples_for_kubernetes() -> None:
    assert {path.stem for path in EXAMPLES} >= {"pretrain_512", "spot"}


LABELS = st.sampled_from([{}, {"pool": "a"}, {"cloud.example/zone": "", "b": "C.d_e"}])


@given(drawn=valid_specs(), labels=LABELS, claim=st.sampled_from(["", "runs"]))
@settings(max_examples=40, deadline=None)
def test_any_job_that_is_not_refused_is_valid(
    drawn: JobSpec, labels: dict[str, str], claim: str
) -> None:
    spec = dataclasses.replace(
        drawn,
        code=Code(image="a/b:1"),
        checkpoint=Checkpoint(root="/r/x" if claim else "s3://b/x"),
        recovery=dataclasses.replace(drawn.recovery, on_loss=OnLoss.REQUEUE, spares=0),
        secrets=tuple(dataclasses.replace(each, ref="k8s:a/b") for each in drawn.secrets),
        kubernetes=KubernetesOptions(node_selector=labels, volume_claim=claim),
    )
    assert refused(spec) == []
    for obj in objects(jobs.job(spec)):
        assert schemas.problems(obj) == [], obj["kind"]


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


def test_spares_are_pods_of_the_set() -> None:
    assert child(jobs.spec(recovery=Recovery(spares=2)))["parallelism"] == 4


def test_slices_are_jobs_and_hosts_are_pods() -> None:
    spec = jobs.spec(resources=SIXTEEN, topology=dataclasses.replace(RACKS, slices=2))
    (replicated,) = jobset(spec)["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 2
    one = replicated["template"]["spec"]
    assert (one["parallelism"], one["completions"]) == (8, 8)
    assert one["completionMode"] == "Indexed"


def test_a_run_lets_in_its_own_pods_only() -> None:
    (policy,) = (o for o in objects(jobs.job()) if o["kind"] == "NetworkPolicy")
    own = {"matchLabels": {names.RUN_LABEL: "train-0a1b2c"}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
    labels = child(jobs.spec())["template"]["metadata"]["labels"]
    assert labels.items() >= own["matchLabels"].items()
    assert not any(o["kind"] == "NetworkPolicy" for o in objects(jobs.job(SPECS["open"])))


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
