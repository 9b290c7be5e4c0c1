"""Softmax attention of arrays, and the choice of kernel.

Shape suffixes: B batch, T queries, S keys, H query heads, G key/value heads,
R query heads per key/value head, K head_dim.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from models.layers import soft_cap, wide

Implementation = Literal["auto", "xla", "cudnn"]


def attend(
    q_BTHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    mask_BTS: jax.Array,
    *,
    cap: float | None = None,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Softmax attention; a query that sees no key returns zeros.

    Args:
      q_BTHK: queries.
      k_BSGK: keys; H is a multiple of G.
      v_BSGK: values.
      mask_BTS: True where a query sees a key.
      cap: soft cap on the scores.
      implementation: "cudnn" needs a GPU, 16-bit inputs and no soft cap; "auto" takes it there.

    Returns:
      [B, T, H, K] in the dtype of the queries.

    Raises:
      ValueError: "cudnn" was asked for where it cannot run.
    """
    fits = q_BTHK.dtype in (jnp.bfloat16, jnp.float16) and cap is None
    on_gpu = jax.default_backend() == "gpu"
    if implementation == "cudnn" and not (fits and on_gpu):
        raise ValueError(
            f"DecoderConfig.attention='cudnn' needs a GPU, 16-bit activations and no soft cap; "
            f"given {jax.default_backend()}, {q_BTHK.dtype}, soft cap {cap}. Use 'auto'."
        )
    if implementation == "cudnn" or (implementation == "auto" and fits and on_gpu):
        return jax.nn.dot_product_attention(
            q_BTHK, k_BSGK, v_BSGK, mask=mask_BTS[:, None], implementation="cudnn"
        )
    return _attend_xla(q_BTHK, k_BSGK, v_BSGK, mask_BTS, cap=cap)


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
