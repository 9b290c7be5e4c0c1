"""Causal self-attention of rows whose tokens are split over the `context` axis.

Two ways that give the same numbers. "all_gather" brings all keys and values to every rank, which is
one exchange, and runs whatever kernel `attend` would choose; the gradients come back by a
reduce-scatter. "ring" (`partitioning.ring`) lets them go round and never holds them all.

Shape suffixes: B batch, T queries, S keys, H query heads, G key/value heads, K head_dim.
"""

import functools

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from models.attention_kernels import HEADS, Implementation, attend, split_heads
from models.decoder_config import ContextAttention
from partitioning.activations import Activations
from partitioning.attention_pair import ScoreRules, Tokens, attention_mask
from partitioning.manual import per_rank
from partitioning.ring import AXIS, RingConfig, ring_attention


def attend_over_context(
    q_BTHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    tokens: Tokens,
    *,
    way: ContextAttention,
    rules: ScoreRules,
    implementation: Implementation = "auto",
    shard: Activations,
) -> jax.Array:
    """Returns [B, T, H, K], split like the queries.

    Args:
      q_BTHK: queries, rotated.
      k_BTGK: keys, rotated; H is a multiple of G.
      v_BTGK: values.
      tokens: where the tokens stand, in the order in which they are split.
      way: "all_gather" or "ring".
      rules: window and soft cap.
      implementation: kernel of "all_gather"; see ``attend``.
      shard: mesh and rules.
    """
    assert shard.mesh is not None
    spec = shard.spec(HEADS, shape=q_BTHK.shape)
    k_BTGK, v_BTGK = (split_heads(x, heads=q_BTHK.shape[2], shard=shard) for x in (k_BTGK, v_BTGK))
    if way == "ring":
        y_BTHK = ring_attention(
            q_BTHK,
            k_BTGK,
            v_BTGK,
            tokens,
            config=RingConfig(mesh=shard.mesh, spec=spec, rules=rules),
        )
        return shard(y_BTHK, *HEADS)
    run = per_rank(
        functools.partial(
            _attend_gathered,
            rules=rules,
            implementation=implementation,
            shard=shard,
        ),
        mesh=shard.mesh,
        in_specs=(spec, spec, spec, PartitionSpec(*spec[:2])),
        out_specs=spec,
    )
    return checkpoint_name(shard(run(q_BTHK, k_BTGK, v_BTGK, tokens), *HEADS), "attention")


def _attend_gathered(
    q_BTHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    at: Tokens,
    *,
    rules: ScoreRules,
    implementation: Implementation,
    shard: Activations,
) -> jax.Array:
    k_BSGK, v_BSGK, keys_at = jax.tree.map(
        lambda x: jax.lax.all_gather(x, AXIS, axis=1, tiled=True), (k_BTGK, v_BTGK, at)
    )
    mask_BTS = attention_mask(at, keys_at, window=rules.window)
    return attend(
        q_BTHK,
        k_BSGK,
        v_BSGK,
        mask_BTS,
        cap=rules.cap,
        implementation=implementation,
        shard=shard,
    )
