"""From a job to Kubernetes' objects: JobSet, ConfigMaps, NetworkPolicy. Pure; no access.

docs/kubernetes.md says why each field is what it is. The JobSet restarts the whole gang; Kueue
admits it whole or not at all, which is why nothing here ever asks for partial admission.
"""

import json
import math
from collections.abc import Iterable, Sequence

from launch.engines import bundle
from launch.engines import kubernetes_names as names
from launch.engines.kubernetes_pod import Object, in_pod, template
from launch.exit_codes import ExitCode, RetryClass, ending
from launch.spec import Budgets, Job

FINAL_CLASSES = frozenset(
    {RetryClass.USER, RetryClass.MEMORY, RetryClass.HOLD, RetryClass.NO_PROGRESS}
)
"""Ends after which nothing is retried: a person has to change something."""

FREE_CLASSES = frozenset({RetryClass.PREEMPTION})
"""Ends that count against no limit."""

_COMMANDS_ONLY = {ExitCode.ENGINE_UNREACHABLE, ExitCode.INTERRUPTED}
"""Codes of the launcher's own commands; no process of a run ends with them."""


def exit_codes(classes: Iterable[RetryClass]) -> list[int]:
    """Returns the contract's codes whose class is among ``classes``, in order."""
    wanted = frozenset(classes)
    return [
        int(code)
        for code in sorted(ExitCode)
        if code not in _COMMANDS_ONLY and ending(code).retry in wanted
    ]


def max_restarts(budgets: Budgets) -> int:
    """Returns how many failures JobSet answers with a restart.

    They are those of hosts. Everything else is restarted by the run's supervisor inside pods that
    stay, each class within its own budget; JobSet has one counter for all.
    """
    return budgets.infrastructure


def objects(job: Job) -> dict[str, Sequence[Object]]:
    """Returns file name -> objects, in the order in which they are created."""
    isolation = [network_policy(job)] if job.spec.isolation.deny_other_jobs else []
    return {
        "agent.yaml": [agent_config(job)],
        "job.yaml": [job_config(job)],
        "jobset.yaml": [*isolation, jobset(job)],
    }


def jobset(job: Job) -> Object:
    """Returns the gang: as many Jobs as slices, each with the pods of its hosts and spares."""
    slices = job.spec.topology.slices
    pods = names.pod_count(job.spec) // slices
    one_job: Object = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": _pod_failure_policy(),
        "template": template(job),
    }
    return {
        "apiVersion": f"{names.JOBSET_GROUP}/{names.JOBSET_VERSION}",
        "kind": "JobSet",
        "metadata": _metadata(job, labels=_queue_labels(job)),
        "spec": {
            # Kueue starts it; where there is no Kueue it must not start, as nothing would keep
            # half of a gang from taking accelerators.
            "suspend": True,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "failurePolicy": _failure_policy(job.spec.recovery.budgets),
            "replicatedJobs": [
                {"name": names.REPLICATED_JOB, "replicas": slices, "template": {"spec": one_job}}
            ],
        },
    }


def job_config(job: Job) -> Object:
    """Returns the ConfigMap with job.json. Its text meets no expansion."""
    text = json.dumps(json.loads(in_pod(job).to_json()), indent=1)
    return _config_map(job, "job", {"data": {names.JOB_FILE: text}})


def agent_config(job: Job) -> Object:
    """Returns the ConfigMap with the launcher's agent, as base64."""
    return _config_map(job, "agent", {"binaryData": {names.AGENT_FILE: bundle.base64_text()}})


def network_policy(job: Job) -> Object:
    """Returns the rule that lets in the run's own pods and nobody else.

    Ways out stay open: storage, DNS and the accelerators' fabric are outside, and other runs are
    closed by their own rule.
    """
    own = {"matchLabels": {names.RUN_LABEL: names.jobset_name(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        },
    }


def _metadata(job: Job, *, suffix: str = "", labels: dict[str, str] | None = None) -> Object:
    annotations = {names.RUN_ANNOTATION: job.run_id}
    if job.spec.owner.user:
        annotations[names.USER_ANNOTATION] = job.spec.owner.user
    if job.code_digest:
        annotations[names.DIGEST_ANNOTATION] = job.code_digest
    return {
        "name": names.jobset_name(job) + suffix,
        "namespace": names.namespace(job),
        "labels": names.labels(job) | (labels or {}),
        "annotations": annotations,
    }


def _queue_labels(job: Job) -> dict[str, str]:
    labels = {
        names.QUEUE_LABEL: job.spec.kubernetes.queue or job.spec.owner.team,
        names.PRIORITY_LABEL: job.spec.priority.value,
    }
    if job.spec.runtime.max_walltime_s:
        labels[names.WALLTIME_LABEL] = str(math.ceil(job.spec.runtime.max_walltime_s))
    return labels


def _config_map(job: Job, part: str, content: Object) -> Object:
    metadata = _metadata(job, suffix=f"-{part}")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True} | (
        content
    )


def _pod_failure_policy() -> Object:
    """Returns what ends a child Job at once and leaves its code in the Job's message.

    Signals and unknown codes match no rule: backoffLimit 0 ends the Job all the same, but not when
    Kueue has suspended it, whose pods may well die by a signal.
    """
    named = [*exit_codes(FINAL_CLASSES), *exit_codes(FREE_CLASSES), *exit_codes(_counted())]
    on_exit = {"containerName": names.CONTAINER, "operator": "In", "values": sorted(named)}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": disrupted},
            {"action": "FailJob", "onExitCodes": on_exit},
        ]
    }


def _failure_policy(budgets: Budgets) -> Object:
    """Returns JobSet's answer to a failed child Job: the first rule that any of them matches.

    A message is the Job controller's: "Container main for pod n/p failed with exit code 64 matching
    FailJob rule at index 1", or "Pod n/p has condition DisruptionTarget matching ...".
    """

    def rule(name: str, action: str, pattern: str) -> Object:
        return {
            "name": name,
            "action": action,
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [pattern],
        }

    free = "RestartJobSetAndIgnoreMaxRestarts"
    return {
        "maxRestarts": max_restarts(budgets),
        "restartStrategy": "BlockingRecreate",
        "rules": [
            rule("final", "FailJobSet", _code_pattern(exit_codes(FINAL_CLASSES))),
            rule("preempted", free, _code_pattern(exit_codes(FREE_CLASSES))),
            rule("disrupted", free, "has condition DisruptionTarget matching"),
            {"name": "others", "action": "RestartJobSet"},
        ],
    }


def _code_pattern(codes: Sequence[int]) -> str:
    return f"failed with exit code ({'|'.join(str(code) for code in codes)}) matching"


def _counted() -> frozenset[RetryClass]:
    return frozenset(RetryClass) - FINAL_CLASSES - FREE_CLASSES - {RetryClass.DONE}
