"""The decoder computes what the papers say, in every configuration it has."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.attention import Decoding, Tokens
from models.context import Context
from models.decoder import Decoder
from models.decoder_config import RopeScaling
from models.losses import cross_entropy
from tests.models import decoders, reference
from trainer.certificate import one_step, programs
from trainer.program import build_task

LLAMA3 = RopeScaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=32
)
VARIATIONS = {
    "llama": {},
    "llama-3.1": {"rope_scaling": LLAMA3, "rope_base": 500.0},
    "multi-head": {"kv_heads": 8},
    "multi-query, wide heads": {"kv_heads": 1, "head_dim": 12},
    "qwen-2": {"qkv_bias": True, "norm_eps": 1e-6},
    "qwen-3": {"qk_norm": True},
    "qwen, both, plus one": {"qkv_bias": True, "qk_norm": True, "norm_plus_one": True},
    "geglu": {"activation": "geglu"},
    "gelu": {"activation": "gelu"},
    "tied": {"tied_embedding": True, "embed_scale": True},
    "soft caps": {"attention_soft_cap": 2.0, "logits_soft_cap": 3.0},
    "post norms": {"post_norms": True, "norm_plus_one": True},
    "mistral": {"pattern": ("local",), "window": 3},
    "gemma-2": {
        "layers": 4,
        "pattern": ("local", "global"),
        "window": 4,
        "activation": "geglu",
        "norm_plus_one": True,
        "post_norms": True,
        "embed_scale": True,
        "tied_embedding": True,
        "attention_soft_cap": 50.0,
        "logits_soft_cap": 30.0,
    },
    "gemma-3": {
        "layers": 5,
        "pattern": ("local", "global"),
        "suffix": ("local",),
        "window": 4,
        "qk_norm": True,
        "rope_base": 500.0,
        "rope_scaling": RopeScaling(factor=8.0),
        "local_rope_base": 20.0,
        "attention_scale": 0.17,
    },
    "prefix and suffix": {
        "layers": 7,
        "prefix": ("global",),
        "pattern": ("local", "global"),
        "suffix": ("local", "local"),
        "window": 3,
    },
    "twelve kinds in a pattern": {
        "layers": 12,
        "pattern": ("local", "local", "global", *["local"] * 9),
        "window": 3,
    },
    "scanned prefix and suffix": {
        "layers": 6,
        "prefix": ("global",),
        "pattern": ("local", "global"),
        "suffix": ("local",),
        "window": 3,
        "scan_layers": True,
    },
}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True), one_step.fast_compilation(True):
        yield


def batch(kind="packed", rows=3):
    made = programs.batch(kind, rows=rows)
    return made["inputs"], made["positions"], made["segment_ids"]


@pytest.mark.parametrize("name", VARIATIONS)
def test_logits_equal_the_numpy_reference(name):
    config = programs.decoder(**VARIATIONS[name])
    model = decoders.build(config)
    inputs = [np.concatenate(pair) for pair in zip(batch("packed", 2), batch("padded", 2))]
    found = decoders.forward(model, *inputs)
    expected = reference.logits(config, decoders.parameters(model), *inputs)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize(
    "change",
    [
        {"rope_base": 9_999.0},
        {"local_rope_base": 9_999.0},
        {"rope_scaling": RopeScaling(factor=1.001)},
        {"attention_scale": 0.51},
        {"window": 4},
        {"norm_eps": 2e-5},
        {"attention_soft_cap": 2.1},
        {"logits_soft_cap": 3.1},
        {"activation": "geglu"},
        {"embed_scale": True},
        {"norm_plus_one": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_control_the_reference_tells_settings_apart(change):
    config = programs.decoder(
        pattern=("local",), window=3, attention_soft_cap=2.0, logits_soft_cap=3.0
    )
    model = decoders.build(config)
    found = decoders.forward(model, *batch())
    other = dataclasses.replace(config, **change)
    expected = reference.logits(other, decoders.parameters(model), *batch())
    assert np.abs(found - expected).max() > 1e-8


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_cross_entropy_equals_the_numpy_reference_in_any_number_of_chunks(chunks, z_loss):
    model = decoders.build(programs.decoder())
    inputs, positions, segments = batch()
    made = programs.batch("packed", rows=3, seed=4)
    weights = np.random.default_rng(0).random(inputs.shape) * made["loss_weights"]
    targets = made["targets"]
    tokens = Tokens(positions=positions, segments=segments)
    graph, state = nnx.split(model)

    def score(state):
        merged = nnx.merge(graph, state)
        hidden, _, _ = merged(inputs, tokens, ctx=Context())
        return cross_entropy(
            merged, hidden, targets, weights, ctx=Context(), chunks=chunks, z_loss=z_loss
        )

    found = jax.jit(score)(state)
    logits = decoders.forward(model, inputs, positions, segments)
    expected = reference.cross_entropy(logits, targets, weights, z_loss=z_loss)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-12)


def test_chunks_that_do_not_divide_the_length_are_refused():
    model = decoders.build(programs.decoder())
    x = jnp.zeros((1, 16, 32))
    with pytest.raises(ValueError, match="loss_chunks=3 does not divide the sequence length 16"):
        cross_entropy(model, x, x[..., 0], x[..., 0], ctx=Context(), chunks=3)


def test_packed_documents_have_the_logits_they_have_alone():
    """P036."""
    config = programs.decoder(pattern=("local", "global"), window=3)
    model = decoders.build(config)
    inputs, positions, segments = batch(rows=4)
    packed = decoders.forward(model, inputs, positions, segments)
    seen = 0
    for row in range(4):
        for document in range(1, segments[row].max() + 1):
            places = segments[row] == document
            alone = np.zeros((1, 16), np.int32)
            alone[0, : places.sum()] = inputs[row][places]
            own = (np.arange(16) < places.sum())[None].astype(np.int32)
            logits = decoders.forward(model, alone, np.arange(16, dtype=np.int32)[None], own)
            np.testing.assert_allclose(logits[0, : places.sum()], packed[row][places], atol=1e-12)
            seen += 1
    assert seen > 8


def test_the_second_copy_of_a_document_is_no_easier_than_the_first():
    """P036: a copy that could look at its twin would not have the twin's logits."""
    model = decoders.build(programs.decoder())
    document = np.random.default_rng(0).integers(0, 64, 8).astype(np.int32)
    inputs = np.tile(document, 2)[None]
    positions = np.tile(np.arange(8, dtype=np.int32), 2)[None]
    segments = np.repeat(np.asarray([1, 2], np.int32), 8)[None]
    logits = decoders.forward(model, inputs, positions, segments)
    np.testing.assert_allclose(logits[0, 8:], logits[0, :8], atol=1e-12)
    straight = np.arange(16, dtype=np.int32)[None]
    joined = decoders.forward(model, inputs, straight, np.ones_like(segments))
    assert np.abs(joined[0, 8:] - logits[0, 8:]).max() > 1e-3


