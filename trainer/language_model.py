"""Next-token prediction as a task.

Shape suffixes: B batch rows, T length.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.attention import Tokens
from models.context import Context
from models.decoder import Decoder
from models.decoder_config import has_experts, is_local
from models.layers import wide
from models.losses import cross_entropy
from models.stack import RESIDUAL, Auxiliary
from trainer.run_config import LanguageModel
from trainer.task import ArraySpec, Batch, Sums, add_sums


@dataclasses.dataclass(frozen=True)
class LanguageModelTask:
    """Trains a Decoder on packed or padded rows.

    Attributes:
      config: model and loss.
      token_bytes: [V], bytes that each token stands for, for bits per byte; None leaves it out.
    """

    config: LanguageModel
    token_bytes: tuple[int, ...] | None = None

    repeated: ClassVar[str] = "stacks/pattern"
    between: ClassVar[tuple[str, ...]] = RESIDUAL

    def batch_spec(self, *, rows: int, length: int) -> dict[str, ArraySpec]:
        """See Task."""
        integers = ("inputs", "targets", "segment_ids", "positions")
        dtypes = dict.fromkeys(integers, np.int32) | {"loss_weights": np.float32}
        axes = ("act_batch", "act_length")
        return {
            name: ArraySpec(shape=(rows, length), dtype=np.dtype(dtype), axes=axes)
            for name, dtype in dtypes.items()
        }

    def init(self, key: jax.Array) -> Decoder:
        """See Task."""
        return Decoder(self.config.model, key=key)

    def loss(self, model: nnx.Module, batch: Batch, *, ctx: Context) -> Sums:
        """See Task; metrics are ``nll``, ``correct`` and ``bytes``, summed over tokens."""
        x, entered = self.enter(model, batch, ctx=ctx)
        x, repeated = self.repeat(model, x, batch, ctx=ctx)
        return add_sums(entered, repeated, self.leave(model, x, batch, ctx=ctx))

    def enter(self, model: nnx.Module, batch: Batch, *, ctx: Context) -> tuple[jax.Array, Sums]:
        """See PipelinedTask: embedding and the pattern's prefix."""
        assert isinstance(model, Decoder)
        x, _, report = model.run(
            "prefix", model.embed(batch["inputs"], ctx), _tokens(batch), ctx=ctx
        )
        return x, _auxiliary(report, batch, ctx)

    def repeat(
        self,
        model: nnx.Module,
        x: jax.Array,
        batch: Batch,
        *,
        ctx: Context,
        numbers: jax.Array | None = None,
    ) -> tuple[jax.Array, Sums]:
        """See PipelinedTask: repeats of the pattern."""
        assert isinstance(model, Decoder)
        x, _, report = model.run("pattern", x, _tokens(batch), ctx=ctx, numbers=numbers)
        return x, _auxiliary(report, batch, ctx)

    def leave(self, model: nnx.Module, x: jax.Array, batch: Batch, *, ctx: Context) -> Sums:
        """See PipelinedTask: the pattern's suffix, final norm, head and cross entropy."""
        assert isinstance(model, Decoder)
        x, _, report = model.run("suffix", x, _tokens(batch), ctx=ctx)
        scores = cross_entropy(
            model,
            model.norm(x, ctx),
            batch["targets"],
            batch["loss_weights"],
            ctx=ctx,
            chunks=self.config.model.loss_chunks,
            z_loss=self.config.z_loss,
        )
        metrics = {"nll": scores.nll, "correct": scores.correct}
        if self.token_bytes is not None:
            size = jnp.asarray(self.token_bytes, jnp.float32)[batch["targets"]]
            metrics["bytes"] = (size * batch["loss_weights"]).sum()
        return add_sums(_auxiliary(report, batch, ctx), (scores.loss, scores.weight, metrics))

    def metrics(self, sums: Mapping[str, float], *, weight: float) -> dict[str, float]:
        """See Task; returns perplexity, accuracy and, where bytes are known, bits per byte.

        With experts also ``dropped_fraction`` of the tokens' choices, ``expert_load`` (busiest
        expert over the mean, 1 when balanced), ``balance_loss`` and ``router_z_loss``, each
        averaged over layers.
        """
        weight = max(weight, 1e-9)
        reported = {
            "nll": sums["nll"] / weight,
            "perplexity": math.exp(min(sums["nll"] / weight, 700.0)),
            "accuracy": sums["correct"] / weight,
        }
        if sums.get("bytes"):
            reported["bits_per_byte"] = sums["nll"] / math.log(2) / sums["bytes"]
        if "routed" in sums:
            routed = max(sums["routed"], 1.0)
            reported |= {
                "dropped_fraction": sums["dropped"] / routed,
                "expert_load": sums["peak"] / routed,
                "balance_loss": sums["balance"] / routed,
                "router_z_loss": sums["router_z"] / routed,
            }
        return reported

    def attention_flops(self, *, rows: int, length: int, causal: bool) -> float:
        """See Task; a window of W tokens leaves at most W keys per query."""
        model = self.config.model
        assert model.head_dim is not None
        pairs = 0
        for kind in model.blocks:
            width = min(length, model.window or length) if is_local(kind) else length
            outside = length - width
            pairs += width * (width + 1) // 2 + outside * width if causal else length * width
        return 4.0 * rows * model.heads * model.head_dim * pairs

    def routed_flops(self, *, rows: int, length: int) -> float:
        """See Task: each token is multiplied with the matrices of its chosen experts."""
        # Tasks that inherit from this one may have other models.
        if not isinstance(self.config, LanguageModel) or self.config.model.experts is None:
            return 0.0
        model, experts = self.config.model, self.config.model.experts
        matrices = 2 if model.activation == "gelu" else 3
        each = 2.0 * matrices * model.embed_dim * experts.mlp_dim * experts.chosen
        return each * rows * length * sum(has_experts(kind) for kind in model.blocks)


def _tokens(batch: Batch) -> Tokens:
    return Tokens(positions=batch["positions"], segments=batch["segment_ids"])


def _auxiliary(report: Auxiliary, batch: Batch, ctx: Context) -> Sums:
    """What blocks report, as sums: their loss counts once per weighted token.

    A report is of the rows of all replicas; each contributes its share.
    """
    share = 1 / math.prod(jax.lax.axis_size(axis) for axis in ctx.replicas)
    metrics = {name: x * share for name, x in report.items() if name != "auxiliary_loss"}
    weight = wide(batch["loss_weights"]).sum()
    zero = jnp.zeros_like(weight)
    loss = report["auxiliary_loss"] * weight if "auxiliary_loss" in report else zero
    return loss, zero, metrics
