"""Refuses sizes that do not divide: batch, experts, stages, over mesh axes. No jax.

Asked before a job is submitted (`trainer.check`) and again before anything is compiled, in the same
words.
"""

from collections.abc import Mapping

from models.decoder_config import DecoderConfig
from partitioning.schedules import check_microbatches
from trainer.run_config import LanguageModel, RunConfig


def check_batch(config: RunConfig, *, sizes: Mapping[str, int]) -> None:
    """Raises ValueError if the batch does not divide over mesh and microbatches.

    Args:
      config: the run.
      sizes: mesh axis -> devices.
    """
    ways = sizes["data"] * sizes["fsdp"] * sizes["expert"]
    parts = ways * config.train.microbatches
    batch = config.data.global_batch
    if batch % parts:
        near = max(batch // parts, 1) * parts
        raise ValueError(
            f"DataConfig.global_batch={batch} does not divide over data x fsdp x expert = {ways} "
            f"and TrainConfig.microbatches={config.train.microbatches}; it must be a multiple of "
            f"{parts}, for example {near}."
        )


def check_loss_chunks(config: RunConfig) -> None:
    """Raises ValueError if the chunks of the loss do not divide a row."""
    task, length = config.task, config.data.sequence_length
    if isinstance(task, LanguageModel) and length % task.model.loss_chunks:
        raise ValueError(
            f"DecoderConfig.loss_chunks={task.model.loss_chunks} does not divide "
            f"DataConfig.sequence_length={length}."
        )


def check_expert_count(model: DecoderConfig, *, devices: int) -> None:
    """Raises ValueError if experts do not divide over the ``devices`` of their mesh axis."""
    if model.experts is None or model.experts.count % devices == 0:
        return
    count = model.experts.count
    fitting = [size for size in range(1, count + 1) if count % size == 0]
    near = [max(size for size in fitting if size < devices)]
    near += [size for size in fitting if size > devices][:1]
    raise ValueError(
        f"ExpertsConfig.count={count} does not divide over MeshConfig.expert={devices}; each "
        f"device holds whole experts. The nearest sizes are {', '.join(map(str, near))}."
    )


def check_stages(config: RunConfig, *, stages: int, repeats: int) -> None:
    """Raises ValueError if layers, chunks and microbatches do not fill the pipeline's stages.

    Args:
      config: the run.
      stages: devices of the mesh axis ``stage``.
      repeats: repeats of the model's pattern of blocks.
    """
    chunks = config.pipeline.chunks
    if stages == 1:
        if chunks > 1:
            raise ValueError(
                f"PipelineConfig.chunks={chunks} needs pipeline stages, but MeshConfig.stage=1."
            )
        return
    if repeats % (stages * chunks):
        raise ValueError(_uneven(repeats, stages=stages, chunks=chunks))
    check_microbatches(stages=stages, chunks=chunks, microbatches=config.train.microbatches)


def check_processes(*, devices: int, processes: int) -> None:
    """Raises ValueError if processes cannot hold equally many devices."""
    if devices % processes:
        raise ValueError(
            f"{devices} devices do not divide over {processes} processes; each holds as many as "
            "the others."
        )


def _uneven(repeats: int, *, stages: int, chunks: int) -> str:
    pairs = [
        (s, c)
        for s in range(2, repeats + 1)
        for c in range(1, repeats // s + 1)
        if repeats % (s * c) == 0
    ]
    near = sorted(pairs, key=lambda p: (abs(p[0] - stages), abs(p[1] - chunks)))[:3]
    shown = ", ".join(f"stage={s} with chunks={c}" for s, c in near)
    over = repeats % (stages * chunks)
    ends = (
        f"; or move {over} of them to DecoderConfig.prefix and suffix, which run on the first and "
        "the last stage"
    )
    return (
        f"{repeats} repeats of the decoder's pattern do not divide over MeshConfig.stage={stages} "
        f"x PipelineConfig.chunks={chunks}. Possible: {shown or 'no stages'}"
        f"{ends if over < repeats else ''}."
    )
