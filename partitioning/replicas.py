"""Replicas: devices that hold the same parameters and work on other rows of the batch.

Inside a loop over microbatches the partitioner would reduce every microbatch's gradient over them.
Here each replica adds up its own, and the sum over replicas is taken once, after the loop.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

AXIS = "data"
Tree = Any


def replica_axes(mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes of replicas, none where there is one."""
    return (AXIS,) if mesh.shape.get(AXIS, 1) > 1 else ()


def summed_over_replicas(
    function: Callable[[Tree, Tree], Tree], *, mesh: Mesh
) -> Callable[[Tree, Tree], Tree]:
    """Returns ``function(shared, parts)``, run by each replica on its rows and added up.

    ``parts`` are arrays [microbatches, rows, ...]; all other mesh axes stay automatic.
    """
    axes = replica_axes(mesh)
    if not axes:
        return function
    run = jax.shard_map(
        lambda shared, parts: apart(function(shared, parts)),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(None, axes)),
        out_specs=PartitionSpec(axes),
        axis_names=set(axes),
        check_vma=False,
    )
    return lambda shared, parts: together(run(shared, parts))


def apart(tree: Tree) -> Tree:
    """Gives what each replica has a dimension of its own: [...] -> [1, ...]."""
    return jax.tree.map(lambda x: x[None], tree)


def together(tree: Tree) -> Tree:
    """Adds up what was apart. Left to the partitioner, which knows where the sum is needed."""
    return jax.tree.map(lambda x: x.sum(axis=0), tree)
