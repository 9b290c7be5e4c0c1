"""What a forward pass is told besides its inputs: where activations live, and what is random."""

import dataclasses

import jax
import jax.numpy as jnp

from partitioning.activations import Activations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """Passed explicitly through every layer.

    Attributes:
      shard: constrains activations by logical axes.
      dropout_key: key of this step's dropout; None switches dropout off.
      rows: [B] int32, global number of each batch row. Dropout is drawn per global row, so that
        it does not depend on the mesh, on accumulation or on pipeline stages.
      replicas: mesh axes of an enclosing ``shard_map`` that split the rows; what is averaged over
        all tokens is summed over them.
      layer: number of the block, folded into the dropout key; may be traced.
    """

    shard: Activations = dataclasses.field(default_factory=Activations)
    dropout_key: jax.Array | None = None
    rows: jax.Array | None = None
    replicas: tuple[str, ...] = ()
    layer: jax.Array | int = 0

    def at_layer(self, layer: jax.Array | int) -> "Context":
        """Returns this context for another block."""
        return dataclasses.replace(self, layer=layer)


def dropout(x: jax.Array, *, rate: float, site: int, ctx: Context) -> jax.Array:
    """Zeroes a share ``rate`` of ``x`` [B, T, ...] and scales the rest to keep the mean.

    Drawn for each token by its global row and its column in the row as it was read, so that the
    order in which a row is dealt out to the context axis changes nothing either.

    ``site`` tells apart the places within one block.
    """
    if rate == 0.0 or ctx.dropout_key is None:
        return x
    assert ctx.rows is not None
    key = jax.random.fold_in(jax.random.fold_in(ctx.dropout_key, ctx.layer), site)
    columns = ctx.shard.columns(x.shape[1])

    def keep(row: jax.Array, column: jax.Array) -> jax.Array:
        of_token = jax.random.fold_in(jax.random.fold_in(key, row), column)
        return jax.random.bernoulli(of_token, 1.0 - rate, x.shape[2:])

    kept = jax.vmap(lambda row: jax.vmap(lambda column: keep(row, column))(columns))(ctx.rows)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))
