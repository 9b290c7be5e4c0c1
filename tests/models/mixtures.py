"""Mixtures of experts by other means: every expert on every token, and dropping by a plain loop.

Shape suffixes: B rows, T length, N tokens, D embed, E experts, F mlp, K choices.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.context import Context
from models.decoder_config import DecoderConfig
from models.experts import Experts
from models.experts_config import ExpertsConfig
from partitioning.activations import Activations
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from trainer.certificate.one_step import fast_compilation

B, T, D = 8, 8, 16


def decoder(*, activation: str = "swiglu", **experts: Any) -> DecoderConfig:
    """Returns a decoder in float64 whose mixture has these settings."""
    settings = {"count": 8, "chosen": 2, "mlp_dim": 12, "z_weight": 0.1, **experts}
    shape = {"vocab_size": 8, "embed_dim": D, "layers": 1, "heads": 2, "kv_heads": 1, "mlp_dim": 4}
    digits = {"dtype": "float64", "param_dtype": "float64"}
    return DecoderConfig(
        **shape,
        **digits,
        activation=activation,
        pattern=("global+experts",),
        experts=ExpertsConfig(**settings),
    )


def context(**mesh: int) -> Context:
    """Returns the context of a mesh of these sizes."""
    devices = jax.devices()[: math.prod(mesh.values())]
    built = build_mesh(MeshConfig(**mesh), devices=devices)
    return Context(shard=Activations(mesh=built, rules=RulesConfig().activations))


def layer(config: DecoderConfig, *, seed: int = 0) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """Returns structure and parameters of a layer."""
    create = jax.jit(lambda: Experts(config, rngs=nnx.Rngs(params=jax.random.key(seed))))
    graph, state = nnx.split(create())
    return graph, nnx.to_pure_dict(state)


def inputs(*, seed: int = 0, real: float = 0.8) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns [B, T, D] inputs, [B, T] which are real, and [B, T, D] weights of a loss."""
    random = np.random.default_rng(seed)
    x, cotangent = random.standard_normal((2, B, T, D))
    return jnp.asarray(x), jnp.asarray(random.random((B, T)) < real), jnp.asarray(cotangent)


@dataclasses.dataclass(frozen=True)
class Result:
    """Output, auxiliary values, and gradients of ``(output * cotangent).sum() + 3 * auxiliary``."""

    y: jax.Array
    sums: dict[str, jax.Array]
    gradients: Any


