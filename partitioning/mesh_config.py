"""Mesh sizes, logical-axis rule tables and pipeline settings as plain data (no jax)."""

import dataclasses
import math
from typing import Literal

AXES = ("data", "stage", "fsdp", "expert", "context", "tensor")
"""Every mesh has these axes, outermost first; an axis of size 1 costs nothing."""

ScheduleName = Literal["1f1b", "circular"]
Idle = Literal["auto", "compute"]
Candidate = str | tuple[str, ...] | None
Rule = tuple[str | Candidate, ...]
"""``(logical axis, candidate, candidate, ...)``; a candidate is a mesh axis, several, or None."""

ContextLayout = Literal["zigzag", "contiguous"]
"""Order in which the tokens of a row are dealt out to the ranks of the context axis."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices each mesh axis takes; one axis may be -1 and takes what is left.

    Attributes:
      data: replicas; the outermost axis, across racks or slices.
      stage: pipeline stages.
      fsdp: shards of parameters and optimizer state, and of the batch.
      expert: shards of experts, and of the batch.
      context: shards of the sequence.
      tensor: shards of heads, mlp and vocabulary; innermost, inside one host.
      outer: pairs (axis, factor): the part of an axis that crosses slices or racks. The product
        of the factors is the number of slices.
    """

    data: int = 1
    stage: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    outer: tuple[tuple[str, int], ...] = ()

    def sizes(self, devices: int) -> dict[str, int]:
        """Returns axis -> size for ``devices`` devices, with -1 filled in.

        Raises:
          ValueError: the product does not match ``devices``, or a size is not positive.
        """
        given = {axis: getattr(self, axis) for axis in AXES}
        shown = " x ".join(f"{axis}={size}" for axis, size in given.items() if size != 1) or "1"
        if bad := [axis for axis, size in given.items() if size < 1 and size != -1]:
            raise ValueError(f"MeshConfig.{bad[0]}={given[bad[0]]}: sizes are positive, or -1.")
        free = [axis for axis, size in given.items() if size == -1]
        if len(free) > 1:
            raise ValueError(
                f"MeshConfig: only one axis may be -1 (what is left), given {' and '.join(free)}. "
                f"Give the others a number, for example MeshConfig.{free[-1]}=1."
            )
        known = math.prod(size for size in given.values() if size != -1)
        if devices % known or (not free and known != devices):
            raise ValueError(
                f"Mesh {shown} needs {'a multiple of ' if free else ''}{known} devices, but there "
                f"are {devices}. Change MeshConfig or the number of devices."
            )
        if free:
            given[free[0]] = devices // known
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How microbatches pass through the pipeline stages of ``MeshConfig.stage``.

    Attributes:
      schedule: "1f1b" starts each backward pass as early as possible, so that memory does not grow
        with the microbatches; "circular" runs all forward passes first and is differentiated by
        jax.
      chunks: pieces of the model on each stage (interleaving, virtual stages): more make the
        bubble smaller and the sends more frequent.
      idle: what a stage does without work. "auto" skips it, unless the work holds a
        collective-permute (ring attention), which takes all devices; "compute" always computes and
        discards.
    """

    schedule: ScheduleName = "1f1b"
    chunks: int = 1
    idle: Idle = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RulesConfig:
    """Two tables from logical axes to mesh axes, one for parameters and one for activations.

    A rule is ``(logical axis, candidate, candidate, ...)``. The first candidate whose mesh axes
    are free in this tensor and divide the dimension is taken; a rule that ends in None may leave
    the dimension replicated.

    Attributes:
      parameters: table for parameters.
      activations: table for activations.
      optimizer: table for optimizer state; None takes ``parameters``. A table that shards where
        ``parameters`` does not is ZeRO-1.
      sequence_parallel: whether ``act_length_residual`` may use the tensor axis.
      context_layout: which tokens of a row a rank of the context axis gets: "zigzag" a chunk from
        the front and one from the back, which balances causal attention in a ring; "contiguous"
        one stretch. No number depends on it.
      max_replicated: share of parameter bytes that may stay replicated on more than one device
        before start-up warns.
    """

    parameters: tuple[Rule, ...] = (
        ("vocab", "tensor"),
        ("embed", "fsdp"),
        ("heads", "tensor"),
        ("kv_heads", "tensor", None),
        ("head_dim", None),
        ("mlp", "tensor"),
        ("experts", "expert"),
        ("norm", None),
        ("layers", "stage", None),
    )
    activations: tuple[Rule, ...] = (
        ("act_batch", ("data", "fsdp", "expert")),
        ("act_length", "context"),
        ("act_length_residual", ("context", "tensor")),
        ("act_kv_length", None),
        ("act_embed", None),
        ("act_heads", "tensor"),
        ("act_kv_heads", "tensor", None),
        ("act_mlp", "tensor"),
        ("act_vocab", "tensor"),
        ("act_experts", "expert"),
    )
    optimizer: tuple[Rule, ...] | None = None
    sequence_parallel: bool = True
    context_layout: ContextLayout = "zigzag"
    max_replicated: float = 0.05
