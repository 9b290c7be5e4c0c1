"""Code that runs per rank along some mesh axes, while the compiler keeps placing the others.

One function, so that such code also runs inside other such code: attention over `context` inside a
pipeline over `stage`.
"""

from collections.abc import Callable, Iterable
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
    """Returns ``function`` mapped over all mesh axes that its specs name; others stay automatic.

    Name every axis that splits the arguments: where a function that exchanges data is mapped over
    one axis only, XLA's partitioner gathers what the other axes had split (all-gather and
    reduce-scatter, jax 0.12), and may put collectives into branches.

    Values are not tracked as varying or equal over the ranks (``check_vma``): nested mappings
    cannot be differentiated with it (jax 0.12). So an output must vary over what its spec names
    only, and the gradient of an argument is summed over the axes that its spec lacks and others'
    have.

    Args:
      function: takes and returns local arrays.
      mesh: the device mesh.
      in_specs: of the arguments.
      out_specs: of the results.
    """
    results = (out_specs,) if isinstance(out_specs, PartitionSpec) else out_specs
    return jax.shard_map(
        function,
        mesh=current_mesh(mesh),
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=_axes((*in_specs, *results)),
        check_vma=False,
    )


def _axes(specs: Iterable[PartitionSpec]) -> set[str]:
    return {axis for spec in specs for entry in spec for axis in mesh_axes(entry)}
