"""Runs a pipeline schedule: one program for all stages, in one ``shard_map`` over ``stage``.

The other mesh axes stay automatic inside, and follow their logical rules; only replicas are split
off as well. Two runs read the same tables: ``forward_sums`` passes microbatches through, and
``gradients`` also runs the table's backward passes, each by the vector-Jacobian product of its
piece from an input that was kept, or lets jax differentiate a table without any. Knows no model: a
Chain says what the pieces compute.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from partitioning.mesh_config import Idle
from partitioning.pipeline_stage import STAGE, Chain, Inputs, Stage, Tree
from partitioning.replicas import apart, replica_axes, together
from partitioning.schedules import Schedule


def forward_sums(
    chain: Chain, schedule: Schedule, inputs: Inputs, *, mesh: Mesh, idle: Idle = "auto"
) -> Tree:
    """Returns the sums over all microbatches, without gradients; see ``gradients``."""

    def run(stage: Stage) -> Tree:
        return apart(stage.forward(stage.stacked, stage.shared))

    everywhere = PartitionSpec((*replica_axes(mesh), STAGE))
    return together(_on_every_stage(run, everywhere, chain, schedule, inputs, mesh=mesh, idle=idle))


def gradients(
    chain: Chain, schedule: Schedule, inputs: Inputs, *, mesh: Mesh, idle: Idle = "auto"
) -> tuple[Tree, Tree, Tree]:
    """Returns (sums, gradients of stacked, gradients of shared), in float32 at least.

    Args:
      chain: the pieces.
      schedule: with backward passes, which are then run; without, jax differentiates it.
      inputs: parameters and microbatches.
      mesh: devices; the axis ``stage`` has the schedule's stages. Replicas hold whole pipelines,
        each on its share of every microbatch's rows, and add up their gradients after all ticks.
      idle: see PipelineConfig.
    """

    def run(stage: Stage) -> tuple[Tree, Tree, Tree]:
        sums, of_stacked, of_shared = (
            stage.interleaved() if schedule.has_backward else stage.differentiated()
        )
        return apart(sums), apart(of_stacked), apart(apart(of_shared))

    replicas = replica_axes(mesh)
    everywhere, each = PartitionSpec((*replicas, STAGE)), PartitionSpec(replicas or None, STAGE)
    sums, of_stacked, of_shared = _on_every_stage(
        run, (everywhere, each, each), chain, schedule, inputs, mesh=mesh, idle=idle
    )
    # Stages first, one dimension after the other: compilers scatter a sum along one only.
    of_shared = chain.settle(jax.tree.map(lambda x: x.sum(axis=1), of_shared))
    return together(sums), together(of_stacked), together(of_shared)


def _on_every_stage(
    run: Callable[[Stage], Any],
    out: Any,
    chain: Chain,
    schedule: Schedule,
    inputs: Inputs,
    *,
    mesh: Mesh,
    idle: Idle,
) -> Any:
    assert mesh.shape[STAGE] == schedule.stages
    replicas = replica_axes(mesh)

    # Without checks of what varies over stages: the gradients are taken inside, where each stage
    # differentiates its own share of the loss, and are added up outside.
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(STAGE), PartitionSpec(), PartitionSpec(None, replicas or None)),
        out_specs=out,
        axis_names={STAGE, *replicas},
        check_vma=False,
    )
    def everywhere(stacked: Any, shared: Any, parts: Any) -> Any:
        local = Inputs(stacked=stacked, shared=shared, parts=parts)
        return run(Stage(chain, schedule, local, idle=idle))

    return everywhere(inputs.stacked, inputs.shared, inputs.parts)
