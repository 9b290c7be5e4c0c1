"""Attention: projections, rotary positions, masks and the choice of kernel.

Queries and keys carry their positions and segments apart, so that packing, decoding with a cache
and cross-attention are one code path.

Shape suffixes: B batch, T queries, S keys, D embed, H query heads, G key/value heads,
R query heads per key/value head, K head_dim.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.context import Context
from models.decoder_config import DecoderConfig
from models.layers import Dense, RMSNorm, soft_cap, wide
from models.rope import apply_rope, rope_frequencies, rope_tables

Implementation = Literal["auto", "xla", "cudnn"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """Where tokens stand.

    Attributes:
      positions: [B, T] int32, position inside the document.
      segments: [B, T] int32, number of the document in its row; 0 is padding. A token sees only
        tokens of its own segment.
    """

    positions: jax.Array
    segments: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyValueCache:
    """Keys and values of earlier tokens of one attention layer.

    Attributes:
      keys: [B, S, G, K], already rotated.
      values: [B, S, G, K].
    """

    keys: jax.Array
    values: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Continues from the keys and values of earlier tokens.

    Attributes:
      caches: of one attention layer a KeyValueCache, of a stack or decoder dicts of them.
      index: slot of the first new key.
      tokens: where the tokens of all S slots stand; the causal mask hides slots still empty.
    """

    caches: Any
    index: jax.Array | int
    tokens: Tokens

    def of(self, caches: Any) -> "Decoding":
        """Returns the same with other caches, such as those of one layer."""
        return dataclasses.replace(self, caches=caches)


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al., 2023) with rotary positions."""

    def __init__(self, config: DecoderConfig, *, window: int | None, rngs: nnx.Rngs):
        """Creates projections; ``window`` limits how far back a query sees."""
        assert config.head_dim is not None
        D, H, G, K = config.embed_dim, config.heads, config.kv_heads, config.head_dim
        self.implementation: Implementation = config.attention
        self.cap = config.attention_soft_cap
        self.window = window
        self.rope = tuple(
            rope_frequencies(K, base=config.rope_base, scaling=config.rope_scaling).tolist()
        )
        heads, kv = ("embed", "heads", "head_dim"), ("embed", "kv_heads", "head_dim")
        bias = config.qkv_bias
        self.query = Dense((D,), (H, K), axes=heads, config=config, rngs=rngs, bias=bias)
        self.key = Dense((D,), (G, K), axes=kv, config=config, rngs=rngs, bias=bias)
        self.value = Dense((D,), (G, K), axes=kv, config=config, rngs=rngs, bias=bias)
        out = ("heads", "head_dim", "embed")
        self.out = Dense((H, K), (D,), axes=out, config=config, rngs=rngs)
        self.query_norm = RMSNorm(K, config=config) if config.qk_norm else None
        self.key_norm = RMSNorm(K, config=config) if config.qk_norm else None

    def __call__(
        self,
        x_BTD: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
        memory_BSD: jax.Array | None = None,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Attends from ``x`` to itself, to a cache, or to ``memory``.

        Args:
          x_BTD: queries' inputs.
          tokens: where the queries stand.
          ctx: sharding and randomness.
          decoding: keys and values so far; None where all keys are the queries' own.
          memory_BSD: inputs of keys and values in cross-attention (no rotary positions, no
            causal mask).

        Returns:
          [B, T, D] and the cache with the new keys and values, or None without one.
        """
        cross = memory_BSD is not None
        source = x_BTD if memory_BSD is None else memory_BSD
        q_BTHK = checkpoint_name(self.query(x_BTD, ctx), "query")
        k_BSGK = checkpoint_name(self.key(source, ctx), "key")
        v_BSGK = checkpoint_name(self.value(source, ctx), "value")
        if self.query_norm is not None and self.key_norm is not None:
            q_BTHK, k_BSGK = self.query_norm(q_BTHK), self.key_norm(k_BSGK)
        if not cross:
            tables = rope_tables(tokens.positions, np.asarray(self.rope))
            q_BTHK, k_BSGK = apply_rope(q_BTHK, tables), apply_rope(k_BSGK, tables)
        q_BTHK = ctx.shard(q_BTHK, "act_batch", "act_length", "act_heads", None)
        keys_at, cache = tokens, None
        if decoding is not None:
            keys_at, cache = decoding.tokens, _extend(decoding, keys=k_BSGK, values=v_BSGK)
            k_BSGK, v_BSGK = cache.keys, cache.values
        k_BSGK = ctx.shard(k_BSGK, "act_batch", "act_kv_length", "act_kv_heads", None)
        v_BSGK = ctx.shard(v_BSGK, "act_batch", "act_kv_length", "act_kv_heads", None)
        mask_BTS = attention_mask(tokens, keys_at, causal=not cross, window=self.window)
        y_BTHK = attend(
            q_BTHK, k_BSGK, v_BSGK, mask_BTS, cap=self.cap, implementation=self.implementation
        )
        y_BTHK = ctx.shard(y_BTHK, "act_batch", "act_length", "act_heads", None)
        y_BTHK = checkpoint_name(y_BTHK, "attention")
        return checkpoint_name(self.out(y_BTHK, ctx), "attention_out"), cache


def attention_mask(
    queries: Tokens, keys: Tokens, *, causal: bool = True, window: int | None = None
) -> jax.Array:
    """Returns [B, T, S] bool: which keys a query sees.

    Same segment, not padding, not in the future, and fewer than ``window`` tokens back.
    """
    q, k = queries.positions[:, :, None], keys.positions[:, None, :]
    same = queries.segments[:, :, None] == keys.segments[:, None, :]
    mask = same & (keys.segments[:, None, :] != 0)
    if causal:
        mask &= q >= k
    if window is not None:
        mask &= q - k < window
    return mask


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


def _extend(decoding: Decoding, *, keys: jax.Array, values: jax.Array) -> KeyValueCache:
    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        new = new.astype(old.dtype)
        return jax.lax.dynamic_update_slice_in_dim(old, new, decoding.index, axis=1)

    cache = decoding.caches
    return KeyValueCache(keys=write(cache.keys, keys), values=write(cache.values, values))
