"""Attention over rows that are split equals attention over whole rows, output and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from models.context_attention import attend_over_context
from models.decoder_config import RopeScaling
from partitioning import attention_pair
from partitioning.activations import Activations
from partitioning.attention_pair import ScoreRules, Tokens
from partitioning.collectives import branch_collectives, instruction_counts
from partitioning.mesh import build_mesh
from partitioning.mesh_config import MeshConfig, RulesConfig
from partitioning.ring import edges_of_halves, visible_halves
from partitioning.rules import activation_rules
from partitioning.sequence_layout import dealt_columns
from trainer.certificate import one_step, programs
from trainer.certificate.one_step import fast_compilation
from trainer.state import init_state
from trainer.step import build_train_step

B, T, H, K = 2, 32, 4, 4
MESH = MeshConfig(context=4, tensor=2)
DATA = MeshConfig(data=2, context=4)
WAYS, LAYOUTS = ("ring", "all_gather"), ("contiguous", "zigzag")
PLAIN, WINDOWED = ScoreRules(), ScoreRules(window=7, cap=3.0)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True), fast_compilation(True):
        yield


def documents(kind):
    """Returns positions and segments [B, T]: one document, or several and padding."""
    sizes = {"one": [[T], [T]], "packed": [[9, 15, 8], [5, 12, 8]]}[kind]
    segments, positions = np.zeros((2, B, T), np.int32)
    for row, lengths in enumerate(sizes):
        start = 0
        for number, size in enumerate(lengths, start=1):
            segments[row, start : start + size] = number
            positions[row, start : start + size] = np.arange(size)
            start += size
    return positions, segments


def inputs(kv_heads, *, dtype=np.float64):
    random = np.random.default_rng(0)
    shapes = [(B, T, heads, K) for heads in (H, kv_heads, kv_heads, H)]
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def full(q, k, v, positions, segments, rules):
    """Attention with every head's keys written out; the plainest form there is."""
    k, v = (jnp.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / jnp.sqrt(K)
    if rules.cap is not None:
        scores = rules.cap * jnp.tanh(scores / rules.cap)
    behind = positions[:, :, None] - positions[:, None, :]
    mask = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None] != 0)
    mask &= (behind >= 0) & (behind < (rules.window or T))
    weights = jnp.where(mask[:, None], jnp.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    return jnp.einsum("bhts,bshk->bthk", weights / jnp.where(total > 0, total, 1), v)


def with_gradients(attention):
    """Returns (q, k, v, gradient of the output, ...) -> output and gradients of q, k, v."""

    def both(q, k, v, dy, *rest):
        y, back = jax.vjp(lambda q, k, v: attention(q, k, v, *rest), q, k, v)
        return (y, *back(dy))

    return both


def shard_of(mesh):
    size = mesh.data * mesh.context * mesh.tensor
    return Activations(
        mesh=build_mesh(mesh, devices=jax.devices()[:size]),
        rules=activation_rules(RulesConfig()),
    )


def lowered(way, kv_heads, rules, *, mesh=MESH, dtype=np.float64):
    shard = shard_of(mesh)

    def attention(q, k, v, positions, segments):
        at = Tokens(positions=positions, segments=segments)
        return attend_over_context(q, k, v, at, way=way, rules=rules, shard=shard)

    kv = "tensor" if kv_heads % mesh.tensor == 0 else None
    arrays = [
        *(
            jax.ShapeDtypeStruct(
                (B, T, heads, K),
                dtype,
                sharding=NamedSharding(shard.mesh, P(None, "context", axis)),
            )
            for heads, axis in ((H, "tensor"), (kv_heads, kv), (kv_heads, kv), (H, "tensor"))
        ),
        *(
            jax.ShapeDtypeStruct(
                (B, T), np.int32, sharding=NamedSharding(shard.mesh, P(None, "context"))
            )
            for _ in range(2)
        ),
    ]
    return jax.jit(with_gradients(attention)).lower(*arrays), arrays


@functools.cache
def compiled(way, kv_heads, rules, **rest):
    program, arrays = lowered(way, kv_heads, rules, **rest)
    return program.compile(), [x.sharding for x in arrays]


def order_of(layout, shards=MESH.context):
    columns = dealt_columns(layout=layout, length=T, shards=shards)
    return np.arange(T) if columns is None else columns


def found(program, arrays, places, layout):
    """Returns output and gradients of split rows, put back into the order of the row."""
    run, shardings = program
    columns = order_of(layout)
    given = [x[:, columns] for x in (*arrays, *places)]
    back = np.argsort(columns)
    return [np.asarray(x)[:, back] for x in run(*jax.device_put(given, shardings))]


def expected(arrays, places, rules):
    run = jax.jit(with_gradients(functools.partial(full, rules=rules)))
    return [np.asarray(x) for x in run(*arrays, *places)]


def worst(one, other):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["one", "packed"])
@pytest.mark.parametrize("rules", [PLAIN, WINDOWED], ids=["causal", "windowed and capped"])
@pytest.mark.parametrize("kv_heads", [4, 2], ids=["MHA", "GQA"])
@pytest.mark.parametrize("way", WAYS)
def test_split_rows_equal_whole_rows_in_output_and_every_gradient(
    way, kv_heads, rules, kind, layout
):
    arrays, places = inputs(kv_heads), documents(kind)
    program = compiled(way, kv_heads, rules)
    assert worst(found(program, arrays, places, layout), expected(arrays, places, rules)) < 1e-13


