"""Whether a step fits, in one line, and what to change if it does not. Standard library only."""

import math

from launch.contract import Finding, Verdict
from partitioning.planner.answers import shown
from partitioning.planner.cost_model.memory import MemoryUse
from partitioning.planner.hardware import ClusterConfig

SURE = 0.15
"""How far the formula may be off a compiled program (docs/calibration.md)."""

PREALLOCATED = 0.75
"""Share of a GPU's memory that jax takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""

_SPARE = 0.02
_MOST_PREALLOCATED = 0.95
"""The rest is for NCCL and cuBLAS."""

_LARGEST = 3
_MORE_SHARDS = "a larger MeshConfig.fsdp"
_MORE_SPLIT = "a larger MeshConfig.tensor or context"
_SMALLER = "more TrainConfig.microbatches, or a smaller DataConfig.global_batch"
_ADVICE = {
    "parameters": (_MORE_SHARDS,),
    "optimizer_state": (_MORE_SHARDS, "moment_dtype = 'bfloat16' or offload of the optimizer"),
    "activations": ("DecoderConfig.remat = 'full'", _SMALLER, _MORE_SPLIT),
    "stash": ("fewer PipelineConfig.chunks", _SMALLER),
    "gradients": (_MORE_SHARDS,),
    "gradient_sums": (_MORE_SHARDS,),
    "logits": ("more DecoderConfig.loss_chunks",),
    "gradient_of_logits": ("more DecoderConfig.loss_chunks",),
    "block": (_SMALLER, _MORE_SPLIT),
    "gathered_weights": ("a larger MeshConfig.tensor",),
    "cast_weights": (_MORE_SHARDS,),
    "shared_weights": ("a larger MeshConfig.tensor",),
}
"""Part of the memory -> what makes it smaller."""


def formula_verdict(use: MemoryUse, *, cluster: ClusterConfig) -> Finding:
    """Returns what the formula says of a step; an error only beyond its own uncertainty."""
    share = use.total / use.limit
    needed = (
        f"{shown(use.total, 'B')} of {shown(use.limit, 'B')} by formula, largest: {largest(use)}"
    )
    if share <= 1.0 - SURE:
        return Finding(about="memory", verdict=Verdict.OK, message=f"{needed}.")
    if share <= 1.0 + SURE:
        return Finding(
            about="memory",
            verdict=Verdict.WARNING,
            message=f"{needed}. Too close to call: ask the compiler (python -m trainer.main "
            f"--mode=dry_run --cluster=...). To make room: {advice(use)}.",
        )
    return Finding(
        about="memory",
        verdict=Verdict.ERROR,
        message=f"does not fit into {cluster.chip.name}: {needed}. To make room: {advice(use)}.",
    )


def host_verdict(size: float, *, cluster: ClusterConfig) -> Finding | None:
    """Says whether what devices put into their host's memory fits there; None if it is nothing.

    Args:
      size: bytes of one device.
      cluster: whose hosts.
    """
    if not size:
        return None
    needed = f"{shown(size * cluster.per_host, 'B')} of {shown(cluster.host_memory, 'B')} of a host"
    if size * cluster.per_host <= cluster.host_memory:
        return Finding(about="host memory", verdict=Verdict.OK, message=f"{needed}.")
    return Finding(
        about="host memory",
        verdict=Verdict.ERROR,
        message=f"does not fit: {needed}. Offload less (the optimizer's offload, 'offload:' in "
        "DecoderConfig.remat), or shard over more devices.",
    )


def memory_fraction(needed: float) -> float | None:
    """Returns what XLA_PYTHON_CLIENT_MEM_FRACTION has to be; None where jax's own suffices.

    Args:
      needed: share of a GPU's memory that the step takes, without what the runtime takes.
    """
    if needed <= PREALLOCATED:
        return None
    return min(_MOST_PREALLOCATED, math.ceil(100 * (needed + _SPARE)) / 100)


def largest(use: MemoryUse) -> str:
    """Returns the largest parts with their sizes."""
    parts = sorted(use.parts, key=lambda part: -part.value)[:_LARGEST]
    return ", ".join(
        f"{part.name.replace('_', ' ')} {part.value / 2**30:.1f} GiB" for part in parts
    )


def advice(use: MemoryUse) -> str:
    """Returns the flags that make the largest parts smaller."""
    parts = sorted(use.parts, key=lambda part: -part.value)[:_LARGEST]
    told = dict.fromkeys(flag for part in parts for flag in _ADVICE.get(part.name, ()))
    return "; ".join(told) or "more devices"
