"""Dense layers, norms and embeddings: NNX modules that define parameters and compute on arrays.

Every parameter carries ``logical_axes``, one name per dimension; sharding is data beside the code.

Shape suffixes: B batch, T length, D embed, F mlp, V vocab, I inputs, O outputs, R rank.
"""

import functools
import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from models.context import Context
from models.decoder_config import DecoderConfig, Precision
from models.quantized_matmul import quantized_matmul
from partitioning.activations import Activations
from partitioning.manual import per_rank
from partitioning.rules import mesh_axes

Axes = tuple[str, ...]


def wide(x: jax.Array) -> jax.Array:
    """Returns ``x`` in float32, or in float64 if it has that already."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def normal_parameter(
    rngs: nnx.Rngs, *, shape: tuple[int, ...], axes: Axes, fan_in: int, config: DecoderConfig
) -> nnx.Param:
    """Returns a matrix of truncated normals with standard deviation ``scale / sqrt(fan_in)``.

    Every value is looked up by 16 random bits. The usual way through the inverse error function
    rounds differently in vectorised loops and their remainders, so that a parameter's last bit
    would depend on the shape of its shard.
    """
    deviation = config.init_scale / math.sqrt(fan_in)
    values = jnp.asarray(truncated_normals() * deviation, config.param_dtype)
    drawn = jax.random.bits(rngs.params(), shape, jnp.uint16)
    return nnx.Param(values[drawn], logical_axes=axes)


@functools.cache
def truncated_normals() -> np.ndarray:
    """Returns [65536] float64 quantiles of a normal cut at two deviations, with deviation 1."""
    normal, half = statistics.NormalDist(), 2**15
    share = 2 * normal.cdf(2.0) - 1
    upper = [normal.inv_cdf(0.5 + share * (i + 0.5) / (2 * half)) for i in range(half)]
    values = np.concatenate([-np.asarray(upper)[::-1], upper])
    return values / values.std()


def matmul(
    x: jax.Array, w: jax.Array, *, contract: int, ctx: Context, precision: Precision = "default"
) -> jax.Array:
    """Contracts the last ``contract`` dimensions of ``x`` with the first ones of ``w``.

    Args:
      x: [..., *inputs] in the compute dtype.
      w: [*inputs, *outputs] parameters; cast to the dtype of ``x``.
      contract: how many dimensions ``inputs`` has.
      ctx: says whether the two-dimensional form is used (see Activations.flatten_matmuls).
      precision: "int8" and "fp8" multiply in eight bits; see models/quantized_matmul.py.

    Returns:
      [..., *outputs] in the dtype of ``x``.
    """
    w = w.astype(x.dtype)
    if precision != "default":
        return quantized_matmul(x, w, contract=contract, precision=precision)
    lead, outputs = x.shape[: x.ndim - contract], w.shape[contract:]
    if not ctx.shard.flatten_matmuls:
        return jnp.tensordot(x, w, axes=contract)
    inputs = math.prod(w.shape[:contract])
    y_NO = x.reshape(-1, inputs) @ w.reshape(inputs, -1)
    return y_NO.reshape(*lead, *outputs)


def look_up(table_VD: jax.Array, ids_BT: jax.Array, *, ctx: Context) -> jax.Array:
    """Returns the rows [B, T, D] of a table whose vocabulary may be sharded.

    Each shard looks up the ids that it has, and the shards are added up. Left to the partitioner,
    the look-up and its gradient may go through collective-permutes, which must not stand in a
    branch of a pipeline; and where rows are split along their length, the gradient would gather
    all of them.
    """
    shard = ctx.shard
    axes = shard.axes("act_vocab", size=table_VD.shape[0])
    if shard.mesh is None or (not axes and shard.context == 1):
        return table_VD[ids_BT]
    rows_BTD: jax.Array = _look_up(table_VD, ids_BT, shard, table_VD.shape[0])
    return rows_BTD


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _look_up(table_VD: jax.Array, ids_BT: jax.Array, shard: Activations, V: int) -> jax.Array:
    axes, split = _places(ids_BT, shard=shard, V=V)

    def local(table_VD: jax.Array, ids_BT: jax.Array) -> jax.Array:
        ids_BT = _here(ids_BT, rows=table_VD.shape[0], axes=axes)
        rows_BTD = table_VD.at[ids_BT].get(mode="fill", fill_value=0)
        return jax.lax.psum(rows_BTD, axes) if axes else rows_BTD

    assert shard.mesh is not None
    run = per_rank(local, mesh=shard.mesh, in_specs=(P(axes), split), out_specs=split)
    rows_BTD: jax.Array = run(table_VD, ids_BT)
    return rows_BTD


def _look_up_forward(
    table_VD: jax.Array, ids_BT: jax.Array, shard: Activations, V: int
) -> tuple[jax.Array, jax.Array]:
    return _look_up(table_VD, ids_BT, shard, V), ids_BT


def _look_up_backward(
    shard: Activations, V: int, ids_BT: jax.Array, dy_BTD: jax.Array
) -> tuple[jax.Array, None]:
    """By hand: jax would add up over the vocabulary's shards what is the same for all of them."""
    axes, split = _places(ids_BT, shard=shard, V=V)
    tokens = (*mesh_axes(split[0]), *mesh_axes(split[1]))
    rows = V // shard.parts("act_vocab", size=V)

    def local(ids_BT: jax.Array, dy_BTD: jax.Array) -> jax.Array:
        ids_BT = _here(ids_BT, rows=rows, axes=axes)
        # A frequent token adds up many small numbers.
        empty_VD = jnp.zeros((rows, dy_BTD.shape[-1]), wide(dy_BTD).dtype)
        of_table_VD = empty_VD.at[ids_BT].add(wide(dy_BTD), mode="drop").astype(dy_BTD.dtype)
        return jax.lax.psum(of_table_VD, tokens) if tokens else of_table_VD

    assert shard.mesh is not None
    run = per_rank(local, mesh=shard.mesh, in_specs=(split, split), out_specs=P(axes))
    return run(ids_BT, dy_BTD), None


