"""A mixture of experts equals every expert on every token: outputs, losses and every gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.experts_config import ExpertsConfig, expert_rows, sent_rows
from partitioning.activations import Activations
from partitioning.collectives import instruction_counts
from tests.models import mixtures

TOLERANCE = 1e-13


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


SHAPES = {
    "top 2 of 8": {},
    "top 1": {"chosen": 1, "renormalize": False},
    "top 8 of 12": {"count": 12, "chosen": 8},
    "all of 4": {"count": 4, "chosen": 4},
    "one expert": {"count": 1, "chosen": 1},
    "7 experts": {"count": 7, "chosen": 3},
    "not renormalized": {"renormalize": False},
    "shared": {"shared_mlp_dim": 20},
    "shared, gated": {"shared_mlp_dim": 20, "shared_gate": True},
    "gelu": {"activation": "gelu"},
    "geglu": {"activation": "geglu"},
}
MATMULS = ("padded", "blocked", "ragged")


@pytest.mark.parametrize("matmul", MATMULS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_device_equals_all_experts_on_all_tokens(shape, matmul):
    config = mixtures.decoder(**shape, matmul=matmul)
    assert mixtures.worst(mixtures.ours(config), mixtures.dense(config)) < TOLERANCE


MESHES = {
    "expert 2": {"expert": 2},
    "expert 4": {"expert": 4},
    "expert 8": {"expert": 8},
    "data 8": {"data": 8},
    "tensor 4": {"tensor": 4},
    "data 2 x expert 4": {"data": 2, "expert": 4},
    "fsdp 2 x expert 2 x tensor 2": {"fsdp": 2, "expert": 2, "tensor": 2},
    "expert 2 x context 2": {"expert": 2, "context": 2},
    "data 2 x tensor 2 x context 2": {"data": 2, "tensor": 2, "context": 2},
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_every_mesh_equals_all_experts_on_all_tokens(mesh):
    config = mixtures.decoder(shared_mlp_dim=20)
    found = mixtures.ours(config, ctx=mixtures.context(**mesh))
    assert mixtures.worst(found, mixtures.dense(config)) < TOLERANCE


@pytest.mark.parametrize("matmul", MATMULS)
@pytest.mark.parametrize("name", ["top 1", "top 8 of 12"])
def test_every_matmul_takes_what_the_exchange_brings(name, matmul):
    config = mixtures.decoder(**SHAPES[name], matmul=matmul)
    found = mixtures.ours(config, ctx=mixtures.context(expert=4, tensor=2))
    assert mixtures.worst(found, mixtures.dense(config)) < TOLERANCE


def skewed(config, *, how: str):
    """Parameters whose router sends tokens where it is told to."""
    parameters = dict(mixtures.layer(config)[1])
    count = config.experts.count
    # The inputs' first feature is 1 (see `led`), so that its row of the router is a bias.
    bias = {
        "one expert": 50.0 * (np.arange(count) == count - 1),
        "half empty": np.where(np.arange(count) % 2, -50.0, 0.0),
        "skewed": -0.5 * np.arange(count),
    }[how]
    parameters["router"] = parameters["router"].at[0].set(jnp.asarray(bias))
    return parameters


def led():
    x, real, cotangent = mixtures.inputs()
    return x.at[..., 0].set(1.0), real, cotangent


@pytest.mark.parametrize(
    ("matmul", "mesh"), [("padded", {}), ("blocked", {}), ("blocked", {"expert": 4})], ids=str
)
@pytest.mark.parametrize("how", ["one expert", "half empty", "skewed"])
def test_nothing_is_dropped_however_unequal_the_experts_are(how, matmul, mesh):
    chosen = {"chosen": 1, "renormalize": False} if how == "one expert" else {"chosen": 2}
    config = mixtures.decoder(**chosen, matmul=matmul)
    parameters = skewed(config, how=how)
    found = mixtures.ours(config, ctx=mixtures.context(**mesh), parameters=parameters, given=led())
    expected = mixtures.dense(config, parameters=parameters, given=led())
    assert mixtures.worst(found, expected) < TOLERANCE
    assert found.sums["dropped"] == 0
    if how == "one expert":
        assert found.sums["peak"] == config.experts.count * found.sums["routed"]


def test_rows_of_padding_alone_give_zero_and_no_gradient():
    x, real, cotangent = mixtures.inputs()
    given = (x, jnp.zeros_like(real), cotangent)
    found = mixtures.ours(mixtures.decoder(), given=given)
    assert not np.asarray(found.y).any()
    assert found.sums["routed"] == found.sums["dropped"] == found.sums["auxiliary_loss"] == 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(found.gradients))


def test_control_padding_that_is_routed_is_seen():
    config = mixtures.decoder()
    x, real, cotangent = mixtures.inputs()
    found = mixtures.ours(config, given=(x, jnp.ones_like(real), cotangent))
    assert mixtures.worst(found, mixtures.dense(config)) > 1e-2


def devices(**mesh: int) -> list[np.ndarray]:
    """Numbers of each device's tokens: rows over data, fsdp, expert; length over context."""
    grid = np.arange(mixtures.B * mixtures.T).reshape(mixtures.B, mixtures.T)
    rows = mesh.get("data", 1) * mesh.get("fsdp", 1) * mesh.get("expert", 1)
    return [
        part.reshape(-1)
        for row in np.split(grid, rows)
        for part in np.split(row, mesh.get("context", 1), axis=1)
    ]


