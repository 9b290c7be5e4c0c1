"""What of a job file Kubernetes cannot do, each with what to do instead. Standard library only."""

import pathlib
import re
from collections.abc import Iterator

from launch import fabric
from launch.engines.kubernetes_pod import mount_path
from launch.spec import JobSpec, OnLoss, SecretForm

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[1-9][0-9]*([kMGTP]i?)?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SECRET = re.compile(r"k8s:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")
_OF_THE_IMAGE = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "lockstep", "proc", "root", "run", "sbin", "sys"}
    | {"tmp", "usr", "var"}
)


def refusals(spec: JobSpec) -> list[str]:
    """Returns what a job file asks for in vain."""
    return [
        *_code(spec),
        *_root(spec),
        *_elasticity(spec),
        *_names(spec),
        *_labels(spec),
        *_secrets(spec),
        *_variables(spec),
    ]


def _code(spec: JobSpec) -> Iterator[str]:
    if not spec.code.image:
        yield "code.image is empty; pods run an image: name one, best by digest (name@sha256:...)."
    if spec.code.snapshot:
        yield (
            f"code.snapshot is {spec.code.snapshot!r}, but no folder of this machine reaches a "
            "pod; put the code into code.image and leave code.snapshot out."
        )


def _root(spec: JobSpec) -> Iterator[str]:
    root = spec.checkpoint.root
    if "://" in root:
        return
    if not root.startswith("/"):
        yield f"checkpoint.root is {root!r}; it must be absolute, gs:// or s3://."
        return
    if not spec.kubernetes.volume_claim:
        yield (
            f"checkpoint.root is the path {root!r}, but pods share none: name the claim that holds "
            "it in kubernetes.volume_claim (ReadWriteMany), or use gs:// or s3://."
        )
        return
    mount = pathlib.PurePosixPath(mount_path(spec))
    if len(mount.parts) < 2 or (len(mount.parts) == 2 and mount.name in _OF_THE_IMAGE):
        yield (
            f"the claim would be mounted at {str(mount)!r}, over a folder of the image; begin "
            "checkpoint.root with a folder of its own, such as /runs, or set "
            "kubernetes.volume_path."
        )
    if not pathlib.PurePosixPath(root).is_relative_to(mount):
        yield (
            f"checkpoint.root is {root!r}, which is not below kubernetes.volume_path "
            f"{str(mount)!r}, where the claim is mounted."
        )


def _elasticity(spec: JobSpec) -> Iterator[str]:
    if spec.recovery.on_loss is OnLoss.SHRINK:
        yield (
            "recovery.on_loss is shrink, but a JobSet under Kueue keeps its size: use requeue. To "
            "go on with fewer hosts, cancel, change resources.hosts and submit with the same "
            "checkpoint.root; the checkpoint fits any size."
        )
    if spec.recovery.spares and spec.topology.slices > 1:
        yield (
            f"recovery.spares is {spec.recovery.spares}, but topology.slices is "
            f"{spec.topology.slices}: a spare of one slice is of no use to another. Use 0; lost "
            "pods get new nodes from Kueue."
        )
    if spec.resources.hosts % spec.topology.slices:
        yield (
            f"topology.slices is {spec.topology.slices}, which does not divide resources.hosts "
            f"{spec.resources.hosts}; every slice is one Job of equal size."
        )


def _names(spec: JobSpec) -> Iterator[str]:
    for key, value in (
        ("kubernetes.namespace", spec.kubernetes.namespace or spec.owner.team),
        ("kubernetes.queue", spec.kubernetes.queue or spec.owner.team),
    ):
        if not _DNS_LABEL.fullmatch(value):
            yield (
                f"{key} would be {value!r}, which is no name in Kubernetes (lower-case letters, "
                f"digits and -, at most 63); set {key}."
            )


def _labels(spec: JobSpec) -> Iterator[str]:
    """Looks at what is a label's name, and at names of resources, which are formed alike."""
    options = spec.kubernetes
    for label, value in options.node_selector.items():
        if not _LABEL.fullmatch(label) or not _LABEL_VALUE.fullmatch(value):
            yield f"kubernetes.node_selector has {label!r}: {value!r}, which is no label of a node."
    for key in ("rack_label", "block_label"):
        if not _LABEL.fullmatch(getattr(options, key)):
            yield f"kubernetes.{key} is {getattr(options, key)!r}, which is no label of a node."
    for node in options.exclude:
        if not _LABEL.fullmatch(node):
            yield f"kubernetes.exclude has {node!r}, which is no name of a node."
    resources = dict(options.resources)
    if options.accelerator_resource:
        resources[options.accelerator_resource] = "1"
    for name, count in resources.items():
        if not _LABEL.fullmatch(name) or not _QUANTITY.fullmatch(count):
            yield (
                f"kubernetes asks for {count!r} of {name!r}; a resource reads as in "
                'vpc.amazonaws.com/efa: "32".'
            )


def _secrets(spec: JobSpec) -> Iterator[str]:
    for secret in spec.secrets:
        if not _SECRET.fullmatch(secret.ref):
            yield (
                f"the secret {secret.name} has ref {secret.ref!r}; pods see neither files nor "
                "variables of a host: create a Secret and use k8s:secret/key."
            )


def _variables(spec: JobSpec) -> Iterator[str]:
    plain = fabric.environment(spec)
    for name in spec.workload.env:
        if not _VARIABLE.fullmatch(name):
            yield f"workload.env has {name!r}, which Kubernetes does not take as a variable's name."
        if name.startswith("LOCKSTEP_") or name == "JOB_COMPLETION_INDEX":
            yield f"workload.env sets {name}, by which a pod learns its place; use another name."
    for secret in spec.secrets:
        name = secret.name if secret.form is SecretForm.ENV else f"{secret.name}_FILE"
        if name in plain:
            yield f"{name} is both a variable and what the secret {secret.name} sets; rename one."
