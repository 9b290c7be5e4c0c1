"""One product per group of rows: ``y[r] = x[r] @ w[group of r]``, by several implementations.

All take rows that are sorted by group and give the same numbers:

- ``padded``: every group has the same number of rows; one batched matmul.
- ``blocked``: groups are multiples of a block of rows; a loop over the blocks that are in use,
  so that empty ones cost nothing. Right everywhere, and the fastest on CPU.
- ``ragged``: ``jax.lax.ragged_dot``. A kernel of its own on TPU; on CPU, and in what XLA compiles
  for GPUs, it multiplies every row with every group's matrix and masks the results.
- ``tokamax``: the kernels of the optional package tokamax.

Shape suffixes: R rows, G groups, I inputs, O outputs.
"""

import importlib.util
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from models.dispatch import Layout, even, packed
from models.layers import wide

Implementation = Literal["padded", "blocked", "ragged", "tokamax"]
LARGEST_BLOCK, SMALLEST_BLOCK = 128, 8


def choose(implementation: str, *, platform: str, capacity: bool) -> Implementation:
    """Resolves "auto" and refuses what is not installed.

    Args:
      implementation: ExpertsConfig.matmul.
      platform: "cpu", "gpu" or "tpu".
      capacity: whether every expert has a fixed capacity, which is what ``padded`` is made for.

    Raises:
      ValueError: tokamax was asked for and is not installed.
    """
    if implementation == "auto":
        if capacity:
            return "padded"
        return "ragged" if platform == "tpu" else "blocked"
    if implementation == "tokamax" and importlib.util.find_spec("tokamax") is None:
        raise ValueError(
            "ExpertsConfig.matmul='tokamax' needs the package tokamax, which is not installed; "
            "install lockstep[kernels], or take 'auto'."
        )
    return cast(Implementation, implementation)


def block_rows(rows: int, *, groups: int) -> int:
    """Returns how many rows a block of ``blocked`` has: a power of two near half a group."""
    block = SMALLEST_BLOCK
    while block < LARGEST_BLOCK and 4 * block * groups <= rows:
        block *= 2
    return block


def layout_for(
    sizes_G: jax.Array, *, implementation: Implementation, most: int, total: int
) -> Layout:
    """Returns how rows must be laid out for ``implementation``.

    Args:
      sizes_G: [G] int32, rows of each group.
      implementation: see the module's docstring.
      most: most rows of one group.
      total: most rows of all groups together.
    """
    if implementation == "padded":
        return even(sizes_G, each=most)
    block = 1 if implementation != "blocked" else block_rows(total, groups=sizes_G.shape[0])
    return packed(sizes_G, total=total, block=block)


def grouped_matmul(
    x_RI: jax.Array, w_GIO: jax.Array, layout: Layout, *, implementation: Implementation
) -> jax.Array:
    """Multiplies each row with its group's matrix.

    Args:
      x_RI: rows; those that belong to no group are zero.
      w_GIO: a matrix per group, in the dtype of ``x``.
      layout: where the groups lie, from ``layout_for``.
      implementation: see the module's docstring.

    Returns:
      [R, O] in the dtype of ``x``; zero where ``x`` is.
    """
    rows, groups = x_RI.shape[0], w_GIO.shape[0]
    if implementation == "padded":
        x_GRI = x_RI.reshape(groups, rows // groups, -1)
        return jnp.einsum("gri,gio->gro", x_GRI, w_GIO).reshape(rows, -1)
    if implementation == "blocked":
        return _blocked(x_RI, w_GIO, layout)
    # Kernels leave rows past the last group undefined, forward and backward.
    used_R1 = (jnp.arange(rows) < layout.sizes.sum())[:, None]
    x_RI = jnp.where(used_R1, x_RI, 0)
    if implementation == "ragged":
        y_RO = jax.lax.ragged_dot(x_RI, w_GIO, layout.sizes)
    else:
        import tokamax

        y_RO = tokamax.ragged_dot(x_RI, w_GIO, layout.sizes)
    return jnp.where(used_R1, y_RO, 0)


@jax.custom_vjp
def _blocked(x_RI: jax.Array, w_GIO: jax.Array, layout: Layout) -> jax.Array:
    start = jnp.zeros_like(x_RI, shape=(x_RI.shape[0], w_GIO.shape[2]))

    def product(block: jax.Array, y_RO: jax.Array) -> jax.Array:
        group, row = _place(block, layout)
        rows = jax.lax.dynamic_slice_in_dim(x_RI, row, layout.block)
        return jax.lax.dynamic_update_slice_in_dim(y_RO, rows @ w_GIO[group], row, axis=0)

    return jax.lax.fori_loop(0, _blocks(layout), product, start)


def _blocked_forward(
    x_RI: jax.Array, w_GIO: jax.Array, layout: Layout
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Layout]]:
    return _blocked(x_RI, w_GIO, layout), (x_RI, w_GIO, layout)


def _blocked_backward(
    saved: tuple[jax.Array, jax.Array, Layout], dy_RO: jax.Array
) -> tuple[jax.Array, jax.Array, Layout]:
    x_RI, w_GIO, layout = saved
    # Many blocks add to one matrix: their sum needs more digits than 16 bits have.
    digits = wide(w_GIO).dtype
    start = (jnp.zeros_like(x_RI), jnp.zeros_like(w_GIO, dtype=digits))

    def products(block: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
        dx_RI, dw_GIO = sums
        group, row = _place(block, layout)
        x = jax.lax.dynamic_slice_in_dim(x_RI, row, layout.block)
        dy = jax.lax.dynamic_slice_in_dim(dy_RO, row, layout.block)
        dx_RI = jax.lax.dynamic_update_slice_in_dim(dx_RI, dy @ w_GIO[group].T, row, axis=0)
        dw = jnp.matmul(x.T, dy, preferred_element_type=digits)
        return dx_RI, dw_GIO.at[group].add(dw)

    dx_RI, dw_GIO = jax.lax.fori_loop(0, _blocks(layout), products, start)
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), layout)
    return dx_RI, dw_GIO.astype(w_GIO.dtype), nothing


_blocked.defvjp(_blocked_forward, _blocked_backward)


def _blocks(layout: Layout) -> jax.Array:
    return layout.sizes.sum() // layout.block


def _place(block: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """Returns the group that a block belongs to, and its first row."""
    row = block * layout.block
    return (layout.offsets + layout.sizes <= row).sum(), row
