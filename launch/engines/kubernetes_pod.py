"""The pods of a run: one per host, all from this template. Pure; standard library only.

What a pod runs is the launcher's own agent, brought in a ConfigMap (launch/engines/bundle.py), so
that the command of the job, whatever it holds, travels as JSON and meets no shell and no template.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable
from typing import Any

from launch import fabric
from launch.engines import kubernetes_names as names
from launch.spec import (
    Job,
    JobSpec,
    Placement,
    Seconds,
    Secret,
    SecretForm,
    SpotUse,
    TopologyLevel,
)

AGENT_END_S = 15
"""Given to the agent beyond the processes' grace: it kills what is left, and says how it ended."""

NODE_LOST_S = 20
"""A pod leaves a node that is not ready or unreachable after this long; Kubernetes' own is 300."""

_RESOURCES = {"tpu": "google.com/tpu", "trn": "aws.amazon.com/neuron", "mi": "amd.com/gpu"}
_READ_BY_ALL = 0o444  # in the pod only; restricted pods run as a user that is not known here

Object = dict[str, Any]


def accelerator_resource(spec: JobSpec) -> str:
    """Returns the resource that counts accelerators on nodes; empty for cpu."""
    if spec.kubernetes.accelerator_resource or spec.resources.accelerator == "cpu":
        return spec.kubernetes.accelerator_resource
    kinds = (kind for kind in _RESOURCES if spec.resources.accelerator.startswith(kind))
    return _RESOURCES.get(next(kinds, ""), "nvidia.com/gpu")


def mount_path(spec: JobSpec) -> str:
    """Returns where the claim is mounted; empty where there is none."""
    if not spec.kubernetes.volume_claim:
        return ""
    if spec.kubernetes.volume_path:
        return spec.kubernetes.volume_path.rstrip("/")
    return "/" + pathlib.PurePosixPath(spec.checkpoint.root).parts[1]


def in_pod(job: Job) -> Job:
    """Returns the job as its pods read it.

    What the launcher writes goes into the run directory where that is on the claim, else into a
    folder that ends with the pod. The longest time is Kueue's to watch over: pods that end by
    themselves before would be started again where they were.
    """
    mount = mount_path(job.spec)
    runtime = dataclasses.replace(job.spec.runtime, max_walltime_s=Seconds(0.0))
    kept = [
        folder for folder in (job.job_dir, job.spec.checkpoint.root) if _is_below(folder, mount)
    ]
    return dataclasses.replace(
        job,
        job_dir=kept[0] if kept else f"{names.STATE_DIR}/job",
        code_dir=job.code_dir if _is_below(job.code_dir, mount) else ".",
        spec=dataclasses.replace(job.spec, runtime=runtime),
    )


def template(job: Job) -> Object:
    """Returns the pod template of the replicated Job."""
    spec = job.spec
    pod: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(spec.runtime.grace_s) + AGENT_END_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(spec),
        "containers": [_container(job)],
        "volumes": _volumes(job),
        "tolerations": _tolerations(spec),
    }
    if spec.isolation.service_account:
        pod["serviceAccountName"] = spec.isolation.service_account
    if selector := _node_selector(spec):
        pod["nodeSelector"] = selector
    if spec.kubernetes.exclude:
        pod["affinity"] = _elsewhere(spec.kubernetes.exclude)
    annotations = {names.RUN_ANNOTATION: job.run_id, **_topology(spec)}
    return {"metadata": {"labels": names.labels(job), "annotations": annotations}, "spec": pod}


def _is_below(path: str, mount: str) -> bool:
    return bool(mount) and pathlib.PurePosixPath(path).is_relative_to(mount)


def _topology(spec: JobSpec) -> dict[str, str]:
    """Returns Kueue's annotations; a set without any is placed as it comes.

    Slices that must be close are Kueue's slices. Kueue has no slices that are only preferred, so
    there the whole set is: it then takes as few racks or blocks as it can.
    """
    level = spec.topology.level
    if level is TopologyLevel.HOST:
        return {}
    options = spec.kubernetes
    label = options.rack_label if level is TopologyLevel.RACK else options.block_label
    if spec.topology.placement is Placement.PREFERRED:
        return {names.PREFERRED_TOPOLOGY: label}
    if spec.topology.slices == 1:
        return {names.REQUIRED_TOPOLOGY: label}
    size = spec.resources.hosts // spec.topology.slices
    return {
        names.PREFERRED_TOPOLOGY: label,
        names.SLICE_TOPOLOGY: label,
        names.SLICE_SIZE: str(size),
    }


def _node_selector(spec: JobSpec) -> dict[str, str]:
    """Returns labels that nodes must have; those of the job file instead of the kind's own."""
    selector = dict(spec.kubernetes.node_selector)
    if not selector and spec.resources.accelerator != "cpu":
        selector[names.ACCELERATOR_LABEL] = spec.resources.accelerator
    if spec.spot.use is SpotUse.REQUIRE:
        selector[names.CAPACITY_LABEL] = names.SPOT
    return selector