_look_up.defvjp(_look_up_forward, _look_up_backward)


def _places(ids_BT: jax.Array, *, shard: Activations, V: int) -> tuple[tuple[str, ...], P]:
    """Returns the mesh axes that split the vocabulary, and how tokens are split."""
    split = shard.spec(("act_batch", "act_length"), shape=ids_BT.shape)
    return shard.axes("act_vocab", size=V), split


def _here(ids_BT: jax.Array, *, rows: int, axes: tuple[str, ...]) -> jax.Array:
    """Returns the row of each id in this shard's part of a table; ``rows`` for other shards'."""
    if not axes:
        return ids_BT
    ids_BT = ids_BT - jax.lax.axis_index(axes) * rows
    # Negative numbers would count from the end.
    return jnp.where((ids_BT >= 0) & (ids_BT < rows), ids_BT, rows)


class Adapter(nnx.Module):
    """``scale * (x A) B``, which a layer adds to ``x W`` (LoRA; models/lora.py)."""

    def __init__(self, a: nnx.Param, b: nnx.Param, *, contract: int, scale: float):
        """Takes ``a`` [*inputs, R], of which ``contract`` are inputs, and ``b`` [R, *outputs]."""
        self.contract, self.scale = contract, scale
        self.a, self.b = a, b
        outputs = b.ndim - (a.ndim - contract)
        inside_a, inside_b = (
            tuple(map(_inside, axes))
            for axes in (a.logical_axes[-1 - contract : -1], b.logical_axes[-outputs:])
        )
        # Where shards of the layer add up, they add up over the rank as well: both sums are one.
        self.inside_a = (*inside_a, None if any(inside_a) else "act_rank")
        self.inside_b = (None if any(inside_b) else "act_rank", *inside_b)

    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """[B, T, *inputs] -> [B, T, *outputs] in the dtype of ``x``."""
        # Everything has its place: matrices this small the partitioner would rather move about.
        a_IR = ctx.shard(self.a[...].astype(x.dtype), *self.inside_a)
        b_RO = ctx.shard(self.b[...].astype(x.dtype), *self.inside_b)
        h_BTR = matmul(x, a_IR, contract=self.contract, ctx=ctx)
        h_BTR = ctx.shard(h_BTR, "act_batch", "act_length", "act_rank")
        h_BTR = ctx.shard(h_BTR * self.scale, "act_batch", "act_length", self.inside_b[0])
        return matmul(h_BTR, b_RO, contract=1, ctx=ctx)


