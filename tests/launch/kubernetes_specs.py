"""Job files of many kinds, and parts of what the Kubernetes engine renders of them."""

import dataclasses
from typing import Any

from launch.engines import kubernetes_objects
from launch.spec import (
    Fabric,
    Isolation,
    Job,
    JobSpec,
    KubernetesOptions,
    Placement,
    Priority,
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