@pytest.mark.parametrize(
    ("capacity", "matmul", "mesh"),
    [
        (0.3, "auto", {}),
        (1.0, "blocked", {}),
        (0.75, "auto", {"expert": 4}),
        (1.25, "blocked", {"fsdp": 2, "expert": 2, "tensor": 2}),
        (1.0, "auto", {"data": 2, "expert": 2, "context": 2}),
    ],
    ids=str,
)
def test_a_capacity_drops_what_a_plain_loop_drops(capacity, matmul, mesh):
    config = mixtures.decoder(capacity=capacity, matmul=matmul, chosen=3)
    parameters = skewed(config, how="skewed")
    x, real, cotangent = led()
    kept = mixtures.kept_by_capacity(
        mixtures.chosen_experts(config, parameters, x),
        np.asarray(real).reshape(-1),
        experts=config.experts,
        devices=devices(**mesh),
    )
    given = (x, real, cotangent)
    expected = mixtures.dense(config, parameters=parameters, given=given, kept_NK=kept)
    found = mixtures.ours(config, ctx=mixtures.context(**mesh), parameters=parameters, given=given)
    assert expected.sums["dropped"] > 0
    assert mixtures.worst(found, expected) < TOLERANCE


def test_control_other_drops_are_seen():
    config = mixtures.decoder(capacity=0.75)
    parameters = skewed(config, how="skewed")
    chosen = mixtures.chosen_experts(config, parameters, led()[0])
    real = np.asarray(led()[1]).reshape(-1)
    kept = mixtures.kept_by_capacity(
        chosen, real, experts=config.experts, devices=[devices()[0][::-1]]
    )
    expected = mixtures.dense(config, parameters=parameters, given=led(), kept_NK=kept)
    found = mixtures.ours(config, parameters=parameters, given=led())
    assert found.sums["dropped"] == expected.sums["dropped"]
    assert mixtures.worst(found, expected) > 1e-2


def test_a_short_buffer_drops_later_choices_and_says_how_many():
    config = mixtures.decoder(buffer=0.75)
    parameters = skewed(config, how="skewed")
    ctx = mixtures.context(expert=4)
    x, real, _ = led()
    chosen = mixtures.chosen_experts(config, parameters, x)
    kept, real_N = np.zeros(chosen.shape), np.asarray(real).reshape(-1)
    tokens = mixtures.B * mixtures.T // 4
    for device in devices(expert=4):
        room = np.full(4, sent_rows(config.experts, tokens=tokens, devices=4))
        for choice in range(2):
            for token in device:
                to = chosen[token, choice] // 2
                if real_N[token] and room[to] > 0:
                    room[to] -= 1
                    kept[token, choice] = 1
    expected = mixtures.dense(config, parameters=parameters, given=led(), kept_NK=kept)
    found = mixtures.ours(config, ctx=ctx, parameters=parameters, given=led())
    assert expected.sums["dropped"] > 5
    assert mixtures.worst(found, expected) < TOLERANCE


def test_buffers_are_no_larger_than_they_need_be():
    config = ExpertsConfig(count=16, chosen=4, mlp_dim=1)
    assert expert_rows(config, tokens=100) == 100
    assert sent_rows(config, tokens=100, devices=4) == 400
    assert sent_rows(config, tokens=100, devices=8) == 200  # two experts there, twice at most
    half = dataclasses.replace(config, buffer=1.5)
    assert sent_rows(half, tokens=100, devices=8) == 75
    assert sent_rows(dataclasses.replace(config, buffer=50.0), tokens=100, devices=8) == 200
    tight = dataclasses.replace(config, capacity=1.25)
    assert expert_rows(tight, tokens=100) == 32
    assert sent_rows(tight, tokens=100, devices=8) == 64


def lowered(config, ctx):
    graph, parameters = mixtures.layer(config)
    x, real, _ = mixtures.inputs()

    def loss(parameters, x):
        y, sums = mixtures.nnx.merge(graph, parameters)(x, real_BT=real, ctx=ctx)
        return (y**2).sum() + sums["auxiliary_loss"]

    return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(parameters, x)


def compiled(config, ctx):
    return lowered(config, ctx).compile().as_text()


