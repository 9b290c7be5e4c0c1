"""Binds a task to the pipeline: which parameters are stacked, and what the pieces compute.

Parameters of the repeats are split over ``stage`` along their first dimension, in ``layer_order``;
all others are the same on every stage. See partitioning/pipeline.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.context import Context
from partitioning import pipeline
from partitioning.collectives import MeshShape, branch_collectives
from partitioning.mesh import automatic_part, axis_sizes, without_axes
from partitioning.mesh_config import ScheduleName
from partitioning.pipeline_stage import STAGE, Chain, Inputs
from partitioning.replicas import replica_axes
from partitioning.schedules import Schedule, build_schedule
from trainer.endings import UserError
from trainer.paths import leaves, nest, split_frozen
from trainer.program import Program
from trainer.state import Group, gradient_layout
from trainer.task import Batch, PipelinedTask, Sums

Tree = Any
Flat = dict[str, Any]


def pipelined_gradients(
    program: Program, group: Group, parts: tuple[Batch, jax.Array], *, step: jax.Array
) -> tuple[Sums, Tree]:
    """Returns sums and gradients of the trainable parameters over all microbatches.

    Args:
      program: with MeshConfig.stage > 1.
      group: what is trained.
      parts: batch and row numbers, [M, rows, ...].
      step: optimizer steps done, for dropout.
    """
    inputs = _inputs(program, group, parts, step=step)
    sums, stacked, shared = pipeline.gradients(
        _chain(program, group, parts),
        schedule_of(program),
        inputs,
        mesh=program.mesh,
        idle=program.pipeline.idle,
    )
    trainable, _ = split_frozen(group.parameters, group.frozen)
    found = stacked | shared
    return sums, nest({path: found[path] for path in leaves(trainable)})


def pipelined_sums(program: Program, group: Group, parts: tuple[Batch, jax.Array]) -> Sums:
    """Returns the sums over all microbatches, without dropout and gradients."""
    inputs = _inputs(program, group, parts, step=None)
    return pipeline.forward_sums(
        _chain(program, group, parts),
        schedule_of(program, "circular"),
        inputs,
        mesh=program.mesh,
        idle=program.pipeline.idle,
    )


def describe_pipeline(program: Program) -> str:
    """Returns schedule, sizes and bubble in one line; empty without stages."""
    if program.stages == 1:
        return ""
    schedule = schedule_of(program)
    return (
        f"pipeline {program.pipeline.schedule}: {schedule.stages} stages x {schedule.chunks} "
        f"chunks, {schedule.microbatches} microbatches, bubble {schedule.bubble():.1%}"
    )


def check_branches(compiled: jax.stages.Compiled, program: Program) -> None:
    """Raises UserError if stages that skip a tick would leave others waiting for them.

    The partitioner may move data as it sees fit, also in what stages run or skip. An exchange there
    must be among devices of one stage, and no collective-permute, which is one for all devices.
    """
    if program.stages == 1:
        return
    shape = MeshShape(sizes=axis_sizes(program.mesh))
    bad = [
        f"{c.kind} over {'+'.join(c.axes)} ({c.source})"
        for c in branch_collectives(compiled.as_text() or "", mesh=shape)
        # Outside all loops is the update, which all devices do or leave.
        if c.loops and (c.kind == "collective-permute" or STAGE in c.axes)
    ]
    if bad:
        raise UserError(
            f"The compiler put exchanges into branches that pipeline stages take differently, so "
            f"that the step could hang: {'; '.join(bad)}. Set PipelineConfig.idle='compute', which "
            "makes no such branches, and report the layout."
        )


def schedule_of(program: Program, name: ScheduleName | None = None) -> Schedule:
    """Returns the table that a program's microbatches follow, or another one of the same sizes."""
    return build_schedule(
        name or program.pipeline.schedule,
        stages=program.stages,
        chunks=program.pipeline.chunks,
        microbatches=program.train.microbatches,
    )


def _inputs(
    program: Program,
    group: Group,
    parts: tuple[Batch, jax.Array],
    *,
    step: jax.Array | None,
) -> Inputs:
    trained, frozen = (leaves(tree) for tree in split_frozen(group.parameters, group.frozen))
    stacked, shared = zip(*(_split(program, flat) for flat in (trained, frozen)), strict=True)
    held = {"frozen": shared[1], "variables": group.variables, "step": step}
    return Inputs(stacked=stacked, shared=(shared[0], held), parts=parts)


