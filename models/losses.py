"""Cross entropy that never holds the float32 logits of a whole batch.

Shape suffixes: B batch, T length, D embed, V vocab, C chunks.
"""

import dataclasses

import jax
import jax.numpy as jnp

from models.context import Context
from models.decoder import Decoder
from models.stack import RESIDUAL


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Sums over tokens, in float32 at least.

    Attributes:
      loss: negative log likelihood in nats, plus the z-loss.
      nll: negative log likelihood in nats alone.
      correct: weight of tokens whose most likely continuation was the target.
      weight: sum of the weights.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    weight: jax.Array


def cross_entropy(
    model: Decoder,
    hidden_BTD: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    *,
    ctx: Context,
    chunks: int = 1,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Scores the next token at every position.

    With ``chunks`` > 1 the sequence is cut and the logits of a chunk are computed again in the
    backward pass. Where the sequence is split over devices, a chunk has a piece of every device's
    part, so that none waits for another. The vocabulary may be sharded: the target's logit is a
    masked sum, no gather.

    Args:
      model: provides the head.
      hidden_BTD: final hidden states.
      targets_BT: int32.
      weights_BT: weight of each token; 0 leaves it out.
      ctx: sharding.
      chunks: divides what one rank of the context axis has of T.
      z_loss: weight of ``log(Z)^2``.

    Raises:
      ValueError: ``chunks`` does not divide T, or a rank's part of it.
    """
    length, ranks = targets_BT.shape[1], ctx.shard.context
    if length % (chunks * ranks):
        raise ValueError(
            f"DecoderConfig.loss_chunks={chunks} does not divide the sequence length {length}"
            + (f" over context={ranks}." if ranks > 1 else ".")
        )

    def score(hidden: jax.Array, *rest: jax.Array, kernel: jax.Array | None = None) -> CrossEntropy:
        return _score(model.logits(hidden, ctx, kernel_DV=kernel), *rest, z_loss=z_loss)

    if chunks == 1:
        return score(hidden_BTD, targets_BT, weights_BT)
    # Gathered once: in the loop it would be once per chunk and direction.
    kernel_DV = model.head_kernel(ctx)
    # Under sequence parallelism the gradient of a chunk is scattered over tensor as well, if each
    # device then has its part of every chunk.
    split = ctx.shard.parts(RESIDUAL[1], size=length)
    scatters = length % (chunks * split) == 0
    ranks = split if scatters else ranks

    def cut(x: jax.Array) -> jax.Array:
        rows, rest = x.shape[0], x.shape[2:]
        parts = x.reshape(rows, ranks, chunks, length // (chunks * ranks), *rest)
        return jnp.moveaxis(parts, 2, 0).reshape(chunks, rows, length // chunks, *rest)

    def score_part(kernel: jax.Array, hidden: jax.Array, *rest: jax.Array) -> CrossEntropy:
        if scatters:
            hidden = ctx.shard.gradient(hidden, *RESIDUAL)
        return score(hidden, *rest, kernel=kernel)

    checkpointed = jax.checkpoint(score_part, prevent_cse=False)

    def add(total: CrossEntropy, part: tuple[jax.Array, ...]) -> tuple[CrossEntropy, None]:
        return jax.tree.map(jnp.add, total, checkpointed(kernel_DV, *part)), None

    parts = (cut(hidden_BTD), cut(targets_BT), cut(weights_BT))
    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(score, *(part[0] for part in parts)),
    )
    return jax.lax.scan(add, zero, parts)[0]


def _score(
    logits_BTV: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array, *, z_loss: float
) -> CrossEntropy:
    top_BT = jax.lax.stop_gradient(logits_BTV.max(axis=-1))
    log_z_BT = jnp.log(jnp.exp(logits_BTV - top_BT[..., None]).sum(axis=-1)) + top_BT
    is_target = jnp.arange(logits_BTV.shape[-1]) == targets_BT[..., None]
    target_BT = jnp.where(is_target, logits_BTV, 0).sum(axis=-1)
    weights_BT = weights_BT.astype(logits_BTV.dtype)
    nll_BT = (log_z_BT - target_BT) * weights_BT
    return CrossEntropy(
        loss=(nll_BT + z_loss * log_z_BT**2 * weights_BT).sum() if z_loss else nll_BT.sum(),
        nll=nll_BT.sum(),
        correct=(weights_BT * (target_BT >= top_BT)).sum(),
        weight=weights_BT.sum(),
    )
