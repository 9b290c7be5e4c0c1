"""Attention of a stretch of queries to a stretch of keys, as a part of a larger softmax.

Arithmetic only: no mesh, no collective. `attention_mask` says who sees whom, here and in all other
attention. `absorb` adds keys to a running softmax (Milakov and Gimelshein, 2018), `gradients` is
its reverse from the finished normaliser (Dao, 2023, algorithm 2). Products run in the dtype of
their inputs and are summed in float32 at least, as is everything else.

Long stretches of queries are taken a block at a time, so that the scores in memory are those of one
block.

Shape suffixes: B batch, T queries, S keys, G key/value heads, R query heads per key/value head,
K head_dim.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

QUERY_BLOCK = 1024
"""Queries whose scores are held at once, where it divides the stretch."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreRules:
    """Which keys a query sees, besides those of its segment that are not after it.

    Attributes:
      window: tokens that a query sees, itself included; None sees all before.
      cap: soft cap on the scores; None has none.
    """

    window: int | None = None
    cap: float | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Softmax:
    """A softmax over the keys so far.

    Attributes:
      mixed: [B, T, G, R, K], sum of values times exp(score - top).
      top: [B, T, G, R], largest score.
      weight: [B, T, G, R], sum of exp(score - top).
    """

    mixed: jax.Array
    top: jax.Array
    weight: jax.Array

    @classmethod
    def empty(cls, q_BTGRK: jax.Array) -> "Softmax":
        """Returns the softmax of ``q`` over no keys."""
        dtype = jnp.promote_types(q_BTGRK.dtype, jnp.float32)
        shape = q_BTGRK.shape[:-1]
        return cls(
            mixed=jnp.zeros(q_BTGRK.shape, dtype),
            top=jnp.full(shape, jnp.finfo(dtype).min, dtype),
            weight=jnp.zeros(shape, dtype),
        )

    def finished(self) -> tuple[jax.Array, jax.Array]:
        """Returns outputs [B, T, G, R, K] and the log of the normaliser [B, T, G, R].

        Both are zero for a query that saw nothing.
        """
        seen = self.weight > 0
        weight = jnp.where(seen, self.weight, 1)
        lse = jnp.where(seen, self.top + jnp.log(weight), 0)
        return self.mixed / weight[..., None], lse


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


def absorb(
    softmax: Softmax,
    q_BTGRK: jax.Array,
    queries: Tokens,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    keys: Tokens,
    *,
    rules: ScoreRules,
) -> Softmax:
    """Returns the softmax with more keys in it."""

    def block(part: tuple[Softmax, jax.Array, Tokens]) -> Softmax:
        before, q, at = part
        scores, mask = _scores(q, at, k_BSGK, keys, rules=rules)
        before_top = _to_scores(before.top)
        top = jnp.maximum(before_top, scores.max(-1))
        # A query that has seen nothing has a top of the least number, and exp(0) is not nothing.
        weights = jnp.where(mask, jnp.exp(scores - top[..., None]), 0)
        kept = _to_queries(jnp.exp(before_top - top))
        mixed = _product("bgrts,bsgk->btgrk", weights.astype(v_BSGK.dtype), v_BSGK)
        return Softmax(
            mixed=before.mixed * kept[..., None] + mixed,
            top=_to_queries(top),
            weight=before.weight * kept + _to_queries(weights.sum(-1)),
        )

    parts = (softmax, q_BTGRK, queries)
    if (blocks := _blocks(q_BTGRK)) == 1:
        return block(parts)
    return _joined(jax.lax.map(block, _cut(parts, blocks)))


