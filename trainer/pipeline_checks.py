"""Refuses, before anything is compiled, pipelines that cannot be filled."""

from partitioning.schedules import check_microbatches
from trainer.program import Program
from trainer.run_config import RunConfig


def check_pipeline(config: RunConfig, program: Program) -> None:
    """Raises ValueError if layers, chunks and microbatches do not fill the pipeline's stages."""
    stages, chunks = program.stages, config.pipeline.chunks
    if stages == 1:
        if chunks > 1:
            raise ValueError(
                f"PipelineConfig.chunks={chunks} needs pipeline stages, but MeshConfig.stage=1."
            )
        return
    stacked = [shape for path, (_, shape) in program.axes.items() if program.is_repeated(path)]
    if not stacked:
        raise ValueError(
            f"MeshConfig.stage takes {stages} devices, but {type(config.task).__name__} has no "
            "repeated layers to put there; give the devices to MeshConfig.data or MeshConfig.fsdp."
        )
    repeats = stacked[0][0]
    if repeats % (stages * chunks):
        raise ValueError(_uneven(repeats, stages=stages, chunks=chunks))
    check_microbatches(stages=stages, chunks=chunks, microbatches=config.train.microbatches)
    layers = next((rule for rule in config.rules.parameters if rule[0] == "layers"), ())
    if layers[1:2] != ("stage",):
        raise ValueError(
            "RulesConfig.parameters must split 'layers' over 'stage' where MeshConfig.stage is "
            f"more than 1; given {layers!r}, take ('layers', 'stage', None)."
        )
    if config.evaluation.sample_tokens:
        raise ValueError(
            f"EvaluationConfig.sample_tokens={config.evaluation.sample_tokens}: a pipeline of "
            f"{stages} stages cannot continue a text token by token. Set it to 0 and sample from "
            "the checkpoint on a mesh with MeshConfig.stage=1."
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
