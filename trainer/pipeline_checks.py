"""Refuses, before anything is compiled, pipelines that cannot be filled."""

from trainer.program import Program
from trainer.run_config import RunConfig
from trainer.size_checks import check_stages


def check_pipeline(config: RunConfig, program: Program) -> None:
    """Raises ValueError if layers, chunks and microbatches do not fill the pipeline's stages."""
    stages = program.stages
    if stages == 1:
        check_stages(config, stages=1, repeats=0)
        return
    stacked = [shape for path, (_, shape) in program.axes.items() if program.is_repeated(path)]
    if not stacked:
        raise ValueError(
            f"MeshConfig.stage takes {stages} devices, but {type(config.task).__name__} has no "
            "repeated layers to put there; give the devices to MeshConfig.data or MeshConfig.fsdp."
        )
    check_stages(config, stages=stages, repeats=stacked[0][0])
    layers = next((rule for rule in config.rules.parameters if rule[0] == "layers"), ())
    if layers[1:2] != ("stage",):
        raise ValueError(
            "RulesConfig.parameters must split 'layers' over 'stage' where MeshConfig.stage is "
            f"more than 1; given {layers!r}, take ('layers', 'stage', None)."
        )
