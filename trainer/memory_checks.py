"""Refuses a use of host memory that the devices at hand do not have, before anything is compiled.

May import configuration and meshes.
"""

from jax.sharding import Mesh

from trainer.run_config import LanguageModel, RunConfig


def check_memory(config: RunConfig, *, mesh: Mesh) -> None:
    """Raises ValueError where something is to wait in host memory and would not.

    jax names a "pinned_host" memory on CPU too, and XLA then drops the moves without a word.
    """
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    if config.optimizer.offload and is_cpu:
        raise ValueError(
            f"{type(config.optimizer).__name__}.offload=True, but CPU devices compute in host "
            "memory: nothing would be freed. Leave it out."
        )
    task = config.task
    if not isinstance(task, LanguageModel):
        return
    choices = task.model.remat_choices
    if choices is None or not choices.offload:
        return
    given = f"DecoderConfig.remat={task.model.remat!r} offloads to host memory, but "
    if is_cpu:
        raise ValueError(
            f"{given}CPU devices compute in host memory: nothing would be freed. Write 'save:' "
            "instead of 'offload:', or leave the names out to compute the values again."
        )
    if mesh.shape["stage"] > 1:
        raise ValueError(
            f"{given}with MeshConfig.stage={mesh.shape['stage']} a stage keeps only its inputs and "
            "computes the rest again right before it is needed, so that nothing would wait. Take "
            "'full', 'selective' or 'save:', or MeshConfig.stage=1."
        )
