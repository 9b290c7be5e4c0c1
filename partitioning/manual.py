"""Code that runs per rank of the mesh instead of being placed by the compiler.

One function, so that such code also runs inside other such code: attention over `context` inside a
pipeline over `stage`.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from partitioning.mesh import current_mesh
from partitioning.rules import mesh_axes


def per_rank(
    function: Callable[..., Any],
    *,
    mesh: Mesh,
    in_specs: tuple[PartitionSpec, ...],
    out_specs: tuple[PartitionSpec, ...] | PartitionSpec,
) -> Callable[..., Any]:
    """Returns ``function`` mapped over all mesh axes that no surrounding code is mapped over.

    All of them, because XLA (jax 0.12) handles exchanges badly where some axes are left to its
    partitioner: an all-gather or reduce-scatter first gathers what the other axes had split,
    collectives may appear in branches, and a 16-bit sum crashes the compiler on CPU. So the specs
    name every axis that splits an argument. Arguments and results have a first dimension.

    Values are not tracked as varying or equal over the ranks (``check_vma``): nested mappings
    cannot be differentiated with it (jax 0.12). An output must vary over what its spec names only;
    the gradient of an argument is summed over the axes that its spec lacks.

    Args:
      function: takes and returns local arrays.
      mesh: the device mesh.
      in_specs: of the arguments.
      out_specs: of the results.
    """
    surrounding = current_mesh(mesh)
    free = set(mesh.axis_names) - set(getattr(surrounding, "manual_axes", ()))
    # Axes of one rank are named too: else a gradient is "summed" over them by a collective.
    single = tuple(axis for axis in mesh.axis_names if axis in free and mesh.shape[axis] == 1)

    def complete(spec: PartitionSpec) -> PartitionSpec:
        first, *rest = tuple(spec) or (None,)
        named = mesh_axes(first)
        return PartitionSpec((*named, *(axis for axis in single if axis not in named)), *rest)

    return jax.shard_map(
        function,
        mesh=surrounding,
        in_specs=tuple(complete(spec) for spec in in_specs),
        out_specs=jax.tree.map(complete, out_specs),
        axis_names=free,
        check_vma=False,
    )
