"""From logical axes to PartitionSpecs: the one resolver that everything sharded goes through.

A rule table is ordered. Rules that come first choose first; within a rule the first candidate
wins whose mesh axes are still free in this tensor and divide the dimension. Nothing is dropped in
silence: an unknown name, an absent mesh axis or a dimension that no candidate fits is an error.

Imports jax only where a PartitionSpec is made, so that what plans traffic resolves rules too.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partitioning.mesh_config import AXES, Candidate, Rule, RulesConfig

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

DEFAULTS: tuple[Rule, ...] = (("rank", None), ("act_rank", "tensor", None))
"""Rules that every table has without naming them: of the rank of adapters (models/lora.py).

Their matrices are too small to split along it. What they compute is split where it can be, so that
shards of a layer add up an adapter's share together with the layer's own.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolution:
    """How one tensor is laid out.

    Attributes:
      spec: one entry per dimension; mesh axes of size 1 are left out.
      notes: why a dimension did not take its rule's first candidate.
    """

    spec: "PartitionSpec"
    notes: tuple[str, ...]


def activation_rules(config: RulesConfig) -> tuple[Rule, ...]:
    """Returns the activation table, with ``tensor`` off the residual's length if so configured."""
    if config.sequence_parallel:
        return config.activations
    return tuple(
        _without_tensor(rule) if rule[0] == "act_length_residual" else rule
        for rule in config.activations
    )


def optimizer_rules(config: RulesConfig) -> tuple[Rule, ...]:
    """Returns the table for optimizer state."""
    return config.parameters if config.optimizer is None else config.optimizer


def check_rules(rules: Sequence[Rule], *, table: str) -> None:
    """Raises ValueError if a rule of ``table`` is empty, repeated, or names an absent mesh axis."""
    seen: set[str] = set()
    for rule in rules:
        if len(rule) < 2 or not isinstance(rule[0], str):
            raise ValueError(
                f"RulesConfig.{table}: {rule!r} is not (logical axis, candidate, ...)."
            )
        if rule[0] in seen:
            raise ValueError(f"RulesConfig.{table}: two rules for {rule[0]!r}; merge them.")
        seen.add(rule[0])
        for axis in (axis for candidate in rule[1:] for axis in mesh_axes(candidate)):
            if axis not in AXES:
                raise ValueError(
                    f"RulesConfig.{table}: the rule for {rule[0]!r} names the mesh axis {axis!r}, "
                    f"which does not exist. Mesh axes: {', '.join(AXES)}."
                )


def resolve(
    axes: Sequence[str | None],
    *,
    shape: Sequence[int],
    rules: Sequence[Rule],
    sizes: Mapping[str, int],
    name: str = "tensor",
) -> Resolution:
    """Lays out one tensor; see ``assign``."""
    from jax.sharding import PartitionSpec

    entries, notes = assign(axes, shape=shape, rules=rules, sizes=sizes, name=name)
    return Resolution(spec=PartitionSpec(*map(_entry, entries)), notes=notes)


def assign(
    axes: Sequence[str | None],
    *,
    shape: Sequence[int],
    rules: Sequence[Rule],
    sizes: Mapping[str, int],
    name: str = "tensor",
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Says which mesh axes split each dimension of one tensor.

    Args:
      axes: logical name of each dimension; None leaves it replicated.
      shape: dimensions, as many as ``axes``.
      rules: a table of RulesConfig.
      sizes: devices on each mesh axis.
      name: what to call the tensor in errors.

    Returns:
      mesh axes of each dimension, those of size 1 left out, and why a dimension did not take its
      rule's first candidate.

    Raises:
      ValueError: a logical axis has no rule, or no candidate of its rule fits.
    """
    if len(axes) != len(shape):
        raise ValueError(
            f"{name}: {len(axes)} logical axes {tuple(axes)} for shape {tuple(shape)}."
        )
    known = {rule[0]: rule[1:] for rule in rules}
    known |= {rule[0]: rule[1:] for rule in DEFAULTS if rule[0] not in known}
    _check_names(axes, known=known, name=name)
    taken: set[str] = set()
    chosen: dict[int, tuple[str, ...]] = {}
    notes: list[str] = []
    for logical, candidates in known.items():
        for dimension in (i for i, axis in enumerate(axes) if axis == logical):
            parts, note = _choose(
                logical, candidates, size=shape[dimension], sizes=sizes, taken=taken, name=name
            )
            chosen[dimension] = parts
            taken.update(parts)
            notes += [note] if note else []
    return tuple(chosen.get(i, ()) for i in range(len(shape))), tuple(notes)


def _choose(
    logical: str | Candidate,
    candidates: Sequence[str | Candidate],
    *,
    size: int,
    sizes: Mapping[str, int],
    taken: set[str],
    name: str,
) -> tuple[tuple[str, ...], str | None]:
    refused = []
    for candidate in candidates:
        parts = tuple(axis for axis in mesh_axes(candidate) if sizes[axis] > 1)
        factor = math.prod(sizes[axis] for axis in parts)
        if busy := [axis for axis in parts if axis in taken]:
            refused.append(f"{candidate!r}: {busy[0]!r} already splits another dimension")
        elif size % factor:
            refused.append(f"{candidate!r}: {size} is not a multiple of {factor}")
        else:
            note = f"{logical} -> {candidate!r} ({'; '.join(refused)})" if refused else None
            return parts, note
    raise ValueError(
        f"{name}: no candidate of the rule for {logical!r} fits its size {size}: "
        f"{'; '.join(refused)}. Change the mesh or the model, or end the rule in None to replicate."
    )


def _check_names(
    axes: Sequence[str | None], *, known: Mapping[str | Candidate, object], name: str
) -> None:
    names = [str(rule) for rule in known]
    for axis in axes:
        if axis is not None and axis not in known:
            near = difflib.get_close_matches(axis, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{name}: the logical axis {axis!r} has no rule.{hint} Rules: {', '.join(names)}."
            )


def mesh_axes(candidate: str | Candidate) -> tuple[str, ...]:
    """Returns the mesh axes that a candidate of a rule names."""
    if candidate is None:
        return ()
    return (candidate,) if isinstance(candidate, str) else tuple(candidate)


def _entry(parts: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts


def _without_tensor(rule: Rule) -> Rule:
    kept = tuple(
        tuple(axis for axis in mesh_axes(candidate) if axis != "tensor") or None
        for candidate in rule[1:]
    )
    return (rule[0], *kept)
