"""Environment variables that accelerators and the networks between hosts need, on every engine.

Values are those that the makers of the networks document, and two that were learnt from hangs:
XLA's limit for NCCL collectives is off by default, and NCCL says nothing without NCCL_DEBUG. What a
job file's ``workload.env`` says wins; flags in XLA_FLAGS are joined. Standard library only.
"""

from collections.abc import Mapping

from launch.spec import Fabric, JobSpec, Resources

NCCL_TERMINATION_TIMEOUT_S = 600
"""After this long XLA ends a process whose NCCL collective does not return. It does not catch every
hang; the agent's watchdog is the authority."""

_FABRICS: Mapping[Fabric, Mapping[str, str]] = {
    Fabric.ETHERNET: {},
    Fabric.INFINIBAND: {
        "NCCL_IB_TIMEOUT": "22",  # 4.096 us x 2^22 = 17 s; the default gives up when a link flaps
    },
    Fabric.EFA: {
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_FORK_SAFE": "1",  # the trainer starts data workers
        "NCCL_SOCKET_IFNAME": "^lo,docker,veth",
    },
    Fabric.GPUDIRECT_TCPX: {
        "NCCL_NET": "GPUDirectTCPX",
        "NCCL_CROSS_NIC": "0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    },
}


def is_gpu(accelerator: str) -> bool:
    """Whether a kind of accelerator is a GPU: everything but cpu, tpu-* and trn*."""
    return accelerator != "cpu" and not accelerator.startswith(("tpu", "trn"))


def variables(resources: Resources) -> dict[str, str]:
    """Returns what the kind of accelerator and the fabric ask for.

    The fabric's variables configure NCCL and libfabric, so only GPUs get them.
    """
    if not is_gpu(resources.accelerator):
        return {}
    return {
        "NCCL_DEBUG": "WARN",
        "XLA_FLAGS": f"--xla_gpu_nccl_termination_timeout_seconds={NCCL_TERMINATION_TIMEOUT_S}",
        **_FABRICS[resources.fabric],
    }


def environment(spec: JobSpec) -> dict[str, str]:
    """Returns `variables` and the job file's own: the latter win, after ours in XLA_FLAGS."""
    ours, theirs = variables(spec.resources), dict(spec.workload.env)
    if "XLA_FLAGS" in ours and "XLA_FLAGS" in theirs:
        theirs["XLA_FLAGS"] = f"{ours['XLA_FLAGS']} {theirs['XLA_FLAGS']}"
    return {**ours, **theirs}