def test_what_stands_in_padding_never_changes_a_real_token():
    """P038."""
    model = decoders.build(programs.decoder(qkv_bias=True))
    inputs, positions, segments = batch("padded")
    real = segments != 0
    assert not real.all()
    other = np.where(real, inputs, 63 - inputs)
    moved = np.where(real, positions, 7)
    found = decoders.forward(model, other, moved, segments)
    expected = decoders.forward(model, inputs, positions, segments)
    np.testing.assert_array_equal(found[real], expected[real])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["llama", "gemma-3", "scanned prefix and suffix"])
@pytest.mark.parametrize("prompt", [1, 5])
def test_decoding_with_caches_equals_the_forward_pass_position_by_position(name, prompt):
    model = decoders.build(programs.decoder(**VARIATIONS[name]))
    inputs = programs.batch("packed", rows=2)["inputs"]
    positions = np.broadcast_to(np.arange(16, dtype=np.int32), inputs.shape)
    ones = np.ones_like(inputs)
    expected = decoders.forward(model, inputs, positions, ones)
    every = Tokens(positions=jnp.asarray(positions), segments=jnp.asarray(ones))
    graph, state = nnx.split(model)

    @jax.jit
    def extend(state, inputs, start, caches):
        merged = nnx.merge(graph, state)
        places = start + jnp.arange(inputs.shape[1], dtype=jnp.int32)
        here = Tokens(
            positions=jnp.broadcast_to(places, inputs.shape), segments=jnp.ones_like(inputs)
        )
        hidden, caches, _ = merged(
            inputs, here, ctx=Context(), decoding=Decoding(caches=caches, index=start, tokens=every)
        )
        return merged.logits(hidden, Context()), caches

    caches = model.empty_caches(2, 16)
    logits, caches = extend(state, inputs[:, :prompt], 0, caches)
    found = [logits]
    for place in range(prompt, 16):
        logits, caches = extend(state, inputs[:, place : place + 1], place, caches)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=1e-12)