def _elsewhere(nodes: Iterable[str]) -> Object:
    """Returns the rule that keeps pods off nodes, by their names; a field takes one name each."""
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]}
        for node in dict.fromkeys(nodes)
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _tolerations(spec: JobSpec) -> list[Object]:
    found: list[Object] = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOST_S,
        }
        for condition in ("not-ready", "unreachable")
    ]
    if resource := accelerator_resource(spec):
        found.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    if spec.spot.use is not SpotUse.NEVER:
        found.append(
            {
                "key": names.CAPACITY_LABEL,
                "operator": "Equal",
                "value": names.SPOT,
                "effect": "NoSchedule",
            }
        )
    return found


def _pod_security(spec: JobSpec) -> Object:
    security: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    if spec.isolation.run_as_non_root:
        security["runAsNonRoot"] = True
    return security


def _container(job: Job) -> Object:
    return {
        "name": names.CONTAINER,
        "image": job.spec.code.image,
        "command": [names.literal(job.python), f"{names.CONFIG_DIR}/{names.AGENT_FILE}"],
        "env": _env(job),
        "resources": _resources(job.spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        # a container that left no word of its own shows the end of its log in the pod's status
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job),
    }


def _resources(spec: JobSpec) -> Object:
    """Returns requests and limits; no limit for cores, which would throttle data workers."""
    wanted = spec.resources
    limits: dict[str, str] = {}
    if resource := accelerator_resource(spec):
        limits[resource] = str(wanted.per_host)
    if wanted.memory_gib:
        limits["memory"] = f"{wanted.memory_gib}Gi"
    limits |= spec.kubernetes.resources
    requests = dict(limits)
    if wanted.cpus_per_host:
        requests["cpu"] = str(wanted.cpus_per_host)
    return {name: values for name, values in (("requests", requests), ("limits", limits)) if values}


def _env(job: Job) -> list[Object]:
    """Returns the container's variables: ours, the job file's, secrets, the pod's place."""
    plain = {
        "PYTHONUNBUFFERED": "1",
        "LOCKSTEP_STATE": names.STATE_DIR,
        "LOCKSTEP_COORDINATOR_HOST": names.coordinator_host(job),
        **fabric.environment(job.spec),
    }
    found: list[Object] = [
        {"name": name, "value": names.literal(value)} for name, value in plain.items()
    ]
    for secret in job.spec.secrets:
        found.append(_secret_variable(secret))
    for name, path in {
        "LOCKSTEP_NODE": "spec.nodeName",
        "LOCKSTEP_SET_UID": f"metadata.labels['{names.JOBSET_UID_LABEL}']",
        "LOCKSTEP_RESTART": f"metadata.labels['{names.RESTART_LABEL}']",
        "LOCKSTEP_SLICE": f"metadata.labels['{names.JOB_INDEX_LABEL}']",
    }.items():
        found.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    return found  # JOB_COMPLETION_INDEX is Kubernetes' own, in pods of an indexed Job


def _secret_variable(secret: Secret) -> Object:
    if secret.form is SecretForm.FILE:
        return {"name": f"{secret.name}_FILE", "value": f"{names.SECRETS_DIR}/{secret.name}"}
    name, key = secret_key(secret)
    return {"name": secret.name, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def secret_key(secret: Secret) -> tuple[str, str]:
    """Returns name and key of the Secret that ``k8s:secret/key`` names."""
    name, _, key = secret.ref.removeprefix("k8s:").partition("/")
    return name, key


def _volumes(job: Job) -> list[Object]:
    name = names.jobset_name(job)
    sources = [{"configMap": {"name": f"{name}-{part}"}} for part in ("job", "agent")]
    found: list[Object] = [
        {"name": "config", "projected": {"sources": sources, "defaultMode": _READ_BY_ALL}},
        {"name": "state", "emptyDir": {}},
        {"name": "shm", "emptyDir": _shared_memory(job.spec)},
    ]
    if files := [secret for secret in job.spec.secrets if secret.form is SecretForm.FILE]:
        projected = {"sources": [_secret_source(s) for s in files], "defaultMode": _READ_BY_ALL}
        found.append({"name": "secrets", "projected": projected})
    if claim := job.spec.kubernetes.volume_claim:
        found.append({"name": "runs", "persistentVolumeClaim": {"claimName": claim}})
    return found


def _secret_source(secret: Secret) -> Object:
    name, key = secret_key(secret)
    return {"secret": {"name": name, "items": [{"key": key, "path": secret.name}]}}


def _shared_memory(spec: JobSpec) -> Object:
    """Returns /dev/shm: collectives and data workers need more than a container's 64 MiB."""
    volume: Object = {"medium": "Memory"}
    if spec.resources.memory_gib:
        volume["sizeLimit"] = f"{max(1, spec.resources.memory_gib // 2)}Gi"
    return volume


def _mounts(job: Job) -> list[Object]:
    found: list[Object] = [
        {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": "state", "mountPath": names.STATE_DIR},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if any(secret.form is SecretForm.FILE for secret in job.spec.secrets):
        found.append({"name": "secrets", "mountPath": names.SECRETS_DIR, "readOnly": True})
    if mount := mount_path(job.spec):
        found.append({"name": "runs", "mountPath": mount})
    return found
