"""What Kubernetes cannot do is refused before anything is submitted, with what to do instead."""

from typing import Any

import pytest

from launch.engines.kubernetes_refusals import refusals
from launch.spec import (
    Checkpoint,
    Code,
    KubernetesOptions,
    OnLoss,
    Owner,
    Recovery,
    Resources,
    Secret,
    SecretForm,
    Topology,
    Workload,
)
from tests.launch import kubernetes_jobs as jobs

CLAIM = KubernetesOptions(volume_claim="runs")


@pytest.mark.parametrize(
    ("changes", "words", "advice"),
    [
        ({"code": Code()}, "code.image is empty", "name one"),
        ({"code": Code(image="x", snapshot=".")}, "code.snapshot", "code.image"),
        ({"checkpoint": Checkpoint(root="/runs/a")}, "pods share none", "volume_claim"),
        ({"checkpoint": Checkpoint(root="runs/a")}, "must be absolute", "gs://"),
        (
            {"checkpoint": Checkpoint(root="/tmp/a"), "kubernetes": CLAIM},
            "over a folder of the image",
            "/runs",
        ),
        (
            {
                "checkpoint": Checkpoint(root="/runs/a"),
                "kubernetes": KubernetesOptions(volume_claim="runs", volume_path="/data"),
            },
            "not below kubernetes.volume_path",
            "/data",
        ),
        ({"recovery": Recovery(on_loss=OnLoss.SHRINK)}, "shrink", "requeue"),
        (
            {"recovery": Recovery(spares=2), "topology": Topology(slices=2)},
            "recovery.spares is 2",
            "Use 0",
        ),
        (
            {"resources": Resources(accelerator="h100", hosts=3), "topology": Topology(slices=2)},
            "does not divide",
            "3",
        ),
        ({"owner": Owner(team="My Team")}, "kubernetes.namespace", "set kubernetes.namespace"),
        (
            {"kubernetes": KubernetesOptions(node_selector={"pool": "a b"})},
            "node_selector has 'pool': 'a b'",
            "label",
        ),
        ({"kubernetes": KubernetesOptions(rack_label="my rack")}, "rack_label", "label"),
        ({"kubernetes": KubernetesOptions(exclude=("a b",))}, "kubernetes.exclude", "'a b'"),
        (
            {"kubernetes": KubernetesOptions(resources={"rdma/ib": "many"})},
            "'many' of 'rdma/ib'",
            "efa",
        ),
        ({"secrets": (Secret(name="A", ref="file:/x"),)}, "'file:/x'", "k8s:secret/key"),
        ({"workload": Workload(env={"a b": "x"})}, "'a b'", "name"),
        ({"workload": Workload(env={"LOCKSTEP_NODE": "x"})}, "LOCKSTEP_NODE", "another name"),
        (
            {
                "workload": Workload(env={"A": "x"}),
                "secrets": (Secret(name="A", ref="k8s:s/k", form=SecretForm.ENV),),
            },
            "both a variable",
            "rename",
        ),
    ],
)
def test_each_refusal_says_what_was_given_and_what_to_do(
    changes: dict[str, Any], words: str, advice: str
) -> None:
    found = refusals(jobs.spec(**changes))
    assert any(words in line and advice in line for line in found), found


def test_all_refusals_come_at_once() -> None:
    spec = jobs.spec(code=Code(), recovery=Recovery(on_loss=OnLoss.SHRINK), owner=Owner(team="A B"))
    assert len(refusals(spec)) == 4  # the team is no namespace and no queue


@pytest.mark.parametrize("root", ["gs://b/a", "s3://b/a", "/runs/a", "/mnt/x/y/z"])
def test_object_stores_and_paths_on_a_claim_are_taken(root: str) -> None:
    assert refusals(jobs.spec(checkpoint=Checkpoint(root=root), kubernetes=CLAIM)) == []


def test_a_volume_path_may_be_anything_above_the_root() -> None:
    options = KubernetesOptions(volume_claim="runs", volume_path="/mnt/shared/")
    assert (
        refusals(jobs.spec(checkpoint=Checkpoint(root="/mnt/shared/a"), kubernetes=options)) == []
    )
