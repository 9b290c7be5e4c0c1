"""A stack of decoder blocks: ``repeats`` times the same few kinds, parameters stacked.

Every parameter has a leading ``layers`` dimension of size ``repeats``. The stack is scanned
(compile time independent of depth) or unrolled (faster on CPU), with the same numbers.

Shape suffixes: B batch, T length, S cache slots, D embed, L repeats.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import Attention, Decoding, KeyValueCache, Tokens
from models.context import Context, dropout
from models.decoder_config import SAVEABLE, DecoderConfig
from models.layers import FeedForward, RMSNorm

SCAN_ABOVE = 8
RESIDUAL = ("act_batch", "act_length_residual", "act_embed")
INSIDE = ("act_batch", "act_length", "act_embed")

Caches = dict[str, KeyValueCache]


class DecoderBlock(nnx.Module):
    """Attention and feed-forward sublayers around a residual stream."""

    def __init__(self, config: DecoderConfig, kind: str, *, rngs: nnx.Rngs):
        """Creates a block; ``kind`` is one of DecoderConfig's block kinds."""
        D = config.embed_dim
        self.rate = config.dropout
        self.attention_norm = RMSNorm(D, config=config)
        self.attention = Attention(
            config, window=config.window if kind == "local" else None, rngs=rngs
        )
        self.mlp_norm = RMSNorm(D, config=config)
        self.mlp = FeedForward(config, rngs=rngs)
        self.attention_post_norm = RMSNorm(D, config=config) if config.post_norms else None
        self.mlp_post_norm = RMSNorm(D, config=config) if config.post_norms else None

    def __call__(
        self,
        x_BTD: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """[B, T, D] -> [B, T, D] and the extended cache."""
        h = gathered(self.attention_norm(x_BTD), ctx)
        h, cache = self.attention(h, tokens, ctx=ctx, decoding=decoding)
        x_BTD = self._add(x_BTD, h, norm=self.attention_post_norm, site=0, ctx=ctx)
        h = self.mlp(gathered(self.mlp_norm(x_BTD), ctx), ctx)
        return self._add(x_BTD, h, norm=self.mlp_post_norm, site=1, ctx=ctx), cache

    def _add(
        self, x: jax.Array, h: jax.Array, *, norm: RMSNorm | None, site: int, ctx: Context
    ) -> jax.Array:
        # Constrained before the addition, so that tensor parallelism can reduce-scatter.
        h = ctx.shard(h, *RESIDUAL)
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
        self.remat = config.remat
        scan = config.scan_layers
        self.scan = repeats > 1 and (config.repeats > SCAN_ABOVE if scan is None else scan)
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
    ) -> tuple[jax.Array, Caches | None]:
        """Runs every block.

        Args:
          x_BTD: residual stream.
          tokens: where the inputs stand.
          ctx: sharding and randomness.
          decoding: caches by position in the pattern, each with a leading L.

        Returns:
          [B, T, D] and the extended caches.
        """
        graph, stacked = nnx.split(self.blocks)
        caches = None if decoding is None else decoding.caches

        def repeat(
            x: jax.Array, number: jax.Array | int, parameters: Any, caches: Caches | None
        ) -> tuple[jax.Array, Caches | None]:
            blocks = nnx.merge(graph, parameters)
            extended: Caches = {}
            # By number: a dict that was split and merged comes back sorted, "10" before "2".
            for position in range(len(blocks)):
                name, layer = str(position), self.first + number * len(blocks) + position
                x, cache = blocks[name](
                    x,
                    tokens,
                    ctx=ctx.at_layer(layer),
                    decoding=decoding.of(caches[name]) if decoding and caches else None,
                )
                if cache is not None:
                    extended[name] = cache
            return x, (extended if caches is not None else None)

        run = rematerialized(repeat, policy=self.remat, scanned=self.scan)
        if self.scan:
            return jax.lax.scan(
                lambda x, each: run(x, *each), x_BTD, (jnp.arange(self.repeats), stacked, caches)
            )
        return self._unrolled(run, x_BTD, stacked, caches)

    def _unrolled(
        self, run: Callable[..., Any], x: jax.Array, stacked: Any, caches: Caches | None
    ) -> tuple[jax.Array, Caches | None]:
        # split, not indexing: its transpose is one concatenation, not a sum of padded slices.
        parameters = _unstack(stacked, self.repeats)
        each_cache = _unstack(caches, self.repeats)
        results = []
        for number in range(self.repeats):
            x, cache = run(x, number, parameters[number], each_cache[number])
            results.append(cache)
        if caches is None:
            return x, None
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def gathered(h: jax.Array, ctx: Context) -> jax.Array:
    """Returns a norm's output [B, T, D] as products take it: the whole sequence on each device.

    Its layout before the gather is named too. Otherwise the partitioner moves the gather to the
    other side of the norm's last conversion, and sends float32 where the result is bfloat16.
    """
    return ctx.shard(ctx.shard(h, *RESIDUAL), *INSIDE)


def rematerialized(
    function: Callable[..., Any], *, policy: str, scanned: bool
) -> Callable[..., Any]:
    """Wraps ``function`` so that its backward pass recomputes what ``policy`` does not save.

    Args:
      function: one repeat of the pattern.
      policy: "none" saves everything, "selective" the outputs of matrix multiplications and
        attention, "full" only the inputs, "save:a,b" the named values; DecoderConfig checked it.
      scanned: a scan already keeps the compiler from merging both computations.
    """
    if policy == "none":
        return function
    names = {"full": (), "selective": SAVEABLE}.get(policy)
    if names is None:
        names = tuple(policy.removeprefix("save:").split(","))
    return jax.checkpoint(
        function,
        policy=jax.checkpoint_policies.save_only_these_names(*names),
        prevent_cse=not scanned,
    )


def _unstack(tree: Any, repeats: int) -> list[Any]:
    leaves, structure = jax.tree.flatten(tree)
    parts = [[part[0] for part in jnp.split(leaf, repeats)] for leaf in leaves]
    return [jax.tree.unflatten(structure, [part[i] for part in parts]) for i in range(repeats)]
