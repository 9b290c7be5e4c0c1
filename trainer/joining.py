"""Joins the processes of a run through jax's coordination service, on the launcher's word alone."""

from launch.contract import Environment
from trainer import endings
from trainer.coordination import Alone, Coordination, Joined

INITIALIZATION_S = 300
HEARTBEAT_S = 30
SHUTDOWN_S = 30


def join(
    environment: Environment | None,
    *,
    initialization_s: float = INITIALIZATION_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> Coordination:
    """Joins the processes of a run through jax's coordination service.

    Without a launcher, and for a run of one process, nothing is started. jax's detection of
    Slurm, Kubernetes and TPU pods is never used: the launcher's word is the only one.

    Args:
      environment: what the launcher said.
      initialization_s: seconds within which all processes have come.
      heartbeat_s: seconds of silence after which a process counts as dead.

    Raises:
      PeerLostError: not all processes came in time.
    """
    if environment is None:
        return Alone()
    import jax

    devices = list(environment.local_devices)
    if devices:
        jax.config.update("jax_num_cpu_devices", len(devices))
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, devices)))
    if environment.num_processes == 1:
        return Alone()
    host = environment.coordinator.rpartition(":")[0]
    loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            environment.coordinator,
            environment.num_processes,
            environment.process_id,
            local_device_ids=devices or None,
            cluster_detection_method="deactivate",
            initialization_timeout=int(initialization_s),
            heartbeat_timeout_seconds=int(heartbeat_s),
            shutdown_timeout_seconds=SHUTDOWN_S,
            coordinator_bind_address=environment.coordinator if loopback else None,
        )
    except RuntimeError as error:
        raise endings.PeerLostError(
            f"Rank {environment.process_id} could not join {environment.num_processes} processes "
            f"at {environment.coordinator}: {endings.first_line(error)}"
        ) from error
    from jax._src import distributed  # the client has no public name

    return Joined(
        distributed.global_state.client,
        process_index=environment.process_id,
        process_count=environment.num_processes,
    )
