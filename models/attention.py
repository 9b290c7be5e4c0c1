"""Attention: projections, rotary positions, masks and the choice of kernel.

Queries and keys carry their positions and segments apart, so that packing, decoding with a cache
and cross-attention are one code path.

Shape suffixes: B batch, T queries, S keys, D embed, H query heads, G key/value heads, K head_dim.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.attention_kernels import Implementation, attend
from models.context import Context
from models.context_attention import attend_over_context
from models.decoder_config import DecoderConfig
from models.layers import Dense, RMSNorm, wide
from models.rope import apply_rope, rope_frequencies, rope_tables
from partitioning.attention_pair import ScoreRules, Tokens, attention_mask


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
        self.context_attention = config.context_attention
        self.cap = config.attention_soft_cap
        self.window = window
        base, scaling = config.rope_base, config.rope_scaling
        if window is not None and config.local_rope_base is not None:
            base, scaling = config.local_rope_base, None
        self.rope = tuple(rope_frequencies(K, base=base, scaling=scaling).tolist())
        # Every kernel divides scores by the root of head_dim; what is left to do falls to queries.
        scale = config.attention_scale
        self.query_scale = None if scale is None else scale * math.sqrt(K)
        heads, kv = ("embed", "heads", "head_dim"), ("embed", "kv_heads", "head_dim")
        bias = config.qkv_bias
        dense = functools.partial(Dense, config=config, rngs=rngs, precision=config.matmul)
        self.query = dense((D,), (H, K), axes=heads, bias=bias)
        self.key = dense((D,), (G, K), axes=kv, bias=bias)
        self.value = dense((D,), (G, K), axes=kv, bias=bias)
        self.out = dense((H, K), (D,), axes=("heads", "head_dim", "embed"))
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
        if self.query_scale is not None:
            q_BTHK = (wide(q_BTHK) * self.query_scale).astype(q_BTHK.dtype)
        q_BTHK = ctx.shard(q_BTHK, "act_batch", "act_length", "act_heads", None)
        keys_at, cache = tokens, None
        if decoding is not None:
            keys_at, cache = decoding.tokens, _extend(decoding, keys=k_BSGK, values=v_BSGK)
            k_BSGK, v_BSGK = cache.keys, cache.values
        if ctx.shard.context > 1 and not cross and decoding is None:
            y_BTHK = attend_over_context(
                q_BTHK,
                k_BSGK,
                v_BSGK,
                tokens,
                way=self.context_attention,
                rules=ScoreRules(window=self.window, cap=self.cap),
                implementation=self.implementation,
                shard=ctx.shard,
            )
            return checkpoint_name(self.out(y_BTHK, ctx), "attention_out"), None
        k_BSGK = ctx.shard(k_BSGK, "act_batch", "act_kv_length", "act_kv_heads", None)
        v_BSGK = ctx.shard(v_BSGK, "act_batch", "act_kv_length", "act_kv_heads", None)
        mask_BTS = attention_mask(tokens, keys_at, causal=not cross, window=self.window)
        y_BTHK = attend(
            q_BTHK,
            k_BSGK,
            v_BSGK,
            mask_BTS,
            cap=self.cap,
            implementation=self.implementation,
            shard=ctx.shard,
        )
        y_BTHK = ctx.shard(y_BTHK, "act_batch", "act_length", "act_heads", None)
        y_BTHK = checkpoint_name(y_BTHK, "attention")
        return checkpoint_name(self.out(y_BTHK, ctx), "attention_out"), cache


def _extend(decoding: Decoding, *, keys: jax.Array, values: jax.Array) -> KeyValueCache:
    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        new = new.astype(old.dtype)
        return jax.lax.dynamic_update_slice_in_dim(old, new, decoding.index, axis=1)

    cache = decoding.caches
    return KeyValueCache(keys=write(cache.keys, keys), values=write(cache.values, values))
