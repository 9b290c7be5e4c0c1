"""Ring attention: every rank keeps its queries, keys and values go round (Liu et al., 2023).

Knows arrays and the `context` axis, no model. Promises: softmax in float32 at least, by the online
recurrence (Milakov and Gimelshein, 2018); keys and values are never gathered and never repeated for
grouped queries; the memory of scores is one pair of half chunks, forward and backward; a pair that
the mask empties is not computed; no collective stands in a branch.

Positions and segments go round with the keys, and masks come from them alone, so that any order of
tokens is right. What is skipped is decided for halves of a rank's chunk, because with whole chunks
the zigzag order would have nothing to skip (`sequence_layout`).

The backward pass is written by hand (Dao, 2023, algorithm 2, per pair of half chunks): keys,
values and their gradients go round together, and only the queries' side stays. Differentiating a
rematerialised loop instead keeps every rank's keys and values of every step, as much memory as
gathering them, and runs the forward pass once more.

Shape suffixes: B batch, T local queries, S local keys (half of a chunk inside a pair), H query
heads, G key/value heads, R query heads per key/value head, K head_dim, N halves of all ranks.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from partitioning.attention_pair import ScoreRules, Softmax, Tokens, absorb, gradients
from partitioning.manual import per_rank

AXIS = "context"
SAVED = "attention"
"""Checkpoint name of what the backward pass needs of the forward one: output and normaliser."""

_LAST = jnp.iinfo(jnp.int32).max


@dataclasses.dataclass(frozen=True, kw_only=True)
class RingConfig:
    """What does not change in a run.

    Attributes:
      mesh: devices.
      spec: of queries, keys and values alike, [batch, length, heads, head_dim]; the length is split
        over `context`. The code runs per rank along all axes that it names.
      rules: window and soft cap.
    """

    mesh: Mesh
    spec: PartitionSpec
    rules: ScoreRules


def ring_attention(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, at: Tokens, *, config: RingConfig
) -> jax.Array:
    """Causal self-attention over rows whose tokens are split over `context`.

    A query sees keys of its own segment that are not after it; padding sees nothing and gets zeros.

    Args:
      q_BTHK: queries, whole arrays.
      k_BTGK: keys; H is a multiple of G.
      v_BTGK: values.
      at: where the tokens stand, in the order in which they are split.
      config: mesh, window and soft cap.

    Returns:
      [B, T, H, K] in the dtype of the queries, split like them.

    Raises:
      ValueError: the length is no multiple of twice the ranks.
    """
    parts = 2 * config.mesh.shape[AXIS]
    if q_BTHK.shape[1] % parts:
        raise ValueError(
            f"Ring attention halves the chunk of each of {parts // 2} ranks: a row of "
            f"{q_BTHK.shape[1]} tokens is not a multiple of {parts}."
        )
    B, T, H, K = q_BTHK.shape
    G = k_BTGK.shape[2]
    y = _attend(q_BTHK.reshape(B, T, G, H // G, K), k_BTGK, v_BTGK, at, config)
    return y.reshape(B, T, H, K)


def visible_halves(edges_BN4: jax.Array, *, window: int | None = None) -> jax.Array:
    """Returns [N, N] bool: whether any query of a half may see a key of another, in any row.

    Never leaves out a pair, whatever the order of tokens; exact where a half is a stretch of a row.

    Args:
      edges_BN4: from `edges_of_halves`.
      window: tokens that a query sees, itself included.
    """
    low, first, high, last = jnp.moveaxis(edges_BN4, -1, 0)

    def queries(x: jax.Array) -> jax.Array:
        return x[:, :, None]

    def keys(x: jax.Array) -> jax.Array:
        return x[:, None, :]

    visible = (queries(high) >= keys(low)) & (queries(low) <= keys(high))
    visible &= (queries(high) > keys(low)) | (queries(last) >= keys(first))
    if window is not None:
        visible &= (queries(low) < keys(high)) | (queries(first) - keys(last) < window)
    return visible.any(axis=0)


def edges_of_halves(at: Tokens, *, halves: int) -> jax.Array:
    """Returns [B, halves, 4] int32: of each part its first and its last token.

    They are the lowest segment, the lowest position in it, the highest segment and the highest
    position in that. Padding does not count; a part of padding has a first after its last.
    """
    segments, positions = (x.reshape(x.shape[0], halves, -1) for x in (at.segments, at.positions))
    real = segments != 0
    low = jnp.where(real, segments, _LAST).min(-1)
    high = jnp.where(real, segments, -1).max(-1)
    first = jnp.where(segments == low[..., None], positions, _LAST).min(-1)
    last = jnp.where(segments == high[..., None], positions, -1).max(-1)
    return jnp.stack([low, first, high, last], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, at: Tokens, config: RingConfig) -> jax.Array:
    return _attend_forward(q, k, v, at, config)[0]


def _attend_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, at: Tokens, config: RingConfig
) -> tuple[jax.Array, Any]:
    heads, tokens = config.spec, PartitionSpec(*config.spec[:2])
    run = per_rank(
        functools.partial(_forward_of_rank, rules=config.rules),
        mesh=config.mesh,
        in_specs=(heads, heads, heads, tokens),
        out_specs=(heads, heads, tokens),
    )
    y, lse, needed = run(q, k, v, at)
    y, lse = checkpoint_name(y, SAVED), checkpoint_name(lse, SAVED)
    return y, (q, k, v, at, y, lse, needed)


def _attend_backward(config: RingConfig, saved: Any, dy: jax.Array) -> tuple[Any, ...]:
    heads, tokens = config.spec, PartitionSpec(*config.spec[:2])
    run = per_rank(
        functools.partial(_backward_of_rank, rules=config.rules),
        mesh=config.mesh,
        in_specs=(heads, heads, heads, tokens, heads, heads, tokens, heads),
        out_specs=(heads, heads, heads),
    )
    return (*run(*saved, dy), None)


_attend.defvjp(_attend_forward, _attend_backward)


def _forward_of_rank(
    q_BTGRK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    at: Tokens,
    *,
    rules: ScoreRules,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns outputs and log of the normaliser of one rank's queries, and [1, 2, N] its pairs."""
    edges = jax.lax.all_gather(edges_of_halves(at, halves=2), AXIS, axis=1, tiled=True)
    visible_NN = visible_halves(edges, window=rules.window)
    rank = jax.lax.axis_index(AXIS)
    needed_2N = jax.lax.dynamic_slice_in_dim(visible_NN, 2 * rank, 2)
    queries = list(zip(_halves(q_BTGRK), _halves(at), strict=True))
    pairs = _Pairs(needed_2N)

    def visit(softmaxes: list[Softmax], round_: Any, step: jax.Array | int) -> list[Softmax]:
        keys = [_halves(x) for x in round_]
        for i, j, seen in pairs.of(step):
            part = (*queries[i], *(x[j] for x in keys))
            softmaxes[i] = jax.lax.cond(
                seen,
                lambda before, part=part: absorb(before, *part, rules=rules),
                lambda before: before,
                softmaxes[i],
            )
        return softmaxes

    def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
        softmaxes, here = carry
        # Sent on before it is used: neither waits for the other.
        onward = _send_on(here)
        return (visit(softmaxes, here, number), onward), None

    here = (k_BTGK, v_BTGK, at)
    softmaxes = [Softmax.empty(q) for q, _ in queries]
    last = pairs.ranks - 1
    (softmaxes, here), _ = jax.lax.scan(step, (softmaxes, here), jnp.arange(last))
    y, lse = _whole([softmax.finished() for softmax in visit(softmaxes, here, last)])
    return y.astype(q_BTGRK.dtype), lse, needed_2N[None]