def _split(program: Program, flat: Flat) -> tuple[Flat, Flat]:
    """Splits path -> leaf into (stacked, shared)."""
    stacked = {path: leaf for path, leaf in flat.items() if program.is_repeated(path)}
    return stacked, {path: leaf for path, leaf in flat.items() if path not in stacked}


def _chain(program: Program, group: Group, parts: tuple[Batch, jax.Array]) -> Chain:
    task = program.task
    assert isinstance(task, PipelinedTask)
    # Stands for parameters that a part of the model does not read.
    absent = dict.fromkeys(leaves(group.parameters))
    zeros = _sums_of(program, group, parts)

    def bind(flat: Flat, held: Tree, part: tuple[Batch, jax.Array]) -> tuple[Any, Context]:
        model = nnx.merge(program.graph, nest(absent | flat), held["variables"])
        key = None if held["step"] is None else program.dropout_key(held["step"])
        return model, Context(
            shard=program.shard, dropout_key=key, rows=part[1], replicas=replica_axes(program.mesh)
        )

    def enter(shared: Any, part: Any) -> tuple[jax.Array, Sums]:
        model, ctx = bind(shared[0] | shared[1]["frozen"], shared[1], part)
        x, sums = task.enter(model, part[0], ctx=ctx)
        return x, _padded(sums, zeros)

    def repeat(stacked: Any, held: Any, x: Any, part: Any, piece: Any) -> tuple[jax.Array, Sums]:
        model, ctx = bind(stacked[0] | stacked[1], held, part)
        count = next(iter((stacked[0] | stacked[1]).values())).shape[0]
        numbers = piece * count + jnp.arange(count)
        x, sums = task.repeat(model, x, part[0], ctx=ctx, numbers=numbers)
        return x, _padded(sums, zeros)

    def leave(shared: Any, x: jax.Array, part: Any) -> Sums:
        model, ctx = bind(shared[0] | shared[1]["frozen"], shared[1], part)
        return _padded(task.leave(model, x, part[0], ctx=ctx), zeros)

    trainable, _ = split_frozen(group.parameters, group.frozen)
    stacked_at, shared_at = _split(program, leaves(gradient_layout(program, trainable)))
    return Chain(
        enter=enter,
        repeat=repeat,
        leave=leave,
        place=lambda x: program.shard(x, *task.between),
        place_stacked=_placing(stacked_at),
        place_shared=_placing(shared_at),
        settle=_settling(shared_at, replicas=replica_axes(program.mesh)),
    )


def _settling(
    layout: Mapping[str, NamedSharding], *, replicas: tuple[str, ...]
) -> Callable[[Flat], Flat]:
    def settle(gradients: Flat) -> Flat:
        return {
            path: jax.lax.with_sharding_constraint(x, by_replica(layout[path]))
            for path, x in gradients.items()
        }

    def by_replica(sharding: NamedSharding) -> NamedSharding:
        spec = without_axes(sharding.spec, replicas)
        return NamedSharding(sharding.mesh, PartitionSpec(replicas or None, *spec))

    return settle


def _placing(layout: Mapping[str, NamedSharding]) -> Callable[[Flat], Flat]:
    def place(gradients: Flat) -> Flat:
        return {
            path: jax.lax.with_sharding_constraint(x, automatic_part(layout[path]))
            for path, x in gradients.items()
        }

    return place


def _sums_of(program: Program, group: Group, parts: tuple[Batch, jax.Array]) -> Sums:
    """Shapes of what the whole model contributes for one microbatch."""

    def whole(part: tuple[Batch, jax.Array]) -> Sums:
        model = nnx.merge(program.graph, group.parameters, group.variables)
        return program.task.loss(model, part[0], ctx=Context(rows=part[1]))

    return jax.eval_shape(whole, jax.tree.map(lambda x: x[0], parts))


def _padded(sums: Sums, like: Sums) -> Sums:
    """Adds zeros for metrics to which a part of the model contributes nothing."""
    total, weight, metrics = sums
    zeros = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in like[2].items()}
    return total.astype(like[0].dtype), weight.astype(like[1].dtype), zeros | metrics
