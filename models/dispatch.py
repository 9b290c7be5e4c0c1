"""Index arithmetic that puts tokens where their experts are: pure functions of integer arrays.

Everything has static shapes; what does not take part stands in a group or row one past the last.
Moving rows is a gather in both directions, forward and backward, so that no addition happens in
an order that hardware chooses.

Shape suffixes: A assignments (token times choice), G groups, R rows, X rows of the source,
D features, K choices.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where groups of rows lie in a buffer of ``rows`` rows.

    Attributes:
      offsets: [G] int32, first row of each group.
      sizes: [G] int32, rows from there on that belong to it, padding included.
      rows: rows of the buffer.
      block: every size is a multiple of it.
    """

    offsets: jax.Array
    sizes: jax.Array
    rows: int = dataclasses.field(metadata={"static": True})
    block: int = dataclasses.field(metadata={"static": True})


def rank_within(groups_A: jax.Array, *, count: int) -> tuple[jax.Array, jax.Array]:
    """Numbers the members of each group in their order.

    Args:
      groups_A: int32 in [0, count]; ``count`` belongs to no group.
      count: G.

    Returns:
      [A] rank of each member within its group and [G] sizes, both int32. What belongs to no group
      is ranked among itself.
    """
    size = groups_A.shape[0]
    order_A = jnp.argsort(groups_A, stable=True)
    sizes = jnp.bincount(groups_A, length=count + 1).astype(jnp.int32)
    first = exclusive_sum(sizes)
    sorted_rank = jnp.arange(size, dtype=jnp.int32) - first[groups_A[order_A]]
    rank_A = jnp.zeros_like(sorted_rank).at[order_A].set(sorted_rank, unique_indices=True)
    return rank_A, sizes[:count]


def exclusive_sum(sizes: jax.Array, *, axis: int = 0) -> jax.Array:
    """Returns the sum of all entries before each one."""
    return jnp.cumsum(sizes, axis=axis, dtype=sizes.dtype) - sizes


def packed(sizes_G: jax.Array, *, total: int, block: int) -> Layout:
    """Lays groups one after the other, each filled up to a multiple of ``block`` rows.

    Args:
      sizes_G: members of each group.
      total: most members of all groups together.
      block: rows that a group's size must be a multiple of.
    """
    filled = (sizes_G + block - 1) // block * block
    groups = sizes_G.shape[0]
    # Each group that has members wastes at most block - 1 rows.
    most = total + min(groups, total) * (block - 1)
    return Layout(
        offsets=exclusive_sum(filled),
        sizes=filled,
        rows=max(most // block, 1) * block,
        block=block,
    )


def even(sizes_G: jax.Array, *, each: int) -> Layout:
    """Gives every group the same ``each`` rows."""
    groups = sizes_G.shape[0]
    offsets = each * jnp.arange(groups, dtype=jnp.int32)
    sizes = jnp.full_like(offsets, each)
    return Layout(offsets=offsets, sizes=sizes, rows=groups * each, block=each)


def rows_of(groups_A: jax.Array, rank_A: jax.Array, layout: Layout) -> jax.Array:
    """Returns [A] the row of each member; ``layout.rows`` for what belongs to no group."""
    groups = layout.offsets.shape[0]
    row_A = layout.offsets[jnp.minimum(groups_A, groups - 1)] + rank_A
    return jnp.where(groups_A < groups, row_A, layout.rows)


def members_of(row_A: jax.Array, *, rows: int) -> jax.Array:
    """Inverts ``rows_of``: [rows] the member in each row, A where there is none."""
    size = row_A.shape[0]
    empty = jnp.full_like(row_A, size, shape=(rows,))
    return empty.at[row_A].set(jnp.arange(size, dtype=row_A.dtype), mode="drop")


def groups_of(sizes_PG: jax.Array, *, rows: int) -> jax.Array:
    """Returns [P, rows] the group of each row where groups lie one after the other; G past them."""
    ends_P1G = jnp.cumsum(sizes_PG, axis=1)[:, None, :]
    row = jnp.arange(rows, dtype=jnp.int32)[None, :, None]
    return (ends_P1G <= row).sum(axis=-1, dtype=jnp.int32)


def admit(groups_A: jax.Array, *, count: int, most: int, among: int = 1) -> jax.Array:
    """Turns away what exceeds a limit; earlier entries come first.

    Args:
      groups_A: group of each assignment, ``count`` for none.
      count: G.
      most: how many are let in together.
      among: groups that share a limit of ``most``: 1, or how many a device holds.

    Returns:
      [A] the group, or ``count`` for what was turned away.
    """
    shared = jnp.minimum(groups_A // among, count // among)
    rank_A, _ = rank_within(shared, count=count // among)
    return jnp.where(rank_A < most, groups_A, count)


@jax.custom_vjp
def gather_rows(x_XD: jax.Array, index_R: jax.Array, inverse_KX: jax.Array) -> jax.Array:
    """Copies rows; the gradient gathers too, by the inverse that the caller knows.

    Args:
      x_XD: source.
      index_R: row of the source for each row of the result; X leaves zeros.
      inverse_KX: the (up to K) rows of the result that each row of the source went to; R for none.

    Returns:
      [R, D].
    """
    return _take(x_XD, index_R)


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.at[index].get(mode="fill", fill_value=0)


def _gather_forward(
    x: jax.Array, index: jax.Array, inverse: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _take(x, index), (index, inverse)


def _gather_backward(
    indices: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    dx, *others = (_take(dy, each) for each in indices[1])
    for other in others:
        dx = dx + other
    index, inverse = (np.zeros(i.shape, jax.dtypes.float0) for i in indices)
    return dx, index, inverse


gather_rows.defvjp(_gather_forward, _gather_backward)
