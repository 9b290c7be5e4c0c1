"""The dataclasses that gin files may bind, and which of their fields may change on resume."""

from input_pipeline import data_config
from models import decoder_config
from partitioning import mesh_config
from trainer import optimizer_config, run_config

CONFIGURABLES: tuple[type, ...] = (
    run_config.RunConfig,
    run_config.LanguageModel,
    run_config.TrainConfig,
    run_config.EvaluationConfig,
    run_config.CheckpointConfig,
    run_config.LoggingConfig,
    decoder_config.DecoderConfig,
    decoder_config.RopeScaling,
    mesh_config.MeshConfig,
    mesh_config.RulesConfig,
    data_config.DataConfig,
    data_config.StandardLibrary,
    data_config.TextFiles,
    data_config.JsonLines,
    data_config.TokenShards,
    data_config.Bytes,
    data_config.TokenizerFile,
    data_config.TrainedBpe,
    optimizer_config.AdamW,
    optimizer_config.Adafactor,
    optimizer_config.Lion,
    optimizer_config.Muon,
    optimizer_config.SGD,
    optimizer_config.ScheduleConfig,
)
"""Every class that a gin file can bind. A new one is a decision: a test counts them."""

EXECUTION: frozenset[str] = frozenset(
    {
        "MeshConfig",
        "RulesConfig",
        "EvaluationConfig",
        "CheckpointConfig",
        "LoggingConfig",
        "TrainConfig.steps",
        "TrainConfig.microbatches",
        "TrainConfig.max_nonfinite",
        "DecoderConfig.remat",
        "DecoderConfig.scan_layers",
        "DecoderConfig.attention",
        "DecoderConfig.loss_chunks",
        "DataConfig.workers",
        "DataConfig.prefetch",
        # Places, not contents: the dataset's digest guards those.
        "TextFiles.root",
        "JsonLines.root",
        "TokenShards.path",
        "TokenizerFile.path",
    }
)
"""Classes and fields that may differ between attempts of one run; all others are identity."""
