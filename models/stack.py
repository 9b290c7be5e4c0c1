"""A stack of decoder blocks: ``repeats`` times the same few kinds, parameters stacked.

Every parameter has a leading ``layers`` dimension of size ``repeats``. The stack is scanned
(compile time independent of depth) or unrolled (faster on CPU), with the same numbers.

Shape suffixes: B batch, T length, S cache slots, D embed, L repeats.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.attention import Attention, Decoding, KeyValueCache, Tokens
from models.context import Context, dropout
from models.decoder_config import DecoderConfig, has_experts, is_local
from models.experts import Experts
from models.layers import FeedForward, RMSNorm
from models.remat import Remat

RESIDUAL = ("act_batch", "act_length_residual", "act_embed")
INSIDE = ("act_batch", "act_length", "act_embed")

Caches = dict[str, KeyValueCache]
Auxiliary = dict[str, jax.Array]
"""Sums that blocks report beside their output: ``auxiliary_loss`` and metrics; empty if dense."""


class DecoderBlock(nnx.Module):
    """Attention and feed-forward sublayers around a residual stream."""

    def __init__(self, config: DecoderConfig, kind: str, *, rngs: nnx.Rngs):
        """Creates a block; ``kind`` is one of DecoderConfig's block kinds."""
        D = config.embed_dim
        self.rate = config.dropout
        self.attention_norm = RMSNorm(D, config=config)
        self.attention = Attention(
            config, window=config.window if is_local(kind) else None, rngs=rngs
        )
        self.mlp_norm = RMSNorm(D, config=config)
        feed_forward = Experts if has_experts(kind) else FeedForward
        self.mlp = feed_forward(config, rngs=rngs)
        self.attention_post_norm = RMSNorm(D, config=config) if config.post_norms else None
        self.mlp_post_norm = RMSNorm(D, config=config) if config.post_norms else None

    def __call__(
        self,
        x_BTD: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
    ) -> tuple[jax.Array, KeyValueCache | None, Auxiliary]:
        """[B, T, D] -> [B, T, D], the extended cache, and what the block reports."""
        h = gathered(self.attention_norm(x_BTD), ctx)
        h, cache = self.attention(h, tokens, ctx=ctx, decoding=decoding)
        x_BTD = self._add(x_BTD, h, norm=self.attention_post_norm, site=0, ctx=ctx)
        h = gathered(self.mlp_norm(x_BTD), ctx)
        report: Auxiliary = {}
        if isinstance(self.mlp, Experts):
            h, report = self.mlp(h, real_BT=tokens.segments != 0, ctx=ctx)
        else:
            h = self.mlp(h, ctx)
        return self._add(x_BTD, h, norm=self.mlp_post_norm, site=1, ctx=ctx), cache, report

    def _add(
        self, x: jax.Array, h: jax.Array, *, norm: RMSNorm | None, site: int, ctx: Context
    ) -> jax.Array:
        # Constrained before the addition, so that tensor parallelism can reduce-scatter. Back, the
        # gradient is gathered along the sequence before it meets the weights' axes, which may
        # share a mesh axis with the sequence: the compiler would move all of it there instead.
        h = ctx.shard(ctx.shard.gradient(h, *INSIDE), *RESIDUAL)
        h = h if norm is None else norm(h)
        return ctx.shard(x + dropout(h, rate=self.rate, site=site, ctx=ctx), *RESIDUAL)


