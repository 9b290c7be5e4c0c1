"""Softmax attention of arrays, and the choice of kernel.

Shape suffixes: B batch, T queries, S keys, H query heads, G key/value heads,
R query heads per key/value head, K head_dim.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from models.layers import soft_cap, wide
from partitioning.activations import Activations
from partitioning.manual import per_rank
from partitioning.mesh import is_per_rank

Implementation = Literal["auto", "xla", "cudnn"]
HEADS = ("act_batch", "act_length", "act_heads", None)


def attend(
    q_BTHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    mask_BTS: jax.Array,
    *,
    cap: float | None = None,
    implementation: Implementation = "auto",
    shard: Activations,
) -> jax.Array:
    """Softmax attention; a query that sees no key returns zeros.

    Args:
      q_BTHK: queries.
      k_BSGK: keys; H is a multiple of G.
      v_BSGK: values.
      mask_BTS: True where a query sees a key.
      cap: soft cap on the scores.
      implementation: "cudnn" needs a GPU, 16-bit inputs and no soft cap; "auto" takes it there.
      shard: mesh and rules of the arrays; code that runs per rank hands over its own part.

    Returns:
      [B, T, H, K] in the dtype of the queries.

    Raises:
      ValueError: "cudnn" was asked for where it cannot run.
    """
    fits = q_BTHK.dtype in (jnp.bfloat16, jnp.float16) and cap is None
    on_gpu = shard.platform == "gpu"
    if implementation == "cudnn" and not (fits and on_gpu):
        raise ValueError(
            f"DecoderConfig.attention='cudnn' needs a GPU, 16-bit activations and no soft cap; "
            f"given {shard.platform}, {q_BTHK.dtype}, soft cap {cap}. Use 'auto'."
        )
    if implementation == "cudnn" or (implementation == "auto" and fits and on_gpu):
        return _attend_cudnn(q_BTHK, k_BSGK, v_BSGK, mask_BTS, shard=shard)
    return _attend_xla(q_BTHK, k_BSGK, v_BSGK, mask_BTS, cap=cap)


def split_heads(x_BSGK: jax.Array, *, heads: int, shard: Activations) -> jax.Array:
    """Lays out keys or values so that every rank of `tensor` has those of its own query heads.

    Where fewer key/value heads than ranks are there, a head is repeated for the ranks that share
    it: each then holds and sends on one head instead of all, and no rank needs another's part of a
    gradient in the middle of the attention.
    """
    ways = shard.parts("act_heads", size=heads)
    G = x_BSGK.shape[2]
    if repeats := math.lcm(G, ways) // G - 1:
        x_BSGK = jnp.repeat(x_BSGK, repeats + 1, axis=2)
    return shard(x_BSGK, *HEADS)


def _attend_cudnn(
    q_BTHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    mask_BTS: jax.Array,
    *,
    shard: Activations,
) -> jax.Array:
    """Runs the kernel per rank: jax's own rules for splitting it (0.12) fail in pipeline stages.

    They also refuse keys and values that are split otherwise than queries.
    """

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        y: jax.Array = jax.nn.dot_product_attention(
            q, k, v, mask=mask[:, None], implementation="cudnn"
        )
        return y

    if shard.mesh is None or shard.mesh.size == 1 or is_per_rank(shard.mesh):
        return kernel(q_BTHK, k_BSGK, v_BSGK, mask_BTS)
    k_BSGK, v_BSGK = (split_heads(x, heads=q_BTHK.shape[2], shard=shard) for x in (k_BSGK, v_BSGK))
    spec = shard.spec(HEADS, shape=q_BTHK.shape)
    run = per_rank(
        kernel,
        mesh=shard.mesh,
        in_specs=(spec, spec, spec, PartitionSpec(spec[0])),
        out_specs=spec,
    )
    y_BTHK: jax.Array = run(q_BTHK, k_BSGK, v_BSGK, mask_BTS)
    return y_BTHK


def _attend_xla(
    q_BTHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    mask_BTS: jax.Array,
    *,
    cap: float | None,
) -> jax.Array:
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    q_BTHK = q_BTHK * K**-0.5
    # Neither form moves an axis between the two products; an axis R of size one would still cost
    # a copy of the scores in the backward pass on CPU, so that it is left out.
    if G == H:
        score, mix, visible = "bthk,bshk->bhts", "bhts,bshk->bthk", mask_BTS[:, None]
    else:
        score, mix, visible = "btgrk,bsgk->bgtrs", "bgtrs,bsgk->btgrk", mask_BTS[:, None, :, None]
        q_BTHK = q_BTHK.reshape(B, T, G, H // G, K)
    scores = soft_cap(wide(jnp.einsum(score, q_BTHK, k_BSGK)), cap)
    scores = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
    # A row of padding sees nothing; without this its softmax would average over everything.
    weights = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0).astype(v_BSGK.dtype)
    return jnp.einsum(mix, weights, v_BSGK).reshape(B, T, H, K)