def ours(
    config: DecoderConfig,
    *,
    ctx: Context | None = None,
    parameters: Any = None,
    given: tuple[jax.Array, ...] | None = None,
) -> Result:
    """Runs the layer."""
    graph, fresh = layer(config)
    x, real, cotangent = given or inputs()
    ctx = ctx or Context()

    def loss(parameters: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        y, sums = nnx.merge(graph, parameters)(x, real_BT=real, ctx=ctx)
        return (y * cotangent).sum() + 3 * sums["auxiliary_loss"], (y, sums)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    with fast_compilation(True):
        (_, (y, sums)), gradients = run(fresh if parameters is None else parameters, x)
    return Result(y, sums, gradients)


def dense(
    config: DecoderConfig,
    *,
    parameters: Any = None,
    given: tuple[jax.Array, ...] | None = None,
    kept_NK: np.ndarray | None = None,
) -> Result:
    """Computes every expert on every token; ``kept_NK`` leaves assignments out."""
    if parameters is None and given is None and kept_NK is None:
        experts = dataclasses.replace(config.experts, matmul="auto", exchange="all_to_all")
        return _dense_of_all(dataclasses.replace(config, experts=experts))
    return _dense(config, parameters=parameters, given=given or inputs(), kept_NK=kept_NK)


@functools.cache
def _dense_of_all(config: DecoderConfig) -> Result:
    return _dense(config, parameters=layer(config)[1], given=inputs(), kept_NK=None)


def _dense(
    config: DecoderConfig,
    *,
    parameters: Any,
    given: tuple[jax.Array, ...],
    kept_NK: np.ndarray | None,
) -> Result:
    x, real, cotangent = given
    experts = config.experts
    real_N = real.reshape(-1).astype(x.dtype)

    def loss(p: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        flat = x.reshape(-1, D)
        logits = flat @ p["router"]
        shares = jax.nn.softmax(logits)
        weights, chosen = jax.lax.top_k(shares, experts.chosen)
        if experts.renormalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        kept = weights * real_N[:, None]
        if kept_NK is not None:
            kept = kept * kept_NK
        y_END = jnp.stack(
            [network({k: p[k][e] for k in ("up", "gate", "down") if k in p}, flat, config)
             for e in range(experts.count)]
        )  # fmt: skip
        one_hot_NKE = jax.nn.one_hot(chosen, experts.count, dtype=x.dtype)
        y = jnp.einsum("nke,nk,end->nd", one_hot_NKE, kept, y_END)
        if "shared" in p:
            h = network({k: v["kernel"] for k, v in p["shared"].items()}, flat, config)
            if "shared_gate" in p:
                h = h * jax.nn.sigmoid(flat @ p["shared_gate"]["kernel"])
            y = y + h
        counts = (one_hot_NKE.sum(axis=1) * real_N[:, None]).sum(axis=0)
        tokens = real_N.sum()
        mean_share = (shares * real_N[:, None]).sum(axis=0) / tokens
        balance = experts.count * (counts / (experts.chosen * tokens) * mean_share).sum()
        z = (jax.nn.logsumexp(logits, axis=-1) ** 2 * real_N).sum() / tokens
        sums = {
            "auxiliary_loss": experts.balance_weight * balance + experts.z_weight * z,
            "balance": balance * counts.sum(),
            "router_z": z * counts.sum(),
            "routed": counts.sum(),
            "dropped": 0.0 if kept_NK is None else ((1 - kept_NK) * real_N[:, None]).sum(),
            "peak": experts.count * counts.max(),
        }
        y = y.reshape(x.shape)
        return (y * cotangent).sum() + 3 * sums["auxiliary_loss"], (y, sums)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    with fast_compilation(True):
        (_, (y, sums)), gradients = run(parameters, x)
    return Result(y, sums, gradients)


def network(p: Any, x: jax.Array, config: DecoderConfig) -> jax.Array:
    """One feed-forward network on all rows."""
    if "gate" not in p:
        return jax.nn.gelu(x @ p["up"]) @ p["down"]
    act = jax.nn.silu if config.activation == "swiglu" else jax.nn.gelu
    return (act(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def chosen_experts(config: DecoderConfig, parameters: Any, x: jax.Array) -> np.ndarray:
    """Returns [N, K] the experts of each token, most likely first, by sorting in NumPy."""
    logits = np.asarray(x).reshape(-1, D) @ np.asarray(parameters["router"])
    return np.argsort(-logits, axis=-1, kind="stable")[:, : config.experts.chosen]


def kept_by_capacity(
    chosen_NK: np.ndarray, real_N: np.ndarray, *, experts: ExpertsConfig, devices: list[np.ndarray]
) -> np.ndarray:
    """Fills experts one assignment at a time: all first choices in order, then all second ones.

    Args:
      chosen_NK: experts.
      real_N: False for padding.
      experts: has the capacity.
      devices: numbers of the tokens that each device holds, in its order.

    Returns:
      [N, K], 1 where the assignment found room.
    """
    kept = np.zeros(chosen_NK.shape)
    for tokens in devices:
        equal = len(tokens) * experts.chosen / experts.count
        room = np.full(experts.count, math.ceil(experts.capacity * equal))
        for choice in range(experts.chosen):
            for token in tokens:
                expert = chosen_NK[token, choice]
                if real_N[token] and room[expert] > 0:
                    room[expert] -= 1
                    kept[token, choice] = 1
    return kept


def worst(found: Result, expected: Result) -> float:
    """Returns the largest error of output, sums and gradients, relative to each one's largest."""

    def error(a: Any, b: Any) -> float:
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        return (
            float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
            if b.any()
            else float(np.abs(a).max())
        )

    pairs = jax.tree.map(
        error,
        (found.y, found.sums, found.gradients),
        (expected.y, expected.sums, expected.gradients),
    )
    return max(jax.tree.leaves(pairs))
