"""The decoder: embedding, stacks of blocks, final norm and language-model head.

Shape suffixes: B batch, T length, S cache slots, D embed, V vocab.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import Decoding, KeyValueCache, Tokens
from models.context import Context
from models.decoder_config import DecoderConfig
from models.layers import Dense, RMSNorm, look_up, matmul, normal_parameter, soft_cap, wide
from models.lora import add_adapters
from models.stack import INSIDE, RESIDUAL, Auxiliary, Caches, Stack, add_reports

ORDER = ("prefix", "pattern", "suffix")


class Decoder(nnx.Module):
    """A decoder-only transformer: ``prefix``, repeated ``pattern``, ``suffix``."""

    def __init__(self, config: DecoderConfig, *, key: jax.Array):
        """Creates parameters; every part folds its own number into ``key``."""
        self.config = config
        V, D = config.vocab_size, config.embed_dim
        embed_key, head_key, blocks_key = (jax.random.fold_in(key, i) for i in range(3))
        self.embedding = normal_parameter(
            nnx.Rngs(params=embed_key),
            shape=(V, D),
            axes=("vocab", "embed"),
            fan_in=D,
            config=config,
        )
        parts = ((config.prefix, 1), (config.pattern, config.repeats), (config.suffix, 1))
        stacks, first = {}, 0
        for name, (kinds, repeats) in zip(ORDER, parts, strict=True):
            if kinds and repeats:
                stacks[name] = Stack(config, kinds, repeats=repeats, first=first, key=blocks_key)
                first += repeats * len(kinds)
        self.stacks = nnx.Dict(stacks)
        self.final_norm = RMSNorm(D, config=config)
        rngs, axes = nnx.Rngs(params=head_key), ("embed", "vocab")
        tied = config.tied_embedding
        self.head = None if tied else Dense((D,), (V,), axes=axes, config=config, rngs=rngs)
        add_adapters(self, config, key=jax.random.fold_in(key, 3))

    def __call__(
        self,
        inputs_BT: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
    ) -> tuple[jax.Array, dict[str, Caches] | None, Auxiliary]:
        """Runs all blocks.

        Args:
          inputs_BT: int32 token ids.
          tokens: positions and segments of the inputs.
          ctx: sharding and randomness.
          decoding: continues from ``empty_caches`` or what an earlier call returned.

        Returns:
          final hidden states [B, T, D], the extended caches, and what the blocks report.
        """
        x_BTD = self.embed(inputs_BT, ctx)
        caches: dict[str, Caches] = {}
        reports: list[Auxiliary] = []
        for part in ORDER:
            of_part = None if decoding is None else decoding.of(decoding.caches.get(part))
            x_BTD, cache, report = self.run(part, x_BTD, tokens, ctx=ctx, decoding=of_part)
            reports.append(report)
            if cache is not None:
                caches[part] = cache
        return self.norm(x_BTD, ctx), (caches if decoding else None), add_reports(*reports)

    def embed(self, inputs_BT: jax.Array, ctx: Context) -> jax.Array:
        """[B, T] int32 -> [B, T, D], what the first block reads."""
        # Gathered along embed before the look-up: batch and embed may share a mesh axis. The
        # barrier keeps the compiler from gathering ahead of a loop over microbatches and holding
        # it for all.
        table_VD = jax.lax.optimization_barrier(self.embedding[...].astype(self.config.dtype))
        x_BTD = look_up(ctx.shard(table_VD, "act_vocab", "act_embed"), inputs_BT, ctx=ctx)
        if self.config.embed_scale:
            x_BTD = x_BTD * jnp.asarray(math.sqrt(self.config.embed_dim), x_BTD.dtype)
        return ctx.shard(x_BTD, *RESIDUAL)

    def run(
        self,
        part: str,
        x_BTD: jax.Array,
        tokens: Tokens,
        *,
        ctx: Context,
        decoding: Decoding | None = None,
        numbers: jax.Array | None = None,
    ) -> tuple[jax.Array, Caches | None, Auxiliary]:
        """Runs one part of ORDER, which may be absent; see Stack."""
        # By name: a dict that was split and merged comes back sorted.
        if part not in self.stacks:
            return x_BTD, None, {}
        return self.stacks[part](x_BTD, tokens, ctx=ctx, decoding=decoding, numbers=numbers)

    def norm(self, x_BTD: jax.Array, ctx: Context) -> jax.Array:
        """[B, T, D] after the last block -> final hidden states [B, T, D]."""
        hidden_BTD = ctx.shard(self.final_norm(x_BTD), *RESIDUAL)
        return ctx.shard.forward(hidden_BTD, *INSIDE)

    def head_kernel(self, ctx: Context) -> jax.Array:
        """Returns [D, V] in the compute dtype, gathered for use in all parts of a sequence."""
        kernel_DV = self.embedding[...].T if self.head is None else self.head.kernel[...]
        # The barrier keeps the compiler from gathering first and converting after.
        kernel_DV = jax.lax.optimization_barrier(kernel_DV.astype(self.config.dtype))
        return ctx.shard.forward(kernel_DV, "act_embed", "act_vocab")

    def logits(
        self, hidden_BTD: jax.Array, ctx: Context, *, kernel_DV: jax.Array | None = None
    ) -> jax.Array:
        """[B, T, D] -> [B, T, V], float32 at least; ``kernel_DV`` is that of ``head_kernel``."""
        if kernel_DV is None:
            kernel_DV = self.embedding[...].T if self.head is None else self.head.kernel[...]
        logits_BTV = matmul(hidden_BTD, kernel_DV, contract=1, ctx=ctx)
        logits_BTV = soft_cap(wide(logits_BTV), self.config.logits_soft_cap)
        return ctx.shard(logits_BTV, "act_batch", "act_length", "act_vocab")

    def empty_caches(self, batch: int, slots: int) -> dict[str, Caches]:
        """Returns zeroed caches for ``slots`` tokens: stack -> position -> [L, B, S, G, K]."""
        config = self.config
        assert config.head_dim is not None

        def empty(repeats: int) -> KeyValueCache:
            shape = (repeats, batch, slots, config.kv_heads, config.head_dim)
            zeros = jnp.zeros(shape, config.dtype)
            return KeyValueCache(keys=zeros, values=zeros)

        return {
            name: {position: empty(stack.repeats) for position in stack.blocks}
            for name, stack in self.stacks.items()
        }
