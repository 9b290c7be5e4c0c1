"""The dataclasses that gin files may bind, and which of their fields may change on resume."""

from typing import Any

from input_pipeline import data_config
from models import decoder_config, experts_config, lora_config
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
    experts_config.ExpertsConfig,
    lora_config.LoraConfig,
    mesh_config.MeshConfig,
    mesh_config.RulesConfig,
    mesh_config.PipelineConfig,
    data_config.DataConfig,
    data_config.StandardLibrary,
    data_config.TextFiles,
    data_config.JsonLines,
    data_config.Conversations,
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
        "PipelineConfig",
        "RulesConfig",
        "EvaluationConfig",
        "CheckpointConfig",
        "LoggingConfig",
        "TrainConfig.steps",
        "TrainConfig.microbatches",
        "TrainConfig.max_nonfinite",
        "AdamW.offload",
        "Adafactor.offload",
        "Lion.offload",
        "Muon.offload",
        "SGD.offload",
        "DecoderConfig.remat",
        "DecoderConfig.scan_layers",
        "DecoderConfig.attention",
        "DecoderConfig.context_attention",
        "DecoderConfig.loss_chunks",
        "ExpertsConfig.matmul",
        "ExpertsConfig.exchange",
        "DataConfig.workers",
        "DataConfig.prefetch",
        # Places, not contents: the dataset's digest guards those.
        "TextFiles.root",
        "JsonLines.root",
        "Conversations.root",
        "TokenShards.path",
        "TokenizerFile.path",
    }
)
"""Classes and fields that may differ between attempts of one run; all others are identity."""

_extensions: dict[str, type] = {}


def register[T: type](cls: T) -> T:
    """Lets gin files bind ``cls``, a frozen dataclass of a module outside this repository.

    Use it as a decorator in a module that the gin file imports (``import my_project.sources``).
    The class itself stays as it is, so that its instances pickle.

    Raises:
      ValueError: it is no frozen dataclass, or another class has its name.
    """
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise ValueError(f"{cls.__name__} is not a frozen dataclass; only those can be bound.")
    taken = {known.__name__: known for known in configurables()}.get(cls.__name__)
    if taken is not None and (taken.__module__, taken.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise ValueError(
            f"{cls.__module__}.{cls.__name__}: {taken.__module__} already registers a class of "
            "that name; rename one."
        )
    _extensions[cls.__name__] = cls
    return cls


def configurables() -> tuple[type, ...]:
    """Returns `CONFIGURABLES` and what imported modules registered."""
    return CONFIGURABLES + tuple(_extensions.values())
