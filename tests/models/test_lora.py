"""Adapters: what they compute, what they start as, whom they can be given to."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.context import Context
from models.decoder import Decoder
from models.layers import Adapter
from models.lora import merged, merged_kernel
from models.lora_config import LoraConfig, is_adapter
from tests.models import decoders
from trainer.certificate import programs

LORA = LoraConfig(rank=3, alpha=6.0, targets=("attention/.*/kernel", "mlp/.*/kernel"))
MODEL = programs.decoder(dtype="float32", param_dtype="float32", qkv_bias=True, lora=LORA)
PLAIN = dataclasses.replace(MODEL, lora=None)


def trained(model=MODEL):
    """A decoder whose adapters have learned something."""
    decoder = decoders.build(model)
    random = np.random.default_rng(1)
    for path, parameter in nnx.to_flat_state(nnx.state(decoder, nnx.Param)):
        if path[-2:] == ("adapter", "b"):
            noise = 0.1 * random.standard_normal(parameter.shape)
            parameter.set_value(parameter[...] + noise.astype(parameter.dtype))
    return decoder


def logits(decoder):
    batch = programs.batch("packed")
    names = ("inputs", "positions", "segment_ids")
    return decoders.forward(decoder, *(batch[name] for name in names))


def with_parameters(model, flat):
    decoder = decoders.build(model)
    for path, parameter in nnx.to_flat_state(nnx.state(decoder, nnx.Param)):
        parameter.set_value(flat["/".join(map(str, path))])
    return decoder


def test_a_decoder_starts_as_the_one_that_it_adapts():
    adapted, plain = (decoders.build(model) for model in (MODEL, PLAIN))
    base = {p: x for p, x in decoders.parameters(adapted).items() if not is_adapter(p)}
    for path, value in decoders.parameters(plain).items():
        np.testing.assert_array_equal(base.pop(path), value)
    assert not base
    np.testing.assert_array_equal(logits(adapted), logits(plain))


@pytest.mark.parametrize("scan", [True, False])
def test_merged_kernels_give_the_logits_of_the_adapters(scan):
    model = dataclasses.replace(MODEL, scan_layers=scan)
    adapted = trained(model)
    whole = merged(decoders.parameters(adapted), scale=LORA.scale)
    found = logits(with_parameters(PLAIN, whole))
    np.testing.assert_allclose(found, logits(adapted), atol=1e-5)
    assert np.abs(found - logits(decoders.build(MODEL))).max() > 0.01


def test_a_layer_merges_slice_by_slice_as_the_whole_stack_does():
    flat = decoders.parameters(trained())
    layer = "stacks/pattern/blocks/0/attention/out"
    kernel, a, b = (flat[f"{layer}/{name}"] for name in ("kernel", "adapter/a", "adapter/b"))
    whole = merged_kernel(kernel, a, b, scale=LORA.scale)
    for number in range(MODEL.layers):
        one = merged_kernel(kernel[number], a[number], b[number], scale=LORA.scale)
        np.testing.assert_allclose(one, whole[number], atol=1e-6)
    expected = kernel + 2.0 * np.einsum("lhkr,lrd->lhkd", a, b)
    np.testing.assert_allclose(whole, expected, atol=1e-6)


def test_16_bit_kernels_are_merged_in_32_bits_and_stay_what_they_are():
    half = dataclasses.replace(MODEL, param_dtype="bfloat16")
    flat = decoders.parameters(trained(half))
    assert {x.dtype.name for p, x in flat.items() if is_adapter(p)} == {"float32"}
    layer = "stacks/pattern/blocks/0/mlp/up"
    parts = (flat[f"{layer}/{name}"] for name in ("kernel", "adapter/a", "adapter/b"))
    assert merged_kernel(*parts, scale=1.0).dtype == np.float32
    assert merged(flat, scale=1.0)[f"{layer}/kernel"].dtype.name == "bfloat16"


def test_outputs_and_gradients_are_those_of_the_product_of_both_matrices():
    """d/dA = scale * dW B^T and d/dB = scale * A^T dW."""
    random = np.random.default_rng(0)
    shapes = (32, 3), (3, 8, 4), (2, 5, 32), (2, 5, 8, 4)
    a, b, x, dy = (random.standard_normal(shape).astype(np.float32) for shape in shapes)

    def low_rank(a, b):
        a = nnx.Param(a, logical_axes=("embed", "rank"))
        b = nnx.Param(b, logical_axes=("rank", "heads", "head_dim"))
        y = Adapter(a, b, contract=1, scale=2.0)(x, Context())
        return (y * dy).sum(), y

    def explicit(a, b):
        y = jnp.einsum("btd,dhk->bthk", x, merged_kernel(jnp.zeros((32, 8, 4)), a, b, scale=2.0))
        return (y * dy).sum(), y

    found, expected = (
        jax.grad(f, argnums=(0, 1), has_aux=True)(a, b) for f in (low_rank, explicit)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_an_adapter_of_a_stack_does_not_depend_on_other_targets():
    few = dataclasses.replace(MODEL, lora=dataclasses.replace(LORA, targets=("query/kernel",)))
    many, one = (decoders.parameters(decoders.build(model)) for model in (MODEL, few))
    path = "stacks/pattern/blocks/0/attention/query/adapter/a"
    np.testing.assert_array_equal(one[path], many[path])
    assert len({p for p in one if is_adapter(p)}) == 2


MIXTURE = programs.load(model="tiny_moe").task.model


@pytest.mark.parametrize(
    ("model", "target", "words"),
    [
        (PLAIN, "attention/quary", "'attention/quary' matches no kernel"),
        (PLAIN, "attention", "attention_norm/scale, which can have no adapter"),
        (PLAIN, "head", "head/kernel"),
        (PLAIN, "embedding", "matches embedding, which can"),
        (PLAIN, "query/bias", "matches no kernel"),
        (MIXTURE, "mlp/(up|down)", "mlp/down and 1 more, which can have no adapter"),
        (MIXTURE, "router", "mlp/router"),
    ],
)
def test_a_target_without_an_adapter_is_refused_by_name(model, target, words):
    lora = LoraConfig(targets=("attention/query/kernel", target))
    model = dataclasses.replace(model, lora=lora)
    with pytest.raises(ValueError, match=words) as error:
        jax.eval_shape(lambda: nnx.split(Decoder(model, key=jax.random.key(0)))[1])
    assert "here there are attention/" in str(error.value)


def test_no_target_at_all_is_refused():
    with pytest.raises(ValueError, match="adapts nothing"):
        LoraConfig(targets=())


def test_biases_of_targeted_layers_are_no_mistake():
    lora = LoraConfig(targets=("attention/(query|key)/",))
    decoder = decoders.build(dataclasses.replace(PLAIN, lora=lora))
    assert sum(map(is_adapter, decoders.parameters(decoder))) == 4


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_products_in_eight_bits_leave_the_adapter_exact(precision):
    decoder = trained(dataclasses.replace(MODEL, matmul=precision, layers=1))
    graph, stacked = nnx.split(decoder.stacks["pattern"].blocks["0"].mlp.up)
    up = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], stacked))
    x = np.random.default_rng(0).standard_normal((2, 5, 32)).astype(np.float32)
    adapted, adapter = up(x, Context()), up.adapter
    up.adapter = None
    plain = up(x, Context())
    np.testing.assert_allclose(adapted - plain, adapter(x, Context()), atol=1e-5)
    assert np.abs(plain - x @ up.kernel[...]).max() > 1e-3
