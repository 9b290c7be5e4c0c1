"""Which experts a token uses, with which weights, and how evenly experts are used.

Everything is computed in float32 at least. What is averaged is averaged over all tokens of all
devices, so that it does not depend on the mesh; padding counts nowhere.

Shape suffixes: N tokens, D embed, E experts, K choices.
"""

import dataclasses

import jax
import jax.numpy as jnp

from models.experts_config import ExpertsConfig
from models.layers import wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """What the router decided.

    Attributes:
      experts_NK: int32, chosen experts, the most likely first.
      weights_NK: what their outputs are multiplied by.
      shares_NE: softmax over all experts.
      log_z_N: log of the softmax's normaliser.
    """

    experts_NK: jax.Array
    weights_NK: jax.Array
    shares_NE: jax.Array
    log_z_N: jax.Array


def route(x_ND: jax.Array, router_DE: jax.Array, config: ExpertsConfig) -> Routing:
    """Chooses experts by the largest shares of a softmax; the lower number wins a tie."""
    x_ND = wide(x_ND)
    # Accelerators would round float32 inputs to fewer digits, and choices would flip.
    logits_NE = jnp.matmul(x_ND, router_DE.astype(x_ND.dtype), precision="highest")
    log_z_N = jax.nn.logsumexp(logits_NE, axis=-1)
    shares_NE = jnp.exp(logits_NE - log_z_N[:, None])
    weights_NK, experts_NK = jax.lax.top_k(shares_NE, config.chosen)
    if config.renormalize:
        weights_NK = weights_NK / weights_NK.sum(axis=-1, keepdims=True)
    return Routing(
        experts_NK=experts_NK.astype(jnp.int32),
        weights_NK=weights_NK,
        shares_NE=shares_NE,
        log_z_N=log_z_N,
    )


def auxiliary(
    routing: Routing,
    *,
    real_N: jax.Array,
    kept_E: jax.Array,
    config: ExpertsConfig,
    over: tuple[str, ...] = (),
    replicas: tuple[str, ...] = (),
) -> dict[str, jax.Array]:
    """Returns losses and counts of one layer as scalars, equal on all devices.

    The load-balance loss is ``E * sum_e(f_e * P_e)`` with ``f_e`` the share of all choices that
    fell on expert e and ``P_e`` its mean softmax share (Fedus et al., 2022, section 2.2, with
    several choices as in DeepSeekMoE): 1 when balanced, whatever ``chosen``. Implementations that
    do not divide ``f_e`` by ``chosen`` report ``chosen`` times as much.

    Args:
      routing: of the tokens on this device.
      real_N: bool, False for padding.
      kept_E: int32, assignments of this device that each expert computes.
      config: the layer's.
      over: mesh axes that split the tokens, inside shard_map.
      replicas: further ones, of the code around it; see Context.

    Returns:
      ``auxiliary_loss`` (both losses by their weights), and sums for metrics: ``routed`` and
      ``dropped`` assignments; ``peak``, what ``routed`` would be if every expert were as busy as
      the busiest; ``balance`` and ``router_z``, each loss times ``routed``.
    """
    digits = routing.shares_NE.dtype
    chosen_NKE = jax.nn.one_hot(routing.experts_NK, config.count, dtype=digits)
    real_N1 = real_N[:, None].astype(digits)
    sums = {
        "tokens": real_N1.sum(),
        "kept": kept_E.sum().astype(digits),
        "chosen": (chosen_NKE.sum(axis=1) * real_N1).sum(axis=0),
        "shares": (routing.shares_NE * real_N1).sum(axis=0),
        "z": (routing.log_z_N**2 * real_N1[:, 0]).sum(),
    }
    if over:
        sums = jax.lax.psum(jax.lax.pcast(sums, replicas, to="varying"), (*over, *replicas))
    elif replicas:
        sums = jax.lax.psum(sums, replicas)
    tokens = jnp.maximum(sums["tokens"], 1.0)
    fractions_E = sums["chosen"] / (config.chosen * tokens)
    balance = config.count * (fractions_E * sums["shares"] / tokens).sum()
    z = sums["z"] / tokens
    routed = config.chosen * sums["tokens"]
    return {
        "auxiliary_loss": config.balance_weight * balance + config.z_weight * z,
        "routed": routed,
        "dropped": routed - sums["kept"],
        "peak": config.count * sums["chosen"].max(),
        "balance": balance * routed,
        "router_z": z * routed,
    }