@pytest.mark.parametrize("way", WAYS)
def test_key_value_heads_fewer_than_tensor_ranks_are_shared(way):
    arrays, places = inputs(2), documents("packed")
    program = compiled(way, 2, PLAIN, mesh=MeshConfig(context=2, tensor=4))
    run, shardings = program
    found = run(*jax.device_put([*arrays, *places], shardings))
    assert worst(found, expected(arrays, places, PLAIN)) < 1e-13


def test_control_a_pair_too_few_is_seen(monkeypatch):
    def sparse(edges, *, window):
        return visible_halves(edges, window=window).at[-1, 0].set(False)

    monkeypatch.setattr("partitioning.ring.visible_halves", sparse)
    arrays, places = inputs(2), documents("one")
    program = compiled.__wrapped__("ring", 2, PLAIN)
    errors = found(program, arrays, places, "contiguous")
    assert worst(errors, expected(arrays, places, PLAIN)) > 1e-3


@pytest.mark.parametrize(
    ("layout", "halves"), [("contiguous", [3, 7, 11, 15]), ("zigzag", [9, 9, 9, 9])]
)
def test_the_ring_computes_just_the_half_blocks_that_the_mask_leaves(layout, halves):
    """A value that is not a number spoils every query whose half block with it is computed."""
    arrays, places = inputs(4), documents("one")
    columns, back = order_of(layout), np.argsort(order_of(layout))
    computed = np.zeros((8, 8), bool)
    for half in range(8):
        q, k, v, w = arrays
        v = v[:, columns].copy()
        v[:, half * 4 : half * 4 + 4] = np.nan
        y = found(compiled("ring", 4, PLAIN), [q, k, v[:, back], w], places, layout)[0]
        computed[:, half] = np.isnan(y[:, columns]).reshape(B, 8, -1).any(axis=(0, 2))
    assert computed.reshape(4, 16).sum(axis=1).tolist() == halves
    at = Tokens(positions=places[0][:, columns], segments=places[1][:, columns])
    np.testing.assert_array_equal(computed, visible_halves(edges_of_halves(at, halves=8)))


def text(way, kv_heads, **rest):
    return compiled(way, kv_heads, PLAIN, **rest)[0].as_text()


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_keys_go_round_in_the_ring_and_are_gathered_otherwise(kv_heads):
    ring, gathered = (instruction_counts(text(way, kv_heads)) for way in WAYS)
    # What the ring gathers are a few numbers of every half.
    assert ring.pop("collective-permute") > 0
    assert ring == {"all-gather": 1}
    assert gathered == {"all-gather": 4, "reduce-scatter": 2}


@pytest.mark.parametrize(
    ("kv_heads", "mesh"),
    [
        (4, MESH),
        (2, MESH),
        (2, MeshConfig(context=2, tensor=4)),
        (2, DATA),
    ],
    ids=str,
)
def test_no_collective_stands_in_a_branch(kv_heads, mesh):
    program = text("ring", kv_heads, mesh=mesh)
    assert program.count(" conditional(") >= 8
    assert not branch_collectives(program)


def test_queries_taken_a_block_at_a_time_give_the_same(monkeypatch):
    monkeypatch.setattr(attention_pair, "QUERY_BLOCK", 2)
    arrays, places = inputs(2), documents("packed")
    program = compiled.__wrapped__("ring", 2, WINDOWED)
    errors = worst(found(program, arrays, places, "zigzag"), expected(arrays, places, WINDOWED))
    assert errors < 1e-13


def test_sixteen_bit_inputs_are_summed_in_float32():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(2)]
    places = documents("packed")
    exact = expected([np.asarray(x, np.float64) for x in arrays], places, PLAIN)
    program = compiled("ring", 2, PLAIN, dtype=jnp.bfloat16)
    y, *gradients = found(program, [np.asarray(x) for x in arrays], places, "zigzag")
    assert y.dtype == jnp.bfloat16
    assert worst([x.astype(np.float64) for x in (y, *gradients)], exact) < 2e-2


def test_a_row_that_does_not_divide_into_halves_is_refused():
    shard = shard_of(MESH)
    q, k, v, _ = (x[:, :20] for x in inputs(4))
    at = Tokens(positions=np.zeros((B, 20)), segments=np.zeros((B, 20)))
    with pytest.raises(ValueError, match="20 tokens is not a multiple of 8"):
        attend_over_context(q, k, v, at, way="ring", rules=PLAIN, shard=shard)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mesh", [MeshConfig(tensor=2), MeshConfig(context=2, tensor=2)], ids=str)
def test_a_step_in_bfloat16_compiles(way, mesh):
    """A 16-bit sum over one axis, the others left to the partitioner, ends XLA's CPU compiler."""
    model = programs.decoder(
        dtype="bfloat16", param_dtype="float32", layers=1, context_attention=way
    )
    program = programs.program(model, mesh=mesh, rules=programs.rules("cp"))
    _, metrics = build_train_step(program)(init_state(program), programs.batch("packed"))
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("way", WAYS)
def test_scores_have_their_scale_and_local_blocks_their_frequencies_on_split_rows(way):
    gemma3 = {
        "layers": 2,
        "pattern": ("local", "global"),
        "window": 5,
        "attention_scale": 0.17,
        "local_rope_base": 20.0,
        "rope_scaling": RopeScaling(factor=8.0),
    }
    case = one_step.Case(
        name="gemma-3",
        rules="cp",
        mesh=MeshConfig(context=4),
        model=tuple(gemma3.items()),
        execution=(("context_attention", way),),
    )
    whole, split = one_step.on_one_device(case.reference()), one_step.outcome(case)
    for path, gradient in whole.gradients.items():
        np.testing.assert_allclose(split.gradients[path], gradient, rtol=1e-9, atol=1e-12)
