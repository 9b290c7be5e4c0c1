"""Code that runs per rank of the mesh instead of being placed by the compiler.

One function, so that such code also runs inside other such code: attention over `context` inside a
pipeline over `stage`.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from partitioning.mesh import current_mesh


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
    name every axis that splits an argument.

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
    taken = getattr(surrounding, "manual_axes", ())
    return jax.shard_map(
        function,
        mesh=surrounding,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(mesh.axis_names) - set(taken),
        check_vma=False,
    )