def _backward_of_rank(
    q_BTGRK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    at: Tokens,
    y_BTGRK: jax.Array,
    lse_BTGR: jax.Array,
    needed_12N: jax.Array,
    dy_BTGRK: jax.Array,
    *,
    rules: ScoreRules,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns gradients of one rank's queries, keys and values."""
    delta = (y_BTGRK.astype(lse_BTGR.dtype) * dy_BTGRK.astype(lse_BTGR.dtype)).sum(-1)
    mine = (q_BTGRK, at, lse_BTGR, dy_BTGRK, delta)
    queries = list(zip(*(_halves(x) for x in mine), strict=True))
    pairs = _Pairs(needed_12N[0])

    def zeros(x: jax.Array) -> list[jax.Array]:
        return [jnp.zeros(half.shape, lse_BTGR.dtype) for half in _halves(x)]

    def visit(dq: list[jax.Array], here: Any, step: jax.Array | int) -> tuple[Any, Any]:
        keys = [_halves(x) for x in here]
        dk, dv = zeros(here[0]), zeros(here[1])
        for i, j, seen in pairs.of(step):
            part = (*queries[i], *(x[j] for x in keys))

            def add(before: Any, part: Any = part) -> Any:
                added = gradients(*part, rules=rules)
                return jax.tree.map(jnp.add, before, added)

            before = (dq[i], dk[j], dv[j])
            dq[i], dk[j], dv[j] = jax.lax.cond(seen, add, lambda before: before, before)
        return dq, (dk, dv)

    def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
        dq, here, there = carry
        onward, so_far = _send_on(here), _send_on(there)
        dq, added = visit(dq, here, number)
        return (dq, onward, jax.tree.map(jnp.add, so_far, added)), None

    here, last = (k_BTGK, v_BTGK, at), pairs.ranks - 1
    # The first and the last visit stand outside the loop: nothing is sent that nobody needs.
    onward = _send_on(here)
    dq, added = visit(zeros(q_BTGRK), here, 0)
    (dq, here, there), _ = jax.lax.scan(step, (dq, onward, added), jnp.arange(1, last))
    so_far = _send_on(there)
    dq, added = visit(dq, here, last)
    # Nothing is added after the last hop: it sends what is returned, not the sum's wider digits.
    narrow = functools.partial(jax.tree.map, lambda x: x.astype(k_BTGK.dtype))
    dk, dv = _send_on(narrow(jax.tree.map(jnp.add, so_far, added)))
    return (
        _whole(dq).astype(q_BTGRK.dtype),
        _whole(dk),
        _whole(dv),
    )


class _Pairs:
    """Which halves of this rank's queries see which halves of the keys that are here."""

    def __init__(self, needed_2N: jax.Array):
        self.ranks = jax.lax.axis_size(AXIS)
        self._needed = needed_2N
        self._rank = jax.lax.axis_index(AXIS)

    def of(self, step: jax.Array | int) -> list[tuple[int, int, jax.Array]]:
        """Returns (half of the queries, half of the keys, whether any is seen) at a step."""
        source = (self._rank - step) % self.ranks
        return [(i, j, self._needed[i, 2 * source + j]) for i in range(2) for j in range(2)]


def _send_on(tree: Any) -> Any:
    """Gives arrays to the next rank and returns those of the rank before."""
    ranks = jax.lax.axis_size(AXIS)
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, AXIS, ring), tree)


def _halves(tree: Any) -> list[Any]:
    """Cuts [B, T, ...] in two along T."""

    def half(number: int) -> Any:
        return jax.tree.map(lambda x: jnp.split(x, 2, axis=1)[number], tree)

    return [half(0), half(1)]


def _whole(halves: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *halves)
