"""Programs for GPUs that are not there call cuDNN's attention, whatever the mesh."""

import dataclasses

import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused_attention

from partitioning.mesh_config import MeshConfig, PipelineConfig
from partitioning.target_cudnn import kernels_of
from partitioning.targets import target_devices
from tests.trainer.test_deviceless import HYBRID, MODEL, compiled

KERNEL, BACKWARD = "__cudnn$fmha", "SoftmaxBackward"


@pytest.mark.parametrize(
    "layout",
    [
        {"rules": "fsdp_tp", "mesh": HYBRID},
        {"rules": "tp", "mesh": MeshConfig(tensor=8)},
        {
            "rules": "pp",
            "mesh": MeshConfig(data=2, stage=2, tensor=2),
            "microbatches": 4,
            "pipeline": PipelineConfig(schedule="circular"),
            "model": dataclasses.replace(MODEL, layers=12),
        },
        {
            "rules": "pp",
            "mesh": MeshConfig(data=2, stage=4),
            "microbatches": 4,
            "model": dataclasses.replace(MODEL, layers=12),
        },
        {"rules": "cp", "mesh": MeshConfig(fsdp=2, context=4)},
    ],
    ids=[
        "split heads",
        "fewer key heads than ranks",
        "inside of stages",
        "inside of stages that nothing else splits",
        "over context",
    ],
)
def test_attention_is_the_kernel(layout):
    _, step = compiled(**layout)
    assert KERNEL in step.text
    assert BACKWARD in step.text


@pytest.mark.parametrize(
    ("target", "hopper"), [("a100_40gb", False), ("h200", True), ("b200", True)]
)
def test_what_jax_asks_of_a_gpu_the_target_answers(target, hopper):
    device = target_devices(target, devices=8)[0]
    with kernels_of(device):
        assert fused_attention.check_compute_capability("9.0") is hopper
        assert fused_attention.is_cuda_compute_capability_equal("10.0") is (target == "b200")
        assert fused_attention.check_cudnn_version() > 90_000


def test_other_platforms_ask_what_is_here():
    asked = fused_attention.check_cudnn_version
    with kernels_of(target_devices("cpu", devices=1)[0]):
        assert fused_attention.check_cudnn_version is asked
