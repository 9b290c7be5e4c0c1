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
      layer: number of the block, folded into the dropout key; may be traced.
    """

    shard: Activations = dataclasses.field(default_factory=Activations)
    dropout_key: jax.Array | None = None
    rows: jax.Array | None = None
    layer: jax.Array | int = 0

    def at_layer(self, layer: jax.Array | int) -> "Context":
        """Returns this context for another block."""
        return dataclasses.replace(self, layer=layer)


def dropout(x: jax.Array, *, rate: float, site: int, ctx: Context) -> jax.Array:
    """Zeroes a share ``rate`` of ``x`` [B, ...] and scales the rest to keep the mean.

    ``site`` tells apart the places within one block.
    """
    if rate == 0.0 or ctx.dropout_key is None:
        return x
    assert ctx.rows is not None
    key = jax.random.fold_in(jax.random.fold_in(ctx.dropout_key, ctx.layer), site)
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(ctx.rows)
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1.0 - rate, x.shape[1:]))(keys)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))
