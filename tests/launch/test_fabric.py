import pytest

from launch import fabric
from launch.spec import Fabric, Resources, Workload
from tests.launch import kubernetes_jobs as jobs


def resources(accelerator: str, fabric: Fabric = Fabric.ETHERNET) -> Resources:
    return Resources(accelerator=accelerator, fabric=fabric)


@pytest.mark.parametrize("accelerator", ["h100", "h200", "a100", "mi300x"])
def test_gpus_get_the_limit_that_xla_leaves_off_and_a_talking_nccl(accelerator: str) -> None:
    found = fabric.variables(resources(accelerator))
    assert found["NCCL_DEBUG"] == "WARN"
    assert found["XLA_FLAGS"] == "--xla_gpu_nccl_termination_timeout_seconds=600"


@pytest.mark.parametrize("accelerator", ["cpu", "tpu-v5p", "trn2"])
@pytest.mark.parametrize("network", Fabric)
def test_other_kinds_get_nothing_that_is_for_gpus(accelerator: str, network: Fabric) -> None:
    assert fabric.variables(resources(accelerator, network)) == {}


def test_every_fabric_but_ethernet_has_variables_of_its_own() -> None:
    plain = fabric.variables(resources("h100"))
    own = {
        kind: fabric.variables(resources("h100", kind)).items() - plain.items() for kind in Fabric
    }
    assert own.pop(Fabric.ETHERNET) == set()
    assert all(own.values())
    assert ("FI_PROVIDER", "efa") in own[Fabric.EFA]
    assert ("FI_EFA_USE_DEVICE_RDMA", "1") in own[Fabric.EFA]


def test_the_job_file_wins_and_flags_of_xla_are_joined() -> None:
    env = {"NCCL_DEBUG": "INFO", "XLA_FLAGS": "--xla_dump_to=/tmp/x", "OTHER": "1"}
    found = fabric.environment(jobs.spec(workload=Workload(env=env)))
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["OTHER"] == "1"
    assert found["XLA_FLAGS"].split() == [
        "--xla_gpu_nccl_termination_timeout_seconds=600",
        "--xla_dump_to=/tmp/x",
    ]
    assert env["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"