def test_tokens_are_exchanged_by_all_to_all_and_by_nothing_else():
    counts = instruction_counts(compiled(mixtures.decoder(), mixtures.context(expert=4)))
    # Rows there and back, forward and backward, and how many they are.
    assert counts["all-to-all"] == 5
    assert counts.keys() == {"all-to-all", "all-reduce"}


def emulated(operand, output, starts, send_sizes, places, recv_sizes, *, axis_name):
    """What jax.lax.ragged_all_to_all is documented to do, by gathering everything."""
    everyone = [operand, starts, send_sizes, places]
    operands, starts, sizes, places = (jax.lax.all_gather(x, axis_name) for x in everyone)
    me, row = jax.lax.axis_index(axis_name), jnp.arange(output.shape[0])
    for source in range(operands.shape[0]):
        within = row - places[source, me]
        taken = (within >= 0) & (within < sizes[source, me])
        # A size that sender and receiver disagree on would hang a GPU: here it spoils everything.
        agreed = jnp.where(sizes[source, me] == recv_sizes[source], 0.0, jnp.nan)
        rows = operands[source][jnp.clip(starts[source, me] + within, 0, operand.shape[0] - 1)]
        output = jnp.where(taken[:, None], rows, output) + agreed
    return output


@pytest.mark.parametrize("settings", [{}, {"capacity": 0.75}, {"count": 12, "chosen": 8}], ids=str)
def test_the_ragged_exchange_brings_the_same_rows(settings, monkeypatch):
    ctx = mixtures.context(expert=4)
    expected = mixtures.ours(mixtures.decoder(**settings), ctx=ctx)
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", emulated)
    config = mixtures.decoder(**settings, exchange="ragged_all_to_all")
    assert mixtures.worst(mixtures.ours(config, ctx=ctx), expected) < TOLERANCE


def test_the_ragged_exchange_and_its_gradient_lower_for_gpus():
    config = mixtures.decoder(exchange="ragged_all_to_all")
    graph, parameters = mixtures.layer(config)
    x, real, _ = mixtures.inputs()
    ctx = mixtures.context(expert=4)

    def loss(parameters, x):
        y, sums = mixtures.nnx.merge(graph, parameters)(x, real_BT=real, ctx=ctx)
        return (y**2).sum() + sums["auxiliary_loss"]

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    traced = gradient.trace(parameters, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # There and back, forward and backward.
    assert text.count("@ragged_all_to_all") == 4


def test_sequence_parallelism_scatters_the_sum_over_tensor():
    """A CPU compiles it to an all-reduce and a slice, so that the program before that is read."""
    text = lowered(mixtures.decoder(), mixtures.context(tensor=2)).as_text()
    assert text.count("stablehlo.reduce_scatter") == 1
    ctx = mixtures.context(tensor=2)
    rules = tuple(
        ("act_length_residual", "context") if rule[0] == "act_length_residual" else rule
        for rule in ctx.shard.rules
    )
    apart = dataclasses.replace(ctx, shard=Activations(mesh=ctx.shard.mesh, rules=rules))
    assert "reduce_scatter" not in lowered(mixtures.decoder(), apart).as_text()
    expected = mixtures.dense(mixtures.decoder())
    assert mixtures.worst(mixtures.ours(mixtures.decoder(), ctx=apart), expected) < TOLERANCE


def test_one_device_runs_the_program_without_any_machinery():
    alone = compiled(mixtures.decoder(), mixtures.context(data=1))
    assert instruction_counts(alone) == {}
    assert "manual" not in lowered(mixtures.decoder(), mixtures.context(data=1)).as_text()


def test_an_expert_axis_that_does_not_split_tokens_is_refused():
    ctx = mixtures.context(expert=4)
    rules = tuple(
        ("act_batch", ("data", "fsdp"), None) if rule[0] == "act_batch" else rule
        for rule in ctx.shard.rules
    )
    ctx = dataclasses.replace(ctx, shard=Activations(mesh=ctx.shard.mesh, rules=rules))
    with pytest.raises(ValueError, match="rule for 'act_batch'"):
        mixtures.ours(mixtures.decoder(), ctx=ctx)


def test_half_precision_routes_in_single_precision():
    """A router that rounds its scores to 16 bits chooses other experts."""
    config = dataclasses.replace(mixtures.decoder(), dtype="bfloat16", param_dtype="float32")
    graph, parameters = mixtures.layer(config)
    x = mixtures.inputs()[0].astype(jnp.bfloat16)
    real = jnp.ones(x.shape[:2], bool)
    y, sums = jax.jit(
        lambda p: mixtures.nnx.merge(graph, p)(x, real_BT=real, ctx=mixtures.Context())
    )(parameters)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in sums.values()} == {jnp.dtype("float32")}
    chosen = mixtures.chosen_experts(config, parameters, x.astype(jnp.float32))
    assert sums["peak"] == 8 * np.bincount(chosen.reshape(-1), minlength=8).max()
