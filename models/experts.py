"""A mixture of experts: each token is sent to a few of many feed-forward networks.

On one device tokens are sorted by expert and multiplied group by group. On a mesh the layer is one
shard_map over every axis that splits its inputs or weights: each device sorts its own tokens, the
``expert`` axis exchanges them, and ``tensor`` splits each expert's width, so that nothing is
gathered that need not be. Inside a pipeline stage the axes that are left are used the same way.

Memory: without a capacity or ``ExpertsConfig.buffer`` the exchange holds the worst case, in which
all devices send all their tokens to one: as many times a device's own tokens (times the experts
each can use there) as the ``expert`` axis has devices. ``buffer=b`` holds ``b`` equal shares from
each device instead and drops what exceeds them, which the ``dropped`` metric shows.

Shape suffixes: B batch, T length, N tokens, K choices, A assignments (K * N, choice by choice),
D embed, E experts, F mlp, P devices along expert, L experts of one device, S rows sent to one
device, R rows of a device's buffer.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from models import dispatch
from models.context import Context
from models.decoder_config import DecoderConfig
from models.dispatch import Layout, gather_rows
from models.experts_config import ExpertsConfig, expert_rows, sent_rows
from models.grouped_matmul import Implementation, choose, grouped_matmul, layout_for
from models.layers import Dense, FeedForward, activated, normal_parameter, wide
from models.router import auxiliary, route
from partitioning.mesh import current_mesh
from partitioning.rules import mesh_axes

Weights = dict[str, jax.Array]
Sums = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """What a device computes of one layer; the default is all of it.

    Attributes:
      tokens: mesh axes that split the tokens.
      expert: mesh axis that splits the experts, or None.
      devices: its size.
      tensor: mesh axes that split each expert's width.
      scatter: these also split the length of the output (sequence parallelism).
      replicas: see Context.
      implementation: of the grouped matmul.
    """

    tokens: tuple[str, ...] = ()
    expert: str | None = None
    devices: int = 1
    tensor: tuple[str, ...] = ()
    scatter: bool = False
    replicas: tuple[str, ...] = ()
    implementation: Implementation = "blocked"


class Experts(nnx.Module):
    """The feed-forward sublayer of a mixture-of-experts block."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        """Creates ``router`` [D, E], ``up`` and ``gate`` [E, D, F], ``down`` [E, F, D]."""
        assert config.experts is not None
        self.config = experts = config.experts
        self.activation = config.activation
        D, E, F = config.embed_dim, experts.count, experts.mlp_dim
        parameter = functools.partial(normal_parameter, rngs, config=config)
        up = functools.partial(
            parameter, shape=(E, D, F), axes=("experts", "embed", "mlp"), fan_in=D
        )
        self.router = parameter(shape=(D, E), axes=("embed", "experts"), fan_in=D)
        self.up = up()
        self.gate = up() if config.activation != "gelu" else None
        self.down = parameter(shape=(E, F, D), axes=("experts", "mlp", "embed"), fan_in=F)
        width = experts.shared_mlp_dim
        self.shared = FeedForward(config, mlp_dim=width, rngs=rngs) if width else None
        self.shared_gate = (
            Dense((D,), (1,), axes=("embed", "norm"), config=config, rngs=rngs)
            if experts.shared_gate
            else None
        )

    def __call__(
        self, x_BTD: jax.Array, *, real_BT: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Sums]:
        """Sends tokens to their experts and adds up what comes back.

        Args:
          x_BTD: inputs in the compute dtype.
          real_BT: bool; False for padding, which no expert sees and whose output is zero, the
            shared layer's part apart.
          ctx: sharding.

        Returns:
          [B, T, D] and the scalars of ``models.router.auxiliary``.

        Raises:
          ValueError: the rules place experts where the tokens are not split.
        """
        named = {"up": self.up, "gate": self.gate, "down": self.down}
        weights = {k: v[...].astype(x_BTD.dtype) for k, v in named.items() if v is not None}
        weights["router"] = self.router[...]
        if ctx.shard.mesh is None or ctx.shard.mesh.size == 1:
            at = Placement(implementation=self._implementation(ctx))
            y_BTD, sums = self._here(x_BTD, real_BT, weights, at=at)
        else:
            y_BTD, sums = self._spread(x_BTD, real_BT, weights, ctx=ctx)
        if self.shared is not None:
            h_BTD = self.shared(x_BTD, ctx)
            if self.shared_gate is not None:
                h_BTD = h_BTD * jax.nn.sigmoid(self.shared_gate(x_BTD, ctx))
            y_BTD = y_BTD + h_BTD
        return y_BTD, sums

    def _implementation(self, ctx: Context) -> Implementation:
        has_capacity = self.config.capacity is not None
        return choose(self.config.matmul, platform=ctx.shard.platform, capacity=has_capacity)

    def _spread(
        self, x_BTD: jax.Array, real_BT: jax.Array, weights: Weights, *, ctx: Context
    ) -> tuple[jax.Array, Sums]:
        """Runs ``_here`` on every device of the mesh."""
        mesh = ctx.shard.mesh
        assert mesh is not None
        x_spec = ctx.shard.spec(("act_batch", "act_length", None), shape=x_BTD.shape)
        up_spec = ctx.shard.spec(("act_experts", None, "act_mlp"), shape=weights["up"].shape)
        experts, _, width = up_spec
        tokens = (*mesh_axes(x_spec[0]), *mesh_axes(x_spec[1]))
        if experts and experts not in tokens:
            raise ValueError(
                f"The rules split experts over {experts!r} but tokens over {tokens}; experts take "
                "one mesh axis, which the rule for 'act_batch' must name too."
            )
        # The layer's output lives where the residual stream does, if only tensor lies between.
        y_spec = ctx.shard.spec(("act_batch", "act_length_residual", None), shape=x_BTD.shape)
        tensor = mesh_axes(width)
        scatter = bool(tensor) and mesh_axes(y_spec[1]) == (*mesh_axes(x_spec[1]), *tensor)
        at = Placement(
            tokens=tokens,
            expert=experts,
            devices=mesh.shape[experts] if experts else 1,
            tensor=tensor,
            scatter=scatter,
            replicas=ctx.replicas,
            implementation=self._implementation(ctx),
        )
        down_spec = PartitionSpec(experts, width, None)
        specs = {"up": up_spec, "gate": up_spec, "down": down_spec, "router": PartitionSpec()}
        if not (tokens or at.tensor):
            return self._here(x_BTD, real_BT, weights, at=at)
        around = current_mesh(mesh)
        # All axes, also those of size one: with some left to the partitioner, XLA (jax 0.12) ends
        # the process over 16-bit sums on CPU. Not ``per_rank``, which does not track what varies:
        # here the transpose needs to know over which axes a gradient is a sum.
        run = jax.shard_map(
            functools.partial(self._here, at=at),
            mesh=around,
            in_specs=(x_spec, PartitionSpec(*x_spec[:2]), {k: specs[k] for k in weights}),
            out_specs=(y_spec if scatter else x_spec, PartitionSpec()),
            axis_names=set(mesh.axis_names) - set(getattr(around, "manual_axes", ())),
        )
        return run(x_BTD, real_BT, weights)

    def _here(
        self, x_BTD: jax.Array, real_BT: jax.Array, weights: Weights, *, at: Placement
    ) -> tuple[jax.Array, Sums]:
        """Computes this device's tokens."""
        x_ND, real_N = x_BTD.reshape(-1, x_BTD.shape[-1]), real_BT.reshape(-1)
        routing = route(x_ND, weights["router"], self.config)
        weights_KN1 = routing.weights_NK.T[..., None]
        # Choice by choice: where room is short, every first choice comes before any second one.
        wanted_A = jnp.where(real_N[:, None], routing.experts_NK, self.config.count).T.reshape(-1)
        given_A = self._admit(wanted_A, tokens=x_ND.shape[0], at=at)
        # Marked as used by all devices: the transpose sums their gradients over these.
        others = tuple(axis for axis in at.tokens if axis != at.expert)
        weights = {
            k: jax.lax.pcast(v, others, to="varying") for k, v in weights.items() if k != "router"
        }
        x_ND = jax.lax.pcast(x_ND, at.tensor, to="varying")
        compute = self._local if at.expert is None else self._exchanged
        y_AD, kept_E = compute(x_ND, given_A, weights, at=at)
        y_KND = y_AD.reshape(*weights_KN1.shape[:2], -1)
        y_ND = (wide(y_KND) * weights_KN1).sum(axis=0).astype(y_AD.dtype)
        y_BTD = _add_parts(y_ND.reshape(x_BTD.shape), at=at)
        sums = auxiliary(
            routing,
            real_N=real_N,
            kept_E=kept_E,
            config=self.config,
            over=at.tokens,
            replicas=at.replicas,
        )
        return y_BTD, sums

    def _admit(self, groups_A: jax.Array, *, tokens: int, at: Placement) -> jax.Array:
        """Drops what exceeds the capacity of an expert or of the exchange."""
        config = self.config
        count = config.count
        if config.capacity is not None:
            most = expert_rows(config, tokens=tokens)
            if most < tokens:
                groups_A = dispatch.admit(groups_A, count=count, most=most)
        elif config.buffer is not None and at.devices > 1:
            most = sent_rows(config, tokens=tokens, devices=at.devices)
            groups_A = dispatch.admit(groups_A, count=count, most=most, among=count // at.devices)
        return groups_A

    def _local(
        self, x_ND: jax.Array, groups_A: jax.Array, weights: Weights, *, at: Placement
    ) -> tuple[jax.Array, jax.Array]:
        """Computes assignments to the experts of this device: [A, D], and how many each got."""
        rank_A, sizes_E = dispatch.rank_within(groups_A, count=self.config.count)
        layout = layout_for(
            sizes_E,
            implementation=at.implementation,
            most=expert_rows(self.config, tokens=x_ND.shape[0]),
            total=groups_A.shape[0],
        )
        row_A = dispatch.rows_of(groups_A, rank_A, layout)
        from_row_R = dispatch.members_of(row_A, rows=layout.rows)
        x_RD = checkpoint_name(_scatter(x_ND, row_A, from_row_R), "expert_in")
        y_RD = checkpoint_name(self._compute(x_RD, weights, layout, at), "expert_out")
        return gather_rows(y_RD, row_A, from_row_R[None]), sizes_E

    def _exchanged(
        self, x_ND: jax.Array, groups_A: jax.Array, weights: Weights, *, at: Placement
    ) -> tuple[jax.Array, jax.Array]:
        """Sends assignments to the devices that hold their experts, and brings results back."""
        config, P = self.config, at.devices
        L, S = config.count // P, sent_rows(config, tokens=x_ND.shape[0], devices=P)
        rank_A, sizes_E = dispatch.rank_within(groups_A, count=config.count)
        # Rows for one device lie together, sorted by expert, from the start of its S rows.
        sizes_PL = sizes_E.reshape(P, L)
        within_PL = dispatch.exclusive_sum(sizes_PL, axis=1)
        offsets_E = (within_PL + S * jnp.arange(P, dtype=jnp.int32)[:, None]).reshape(-1)
        sent = Layout(offsets=offsets_E, sizes=sizes_E, rows=P * S, block=1)
        row_A = dispatch.rows_of(groups_A, rank_A, sent)
        from_row_R = dispatch.members_of(row_A, rows=sent.rows)
        sent_P = sizes_PL.sum(axis=1, dtype=jnp.int32)
        got_PL = _swap(sizes_PL, at=at)
        got_P = got_PL.sum(axis=1, dtype=jnp.int32)
        got_RD = self._exchange(_scatter(x_ND, row_A, from_row_R), sent_P, got_P, at=at)
        got_RD = checkpoint_name(got_RD, "expert_in")
        y_RD = self._received(got_RD, got_PL, weights, at=at, tokens=x_ND.shape[0])
        y_RD = checkpoint_name(self._exchange(y_RD, got_P, sent_P, at=at), "expert_out")
        return gather_rows(y_RD, row_A, from_row_R[None]), sizes_E

    def _exchange(
        self, x_RD: jax.Array, sent_P: jax.Array, got_P: jax.Array, *, at: Placement
    ) -> jax.Array:
        """Sends the p-th share of the rows to device p; what comes from p is the p-th share.

        Args:
          x_RD: rows; of each share the first ``sent_P`` are in use and the others zero.
          sent_P: int32, rows for each device.
          got_P: int32, rows from each device.
          at: what this device does.
        """
        if self.config.exchange == "all_to_all":
            return _swap(x_RD, at=at)
        share = x_RD.shape[0] // at.devices
        offsets_P = share * jnp.arange(at.devices, dtype=jnp.int32)
        mine_P = jnp.full_like(offsets_P, share) * jax.lax.axis_index(at.expert)
        return jax.lax.ragged_all_to_all(
            x_RD, jnp.zeros_like(x_RD), offsets_P, sent_P, mine_P, got_P, axis_name=at.expert
        )

    def _received(
        self, x_RD: jax.Array, sizes_PL: jax.Array, weights: Weights, *, at: Placement, tokens: int
    ) -> jax.Array:
        """Computes rows that came from P devices, each sorted by expert; [R, D] in their order."""
        P, L = sizes_PL.shape
        S = x_RD.shape[0] // P
        expert_PS = dispatch.groups_of(sizes_PL, rows=S)
        before_PL = dispatch.exclusive_sum(sizes_PL) - dispatch.exclusive_sum(sizes_PL, axis=1)
        rank_PS = jnp.arange(S, dtype=jnp.int32) + jnp.take_along_axis(
            before_PL, jnp.minimum(expert_PS, L - 1), axis=1
        )
        layout = layout_for(
            sizes_PL.sum(axis=0, dtype=jnp.int32),
            implementation=at.implementation,
            most=P * expert_rows(self.config, tokens=tokens),
            total=P * S,
        )
        row_R = dispatch.rows_of(expert_PS.reshape(-1), rank_PS.reshape(-1), layout)
        from_row = dispatch.members_of(row_R, rows=layout.rows)
        sorted_RD = gather_rows(x_RD, from_row, row_R[None])
        return gather_rows(self._compute(sorted_RD, weights, layout, at), row_R, from_row[None])

    def _compute(
        self, x_RD: jax.Array, weights: Weights, layout: Layout, at: Placement
    ) -> jax.Array:
        """Runs every row through its expert."""
        multiply = functools.partial(
            grouped_matmul, layout=layout, implementation=at.implementation
        )
        gate_RF = multiply(x_RD, weights["gate"]) if "gate" in weights else None
        up_RF = multiply(x_RD, weights["up"])
        hidden_RF = activated(up_RF, gate_RF, activation=self.activation)
        return multiply(hidden_RF, weights["down"])


def check_platform(config: ExpertsConfig, *, platform: str) -> None:
    """Raises ValueError if an implementation that ``config`` names does not run on ``platform``."""
    choose(config.matmul, platform=platform, capacity=config.capacity is not None)
    if config.exchange == "ragged_all_to_all" and platform == "cpu":
        raise ValueError(
            "ExpertsConfig.exchange='ragged_all_to_all' needs a GPU or TPU; this is a CPU. Take "
            "'all_to_all'."
        )


def _add_parts(y_BTD: jax.Array, *, at: Placement) -> jax.Array:
    """Adds what each device along tensor has: a part of every expert's width.

    Done last, where there is one row per token, not one per assignment.
    """
    if at.scatter:
        return jax.lax.psum_scatter(y_BTD, at.tensor, scatter_dimension=1, tiled=True)
    return jax.lax.psum(y_BTD, at.tensor) if at.tensor else y_BTD


def _swap(x: jax.Array, *, at: Placement) -> jax.Array:
    """Sends the p-th share of the first dimension to device p along the expert axis."""
    return jax.lax.all_to_all(x, at.expert, split_axis=0, concat_axis=0, tiled=True)


def _scatter(x_ND: jax.Array, row_A: jax.Array, from_row_R: jax.Array) -> jax.Array:
    """Puts a copy of each token into the row of each of its assignments: [R, D]."""
    N, A = x_ND.shape[0], row_A.shape[0]
    token_R = jnp.where(from_row_R < A, from_row_R % N, N)
    return gather_rows(x_ND, token_R, row_A.reshape(-1, N))