def gradients(
    q_BTGRK: jax.Array,
    queries: Tokens,
    lse_BTGR: jax.Array,
    dy_BTGRK: jax.Array,
    delta_BTGR: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    keys: Tokens,
    *,
    rules: ScoreRules,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns what this pair adds to the gradients of queries, keys and values, float32 at least.

    Args:
      q_BTGRK: queries.
      queries: where they stand.
      lse_BTGR: log of the finished normaliser.
      dy_BTGRK: gradient of the outputs.
      delta_BTGR: sum over K of outputs times ``dy``.
      k_BSGK: keys.
      v_BSGK: values.
      keys: where they stand.
      rules: window and cap.
    """

    def block(part: tuple[jax.Array, Tokens, jax.Array, jax.Array, jax.Array]) -> Any:
        q, at, lse, dy, delta = part
        scores, mask = _scores(q, at, k_BSGK, keys, rules=rules)
        weights = jnp.where(mask, jnp.exp(scores - _to_scores(lse)[..., None]), 0)
        dv = _product("bgrts,btgrk->bsgk", weights.astype(dy.dtype), dy)
        slope = _product("btgrk,bsgk->bgrts", dy, v_BSGK) - _to_scores(delta)[..., None]
        slope = weights * slope * q.shape[-1] ** -0.5
        if rules.cap is not None:
            slope = slope * (1 - jnp.where(mask, scores / rules.cap, 0) ** 2)
        slope = slope.astype(q.dtype)
        dq = _product("bgrts,bsgk->btgrk", slope, k_BSGK)
        return dq, (_product("bgrts,btgrk->bsgk", slope, q), dv)

    parts = (q_BTGRK, queries, lse_BTGR, dy_BTGRK, delta_BTGR)
    if (blocks := _blocks(q_BTGRK)) == 1:
        dq, (dk, dv) = block(parts)
        return dq, dk, dv

    def step(total: Any, part: Any) -> tuple[Any, jax.Array]:
        dq, added = block(part)
        return jax.tree.map(jnp.add, total, added), dq

    dtype = jnp.promote_types(k_BSGK.dtype, jnp.float32)
    zero = (jnp.zeros(k_BSGK.shape, dtype), jnp.zeros(v_BSGK.shape, dtype))
    (dk, dv), dq = jax.lax.scan(step, zero, _cut(parts, blocks))
    return _joined(dq), dk, dv


def _scores(
    q_BTGRK: jax.Array, queries: Tokens, k_BSGK: jax.Array, keys: Tokens, *, rules: ScoreRules
) -> tuple[jax.Array, jax.Array]:
    """Returns scores [B, G, R, T, S], the least number where masked, and the mask."""
    scores = _product("btgrk,bsgk->bgrts", q_BTGRK, k_BSGK) * q_BTGRK.shape[-1] ** -0.5
    if rules.cap is not None:
        scores = rules.cap * jnp.tanh(scores / rules.cap)
    mask = attention_mask(queries, keys, window=rules.window)[:, None, None]
    return jnp.where(mask, scores, jnp.finfo(scores.dtype).min), mask


def _product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.einsum(equation, x, y, preferred_element_type=dtype)


def _to_scores(x_BTGR: jax.Array) -> jax.Array:
    return jnp.moveaxis(x_BTGR, 1, 3)


def _to_queries(x_BGRT: jax.Array) -> jax.Array:
    return jnp.moveaxis(x_BGRT, 3, 1)


def _blocks(q_BTGRK: jax.Array) -> int:
    queries = q_BTGRK.shape[1]
    return 1 if queries % QUERY_BLOCK else queries // QUERY_BLOCK


def _cut(tree: Any, blocks: int) -> Any:
    """[B, T, ...] -> [blocks, B, T / blocks, ...]."""

    def cut(x: jax.Array) -> jax.Array:
        parts = x.reshape(x.shape[0], blocks, x.shape[1] // blocks, *x.shape[2:])
        return jnp.moveaxis(parts, 1, 0)

    return jax.tree.map(cut, tree)


def _joined(tree: Any) -> Any:
    """[blocks, B, T, ...] -> [B, blocks T, ...]."""

    def join(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2], *x.shape[3:])

    return jax.tree.map(join, tree)
