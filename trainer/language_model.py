"""Next-token prediction as a task.

Shape suffixes: B batch rows, T length.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.attention import Tokens
from models.context import Context
from models.decoder import Decoder
from models.losses import cross_entropy
from trainer.run_config import LanguageModel
from trainer.task import ArraySpec, Batch, Metrics


@dataclasses.dataclass(frozen=True)
class LanguageModelTask:
    """Trains a Decoder on packed or padded rows.

    Attributes:
      config: model and loss.
      token_bytes: [V], bytes that each token stands for, for bits per byte; None leaves it out.
    """

    config: LanguageModel
    token_bytes: tuple[int, ...] | None = None

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

    def loss(
        self, model: nnx.Module, batch: Batch, *, ctx: Context
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """See Task; metrics are ``nll``, ``correct`` and ``bytes``, summed over tokens."""
        assert isinstance(model, Decoder)
        tokens = Tokens(positions=batch["positions"], segments=batch["segment_ids"])
        hidden, _ = model(batch["inputs"], tokens, ctx=ctx)
        scores = cross_entropy(
            model,
            hidden,
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
        return scores.loss, scores.weight, metrics

    def metrics(self, sums: Mapping[str, float], *, weight: float) -> dict[str, float]:
        """See Task; returns perplexity, accuracy and, where bytes are known, bits per byte."""
        weight = max(weight, 1e-9)
        reported = {
            "nll": sums["nll"] / weight,
            "perplexity": math.exp(min(sums["nll"] / weight, 700.0)),
            "accuracy": sums["correct"] / weight,
        }
        if sums.get("bytes"):
            reported["bits_per_byte"] = sums["nll"] / math.log(2) / sums["bytes"]
        return reported

    def attention_flops(self, *, rows: int, length: int, causal: bool) -> float:
        """See Task; a window of W tokens leaves at most W keys per query."""
        model = self.config.model
        assert model.head_dim is not None
        pairs = 0
        for kind in model.blocks:
            width = min(length, model.window or length) if kind == "local" else length
            outside = length - width
            pairs += width * (width + 1) // 2 + outside * width if causal else length * width
        return 4.0 * rows * model.heads * model.head_dim * pairs
