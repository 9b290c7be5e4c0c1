"""Refuses lengths of rows that do not divide over the devices that split them. No jax.

Promise: whatever cuts a row (ranks of `context`, halves for zigzag and ring attention, chunks of
the loss, sequence parallelism) is checked here, before anything is traced, in one sentence with the
nearest lengths that work.
"""

import math
from collections.abc import Mapping, Sequence

from partitioning.mesh_config import Rule, RulesConfig
from partitioning.rules import activation_rules, mesh_axes
from partitioning.sequence_layout import granularity
from trainer.run_config import LanguageModel, RunConfig

RESIDUAL = "act_length_residual"


def check_context(config: RunConfig, *, sizes: Mapping[str, int]) -> None:
    """Raises ValueError where rows cannot be split over the context or tensor axis as configured.

    Args:
      config: the run.
      sizes: mesh axis -> devices.
    """
    context = sizes["context"]
    if context > 1:
        _check_rules(config.rules, context=context)
    if not isinstance(config.task, LanguageModel):
        if context == 1:
            return
        raise ValueError(
            f"MeshConfig.context={context} splits the sequence of a LanguageModel; "
            f"{type(config.task).__name__} has none. Give the devices to MeshConfig.data or "
            "MeshConfig.fsdp."
        )
    length, parts = config.data.sequence_length, _parts(config, sizes=sizes)
    step = math.lcm(1, *parts.values())
    if length % step:
        needed = ", ".join(f"{count} ({why})" for why, count in parts.items() if length % count)
        below, above = length // step * step, -(-length // step) * step
        near = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"DataConfig.sequence_length={length} must be a multiple of "
            f"{needed or f'{step} (all of {parts})'}; the nearest that fits everything is {near}."
        )


def _parts(config: RunConfig, *, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns what cuts a row -> into how many parts."""
    context, rules = sizes["context"], config.rules
    assert isinstance(config.task, LanguageModel)
    model, parts = config.task.model, {}
    if context > 1:
        layout = f"RulesConfig.context_layout={rules.context_layout!r} over context={context}"
        parts[layout] = granularity(rules.context_layout, shards=context)
        if model.context_attention == "ring":
            parts[f"halves of ring attention over context={context}"] = 2 * context
        if model.loss_chunks > 1:
            name = f"DecoderConfig.loss_chunks={model.loss_chunks} x context={context}"
            parts[name] = model.loss_chunks * context
    between = _candidates(activation_rules(rules), RESIDUAL)
    # The least that one of them asks for: a rule that ends in None asks for nothing.
    ways = min((math.prod(sizes[axis] for axis in axes) for axes in between), default=1)
    if ways > context:
        axes = ("context", "tensor") if context > 1 else ("tensor",)
        over = " x ".join(f"{axis}={sizes[axis]}" for axis in axes)
        parts[f"sequence parallelism over {over}"] = ways
    return parts


def _check_rules(rules: RulesConfig, *, context: int) -> None:
    for name in ("act_length", RESIDUAL):
        if not any("context" in axes for axes in _candidates(rules.activations, name)):
            raise ValueError(
                f"MeshConfig.context={context}, but the rule of RulesConfig.activations for "
                f"{name!r} does not name the mesh axis 'context', so that its devices would only "
                "repeat work; take the rule from configs/partitioning/cp.gin."
            )


def _candidates(table: Sequence[Rule], name: str) -> list[tuple[str, ...]]:
    """Returns the mesh axes of each candidate of the rule ``name``; none where it is absent."""
    return [mesh_axes(candidate) for rule in table if rule[0] == name for candidate in rule[1:]]
