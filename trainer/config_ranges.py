"""Which numbers and patterns make sense in each field, as one table.

Imports the standard library only. Types are checked by `config_types`, relations between fields by
the classes themselves; what is here depends on one field alone. A numeric field without an entry is
caught by a test, so that no run trains with a negative length or a clip of nothing.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval.

    Attributes:
      low: least value.
      high: greatest value.
      above: ``low`` itself is excluded.
      below: ``high`` itself is excluded.
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        parts = [f"{'greater than' if self.above else 'at least'} {self.low:g}"]
        if self.high != math.inf:
            high = int(self.high) if self.high == int(self.high) else self.high
            parts.append(f"{'less than' if self.below else 'at most'} {high}")
        return " and ".join(parts)


COUNT = Range(0, 2**31 - 1)
"""Counted in int32 on devices."""
SIZE = Range(1, 2**31 - 1)
SEED = Range(0, 2**32 - 1)
"""What a jax key tells apart without 64-bit types."""
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1)
FRACTION = Range(0, 1, above=True)
BELOW_ONE = Range(0, 1, below=True)
AXIS = Range(-1, 2**31 - 1)
"""-1 takes the devices that are left; `MeshConfig.sizes` refuses 0."""

RANGES: Mapping[str, Range] = {
    "LanguageModel.z_loss": NOT_NEGATIVE,
    "TrainConfig.steps": SIZE,
    "TrainConfig.microbatches": SIZE,
    "TrainConfig.clip_norm": POSITIVE,
    "TrainConfig.max_nonfinite": SIZE,
    "TrainConfig.ema_decay": BELOW_ONE,
    "TrainConfig.parameter_seed": SEED,
    "TrainConfig.dropout_seed": SEED,
    "EvaluationConfig.every": COUNT,
    "EvaluationConfig.max_batches": SIZE,
    "EvaluationConfig.sample_tokens": COUNT,
    "CheckpointConfig.every": COUNT,
    "CheckpointConfig.keep_latest": SIZE,
    "CheckpointConfig.keep_best": COUNT,
    "CheckpointConfig.keep_every": COUNT,
    "CheckpointConfig.save_timeout_s": POSITIVE,
    "LoggingConfig.every": SIZE,
    "DecoderConfig.vocab_size": SIZE,
    "DecoderConfig.embed_dim": SIZE,
    "DecoderConfig.layers": SIZE,
    "DecoderConfig.heads": SIZE,
    "DecoderConfig.kv_heads": SIZE,
    "DecoderConfig.head_dim": SIZE,
    "DecoderConfig.mlp_dim": SIZE,
    "DecoderConfig.window": SIZE,
    "DecoderConfig.norm_eps": POSITIVE,
    "DecoderConfig.rope_base": POSITIVE,
    "DecoderConfig.local_rope_base": POSITIVE,
    "DecoderConfig.attention_scale": POSITIVE,
    "DecoderConfig.attention_soft_cap": POSITIVE,
    "DecoderConfig.logits_soft_cap": POSITIVE,
    "DecoderConfig.dropout": BELOW_ONE,
    "DecoderConfig.init_scale": NOT_NEGATIVE,
    "DecoderConfig.loss_chunks": SIZE,
    "RopeScaling.factor": POSITIVE,
    "RopeScaling.low_frequency_factor": POSITIVE,
    "RopeScaling.high_frequency_factor": POSITIVE,
    "RopeScaling.original_length": SIZE,
    "ExpertsConfig.count": SIZE,
    "ExpertsConfig.chosen": SIZE,
    "ExpertsConfig.mlp_dim": SIZE,
    "ExpertsConfig.shared_mlp_dim": COUNT,
    "ExpertsConfig.balance_weight": NOT_NEGATIVE,
    "ExpertsConfig.z_weight": NOT_NEGATIVE,
    "ExpertsConfig.capacity": POSITIVE,
    "ExpertsConfig.buffer": POSITIVE,
    "LoraConfig.rank": SIZE,
    "LoraConfig.alpha": POSITIVE,
    "MeshConfig.data": AXIS,
    "MeshConfig.stage": AXIS,
    "MeshConfig.fsdp": AXIS,
    "MeshConfig.expert": AXIS,
    "MeshConfig.context": AXIS,
    "MeshConfig.tensor": AXIS,
    "PipelineConfig.chunks": SIZE,
    "RulesConfig.max_replicated": SHARE,
    "DataConfig.sequence_length": SIZE,
    "DataConfig.global_batch": SIZE,
    "DataConfig.seed": SEED,
    "DataConfig.workers": COUNT,
    "DataConfig.prefetch": COUNT,
    "StandardLibrary.held_out": BELOW_ONE,
    "TextFiles.held_out": BELOW_ONE,
    "JsonLines.held_out": BELOW_ONE,
    "Conversations.held_out": BELOW_ONE,
    "TrainedBpe.vocab_size": SIZE,
    "OptimizerConfig.weight_decay": NOT_NEGATIVE,
    "AdamW.b1": BELOW_ONE,
    "AdamW.b2": BELOW_ONE,
    "AdamW.eps": NOT_NEGATIVE,
    "Adafactor.decay_rate": POSITIVE,
    "Adafactor.min_dim_to_factor": SIZE,
    "Adafactor.clip_threshold": POSITIVE,
    "Lion.b1": BELOW_ONE,
    "Lion.b2": BELOW_ONE,
    "Muon.momentum": BELOW_ONE,
    "Muon.steps": SIZE,
    "Muon.b1": BELOW_ONE,
    "Muon.b2": BELOW_ONE,
    "SGD.momentum": BELOW_ONE,
    "ScheduleConfig.peak": NOT_NEGATIVE,
    "ScheduleConfig.warmup_steps": COUNT,
    "ScheduleConfig.decay_steps": SIZE,
    "ScheduleConfig.cooldown_steps": COUNT,
    "ScheduleConfig.final_ratio": SHARE,
    "ChipConfig.peak_flops": POSITIVE,
    "ChipConfig.peak_flops_8bit": NOT_NEGATIVE,
    "ChipConfig.memory": POSITIVE,
    "ChipConfig.memory_bandwidth": POSITIVE,
    "ChipConfig.reserved": NOT_NEGATIVE,
    "ChipConfig.matmul_efficiency": FRACTION,
    "ChipConfig.attention_efficiency": FRACTION,
    "ChipConfig.bandwidth_efficiency": FRACTION,
    "ChipConfig.overlap": SHARE,
    "ChipConfig.inline_overlap": SHARE,
    "LinkConfig.bandwidth": POSITIVE,
    "LinkConfig.devices": COUNT,
    "LinkConfig.dimensions": SIZE,
    "LinkConfig.latency": NOT_NEGATIVE,
    "LinkConfig.efficiency": FRACTION,
    "ClusterConfig.devices": SIZE,
    "ClusterConfig.per_host": SIZE,
    "ClusterConfig.price": NOT_NEGATIVE,
    "ClusterConfig.failures": NOT_NEGATIVE,
    "ClusterConfig.host_memory": POSITIVE,
    "ClusterConfig.host_bandwidth": POSITIVE,
    "ClusterConfig.storage_write": POSITIVE,
}
"""Field -> range; a class has the entries of its bases. None is no number and always passes."""

PATTERNS = frozenset(
    {
        "TrainConfig.frozen",
        "LoraConfig.targets",
        "OptimizerConfig.decay_exclude",
        "OptimizerConfig.groups",
    }
)
"""Fields whose elements are, or begin with, a regular expression."""


def find(cls: type, field: str) -> Range | None:
    """Returns the range of a field, which may be a base's."""
    names = (f"{base.__name__}.{field}" for base in cls.__mro__)
    return next((RANGES[name] for name in names if name in RANGES), None)


def problems(cls: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the values of a class's fields, one sentence each."""
    for field, value in values.items():
        name = f"{cls.__name__}.{field}"
        limits = find(cls, field)
        if isinstance(value, int | float) and limits is not None and value not in limits:
            yield f"{name}={value}: it must be {limits}."
        if any(f"{base.__name__}.{field}" in PATTERNS for base in cls.__mro__):
            yield from _bad_patterns(name, value)


def _bad_patterns(name: str, elements: tuple[Any, ...]) -> Iterator[str]:
    for element in elements:
        pattern = element[0] if isinstance(element, tuple) else element
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{name}: {pattern!r} is no regular expression: {error}."