def _inside(axis: str) -> str | None:
    """Logical axis of a parameter's dimension where it is used: split as activations are."""
    return f"act_{axis}" if axis in ("heads", "kv_heads", "mlp") else None


class Dense(nnx.Module):
    """``x @ kernel (+ bias)`` over any number of input and output dimensions."""

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        axes: Axes,
        config: DecoderConfig,
        rngs: nnx.Rngs,
        bias: bool = False,
        precision: Precision = "default",
    ):
        """Creates ``kernel [*inputs, *outputs]``, named by ``axes``, and ``bias [*outputs]``."""
        self.contract = len(inputs)
        self.precision: Precision = precision
        self.kernel = normal_parameter(
            rngs,
            shape=(*inputs, *outputs),
            axes=axes,
            fan_in=math.prod(inputs),
            config=config,
        )
        self.bias = (
            nnx.Param(jnp.zeros(outputs, config.param_dtype), logical_axes=axes[len(inputs) :])
            if bias
            else None
        )
        self.adapter: Adapter | None = None

    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """[..., *inputs] -> [..., *outputs]; an adapter's products are never in eight bits."""
        y = matmul(x, self.kernel[...], contract=self.contract, ctx=ctx, precision=self.precision)
        if self.adapter is not None:
            y = y + self.adapter(x, ctx)
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, *, config: DecoderConfig):
        """Creates ``scale [features]``: ones, or zeros where the norm multiplies by 1 + scale."""
        self.eps = config.norm_eps
        self.plus_one = config.norm_plus_one
        fill = jnp.zeros if self.plus_one else jnp.ones
        self.scale = nnx.Param(fill((features,), config.param_dtype), logical_axes=("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., features] -> the same, statistics in float32."""
        x32 = wide(x)
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        scale = self.scale[...].astype(x32.dtype)
        normed = x32 * jax.lax.rsqrt(mean_square + self.eps)
        return (normed * (scale + 1 if self.plus_one else scale)).astype(x.dtype)


class FeedForward(nnx.Module):
    """The feed-forward sublayer: gated (SwiGLU, GeGLU; Shazeer, 2020) or plain GeLU."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, mlp_dim: int | None = None):
        """Creates ``up`` and ``gate`` [D, F] (no gate for "gelu") and ``down`` [F, D].

        ``mlp_dim`` is the width F; None takes the decoder's.
        """
        D, F = (config.embed_dim,), (config.mlp_dim if mlp_dim is None else mlp_dim,)
        self.activation = config.activation
        up, down = ("embed", "mlp"), ("mlp", "embed")
        dense = functools.partial(Dense, config=config, rngs=rngs, precision=config.matmul)
        self.up = dense(D, F, axes=up)
        self.gate = dense(D, F, axes=up) if config.activation != "gelu" else None
        self.down = dense(F, D, axes=down)

    def __call__(self, x_BTD: jax.Array, ctx: Context) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        gate_BTF = None if self.gate is None else self.gate(x_BTD, ctx)
        hidden_BTF = activated(self.up(x_BTD, ctx), gate_BTF, activation=self.activation)
        hidden_BTF = ctx.shard(hidden_BTF, "act_batch", "act_length", "act_mlp")
        return self.down(hidden_BTF, ctx)


def activated(up: jax.Array, gate: jax.Array | None, *, activation: str) -> jax.Array:
    """Returns the hidden layer [..., F] of a feed-forward sublayer, gated or plain."""
    up = checkpoint_name(up, "mlp_up")
    if gate is None:
        return nnx.gelu(up)
    act = nnx.silu if activation == "swiglu" else nnx.gelu
    return act(checkpoint_name(gate, "mlp_gate")) * up


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Returns ``cap * tanh(x / cap)`` (Gemma-2), or ``x`` without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)