class Stack(nnx.Module):
    """``kinds`` in order, ``repeats`` times."""

    def __init__(
        self,
        config: DecoderConfig,
        kinds: tuple[str, ...],
        *,
        repeats: int,
        first: int,
        key: jax.Array,
    ):
        """Creates parameters; those of a block depend only on ``key`` and the block's number.

        Args:
          config: the decoder's.
          kinds: block kinds of one repeat.
          repeats: L, leading dimension of every parameter.
          first: number of the first block in the whole decoder.
          key: parameter key of all blocks.
        """
        self.first, self.repeats = first, repeats
        self.remat = config.remat_choices
        self.scan = repeats > 1 and config.scanned
        blocks = {}
        for position, kind in enumerate(kinds):

            def create(number: jax.Array, kind: str = kind) -> tuple[Any, Any]:
                rngs = nnx.Rngs(params=jax.random.fold_in(key, number))
                return nnx.split(DecoderBlock(config, kind, rngs=rngs))

            numbers = first + position + len(kinds) * jnp.arange(repeats)
            graph, stacked = jax.vmap(create, out_axes=(None, 0))(numbers)
            for _, parameter in nnx.to_flat_state(stacked):
                parameter.set_metadata(logical_axes=("layers", *parameter.logical_axes))
            blocks[str(position)] = nnx.merge(graph, stacked)
        self.blocks = nnx.Dict(blocks)

    def __call__(
        self,
        x_BTD: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
        numbers: jax.Array | np.ndarray | None = None,
    ) -> tuple[jax.Array, Caches | None, Auxiliary]:
        """Runs every block.

        Args:
          x_BTD: residual stream.
          tokens: where the inputs stand.
          ctx: sharding and randomness.
          decoding: caches by position in the pattern, each with a leading L.
          numbers: [L] int32, which repeats the parameters belong to, where they are only some of
            the stack's (a pipeline stage); None means all.

        Returns:
          [B, T, D], the extended caches, and the sum of what the blocks report.
        """
        graph, stacked = nnx.split(self.blocks)
        caches = None if decoding is None else decoding.caches
        numbers = np.arange(self.repeats) if numbers is None else numbers

        def repeat(
            x: jax.Array, number: jax.Array | int, parameters: Any, caches: Caches | None
        ) -> tuple[jax.Array, tuple[Caches | None, Auxiliary]]:
            blocks = nnx.merge(graph, parameters)
            extended: Caches = {}
            reports: list[Auxiliary] = []
            # By number: a dict that was split and merged comes back sorted, "10" before "2".
            for position in range(len(blocks)):
                name, layer = str(position), self.first + number * len(blocks) + position
                x, cache, report = blocks[name](
                    x,
                    tokens,
                    ctx=ctx.at_layer(layer),
                    decoding=decoding.of(caches[name]) if decoding and caches else None,
                )
                reports.append(report)
                if cache is not None:
                    extended[name] = cache
            return x, (extended if caches is not None else None, add_reports(*reports))

        run = rematerialized(repeat, remat=self.remat, scanned=self.scan)
        if self.scan:
            x_BTD, (caches, reports) = jax.lax.scan(
                lambda x, each: run(x, *each), x_BTD, (numbers, stacked, caches)
            )
            return x_BTD, caches, jax.tree.map(lambda report: report.sum(axis=0), reports)
        # split, not indexing: its transpose is one concatenation, not a sum of padded slices.
        repeats = numbers.shape[0]
        each = zip(numbers, _unstack(stacked, repeats), _unstack(caches, repeats), strict=True)
        results = []
        for part in each:
            x_BTD, result = run(x_BTD, *part)
            results.append(result)
        extended, reports = zip(*results, strict=True)
        caches = None if caches is None else jax.tree.map(lambda *a: jnp.stack(a), *extended)
        return x_BTD, caches, add_reports(*reports)


def add_reports(*reports: Auxiliary) -> Auxiliary:
    """Returns the sum of what blocks report; a name that one of them lacks counts as zero."""
    names = {name: None for report in reports for name in report}
    return {
        name: functools.reduce(operator.add, [part[name] for part in reports if name in part])
        for name in names
    }


def gathered(h: jax.Array, ctx: Context) -> jax.Array:
    """Returns a norm's output [B, T, D] as products take it: the whole sequence on each device.

    Its layout before the gather is named too. Otherwise the partitioner moves the gather to the
    other side of the norm's last conversion, and sends float32 where the result is bfloat16.
    """
    return ctx.shard(ctx.shard(h, *RESIDUAL), *INSIDE)


def rematerialized(
    function: Callable[..., Any], *, remat: Remat | None, scanned: bool
) -> Callable[..., Any]:
    """Wraps ``function`` so that its backward pass recomputes what ``remat`` does not keep.

    Args:
      function: one repeat of the pattern.
      remat: what is kept besides the inputs, and where; None keeps everything.
      scanned: a scan already keeps the compiler from merging both computations.
    """
    if remat is None:
        return function
    policies = jax.checkpoint_policies
    policy = (
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=remat.save,
            names_which_can_be_offloaded=remat.offload,
            offload_src="device",
            offload_dst="pinned_host",
        )
        if remat.offload
        else policies.save_only_these_names(*remat.save)
    )
    return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)


def _unstack(tree: Any, repeats: int) -> list[Any]:
    leaves, structure = jax.tree.flatten(tree)
    parts = [[part[0] for part in jnp.split(leaf, repeats)] for leaf in leaves]
    return [jax.tree.unflatten(structure, [part[i] for part in parts]) for i in range(repeats)]
