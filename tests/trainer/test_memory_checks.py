"""Host memory is used where it frees device memory, and refused elsewhere."""

import dataclasses

import pytest

from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig
from partitioning.targets import target_devices
from trainer.certificate import programs
from trainer.memory_checks import check_memory
from trainer.run_config import LanguageModel

OFFLOAD = "save:attention;offload:mlp_up"


def check(*, remat=OFFLOAD, target="h100", **sizes):
    model = programs.decoder(remat=remat, scan_layers=True)
    run = dataclasses.replace(programs.load(), task=LanguageModel(model=model))
    mesh = build_mesh(MeshConfig(**sizes), devices=target_devices(target, devices=2))
    check_memory(run, mesh=mesh)


def test_offloading_on_cpu_is_refused():
    with pytest.raises(ValueError, match="CPU devices compute in host memory"):
        check(target="cpu", data=2)


def test_offloading_in_a_pipeline_is_refused():
    with pytest.raises(ValueError, match=r"MeshConfig\.stage=2"):
        check(stage=2)


def test_offloading_on_a_gpu_is_allowed():
    check(fsdp=2)


@pytest.mark.parametrize("remat", ["none", "selective", "full", "save:attention"])
def test_what_stays_on_the_device_is_allowed_everywhere(remat):
    check(remat=remat, target="cpu", stage=2)
