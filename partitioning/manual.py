"""Code that runs per rank along some mesh axes, while the compiler keeps placing the others.

One function, so that such code also runs inside other such code: attention over `context` inside a
pipeline over `stage`.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh


def per_rank(
    function: Callable[..., Any], *, mesh: Mesh, axes: frozenset[str], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """Returns ``function`` mapped over ``axes`` of ``mesh``; other axes stay automatic.

    Inside another mapped function, whose axes are already taken apart, the mesh of the surrounding
    code is used: it is the same one, and jax wants it so.

    Values are not tracked as varying or equal over the ranks (``check_vma``): nested mappings
    cannot be differentiated with it (jax 0.12). So ``function`` must not return anything as equal
    over ``axes`` that is not, and an input that is equal over ``axes`` gets no gradient.

    Args:
      function: takes and returns local arrays.
      mesh: the device mesh.
      axes: mesh axes that ``function`` sees as ranks.
      in_specs: of the arguments; PartitionSpecs that name only ``axes``.
      out_specs: of the results.
    """
    surrounding = jax.sharding.get_abstract_mesh()
    return jax.shard_map(
        function,
        mesh=None if surrounding.manual_axes else mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(axes),
        check_vma=False,
    )