def test_adding_layers_leaves_the_others_and_the_embedding_as_they_were():
    few = decoders.parameters(Decoder(programs.decoder(layers=2), key=jax.random.key(3)))
    many = decoders.parameters(Decoder(programs.decoder(layers=5), key=jax.random.key(3)))
    assert few.keys() == many.keys()
    for name, value in few.items():
        kept = many[name][:2] if name.startswith("stacks/") else many[name]
        np.testing.assert_array_equal(kept, value)
    kernel = many["stacks/pattern/blocks/0/mlp/up/kernel"]
    assert all(np.abs(kernel[i] - kernel[j]).max() > 0.1 for i in range(5) for j in range(i))


def test_no_two_matrices_start_alike_and_each_has_its_deviation():
    model = Decoder(programs.decoder(embed_dim=64, mlp_dim=64), key=jax.random.key(0))
    values = decoders.parameters(model)
    kernels = {name: v for name, v in values.items() if name.endswith(("kernel", "embedding"))}
    for name, value in kernels.items():
        assert value.std() * 8 == pytest.approx(1.0, abs=0.05), name  # 64 inputs everywhere
        assert np.abs(value).max() * 8 < 2.28
    flat = [value.ravel()[:32] for value in kernels.values()]
    assert all(np.abs(a - b).max() > 0.01 for i, a in enumerate(flat) for b in flat[:i])


PUBLISHED = {
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "mistral_7b": 7_241_732_096,
    "qwen2_5_7b": 7_615_616_512,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_published_number_of_parameters(name):
    task = build_task(programs.load(model=name).task)
    shapes = nnx.state(nnx.eval_shape(lambda: task.init(jax.random.key(0))), nnx.Param)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "embed_dim=32 is not a multiple of heads=5; set DecoderConfig.head_dim"),
        ({"kv_heads": 3}, "heads=8 is not a multiple of kv_heads=3"),
        ({"layers": 3, "pattern": ("global", "global")}, "layers=3 does not equal"),
        ({"layers": 1, "prefix": ("global", "global")}, "layers=1 does not equal"),
        ({"pattern": ()}, "layers=2 does not equal"),
        ({"pattern": ("glbal",)}, r"Unknown block kinds \['glbal'\]; allowed: global, local"),
        ({"suffix": ("local",)}, "needs DecoderConfig.window"),
        ({"dropout": 1.0}, r"dropout=1.0 is not in \[0, 1\)"),
        ({"head_dim": 5}, "head_dim=5 is odd"),
        ({"mlp_dim": 0}, "mlp_dim=0 must be positive"),
        ({"layers": 0}, "layers=0 must be positive"),
        ({"loss_chunks": 0}, "loss_chunks=0 must be positive"),
        ({"remat": "sometimes"}, "remat='sometimes': allowed are 'none', 'selective', 'full'"),
        ({"remat": "save:query,kye"}, "remat='save:query,kye'"),
    ],
    ids=str,
)
def test_an_impossible_decoder_is_refused_before_anything_is_built(change, message):
    with pytest.raises(ValueError, match=message):
        programs.decoder(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high_frequency_factor": None}, "or none of them, which divides all frequencies"),
        ({"low_frequency_factor": 4.0}, "low_frequency_factor=4.0 must be less than"),
    ],
    ids=str,
)
def test_impossible_scaling_of_frequencies_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LLAMA3, **change)


def test_the_configuration_imports_neither_jax_nor_flax():
    loaded = "import sys, models.decoder_config as m; print([*sys.modules])"
    modules = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    ).stdout
    assert "decoder_config" in modules
    assert not [name for name in ("'jax'", "'flax'", "'numpy'", "'optax'") if name in modules]


def test_cudnn_attention_is_refused_where_it_cannot_run():
    model = decoders.build(programs.decoder(attention="cudnn"))
    with pytest.raises(ValueError, match=r"attention='cudnn' needs a GPU.*Use 'auto'"):
        decoders.forward(model, *batch())


def test_bfloat16_stays_close_to_float64_with_statistics_in_float32():
    config = programs.decoder(param_dtype="float32", dtype="bfloat16")
    model = decoders.build(config)
    found = decoders.forward(model, *batch())
    assert found.dtype == np.float32
    exact = reference.logits(config, decoders.parameters(model), *batch())
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
