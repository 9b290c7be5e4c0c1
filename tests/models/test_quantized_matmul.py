"""Products in eight bits: real ones in the compiled program, off by what their steps allow."""

import dataclasses
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.context import Context
from models.layers import matmul
from models.quantized_matmul import check_installed, quantized_matmul
from partitioning.targets import target_devices
from trainer.assembly import check_decoder
from trainer.certificate import programs
from trainer.run_config import LanguageModel

RANDOM = np.random.default_rng(0)
X, G = RANDOM.standard_normal((4, 64, 256)), RANDOM.standard_normal((4, 64, 8, 32))
W = RANDOM.standard_normal((256, 8, 32)) / 16
BOUNDS = {"default": 0.004, "int8": 0.013, "fp8": 0.042}
"""Relative errors of a product and its gradients that docs/memory.md states."""


def product(precision, dtype="bfloat16"):
    def both(x, w):
        x, w = x.astype(dtype), w.astype(dtype)
        return matmul(x, w, contract=1, ctx=Context(), precision=precision).astype("float32")

    return both


def results(function):
    gradients = jax.grad(lambda x, w: (function(x, w) * G).sum(), argnums=(0, 1))
    arguments = (jnp.asarray(X, "float32"), jnp.asarray(W, "float32"))
    return [jax.jit(function)(*arguments), *jax.jit(gradients)(*arguments)]


@pytest.mark.parametrize("precision", BOUNDS)
def test_product_and_both_gradients_are_off_by_what_the_page_says(precision):
    exact = results(product("default", "float32"))
    for found, expected in zip(results(product(precision)), exact, strict=True):
        error = float(jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected))
        assert BOUNDS[precision] / 4 < error < BOUNDS[precision]


def compiled(precision, device):
    place = jax.sharding.SingleDeviceSharding(device)
    shapes = [jax.ShapeDtypeStruct(a.shape, "bfloat16", sharding=place) for a in (X, W)]
    step = jax.jit(jax.value_and_grad(lambda x, w: product(precision)(x, w).sum(), (0, 1)))
    return step.lower(*shapes).compile().as_text()


def test_cpu_multiplies_int8():
    dots = re.findall(r"= (\w+)\[[\d,]+\]\S* dot\(", compiled("int8", jax.devices("cpu")[0]))
    assert dots == ["s32"] * 3


@pytest.mark.parametrize(("precision", "call"), [("int8", 'matmul"'), ("fp8", 'matmul\\$f8"')])
def test_h100_multiplies_in_eight_bits(precision, call):
    text = compiled(precision, target_devices("h100", devices=1)[0])
    calls = [line for line in text.splitlines() if re.search(f"__cublas\\$lt\\${call}", line)]
    fused = re.findall(r"param\S*: (s8|f8e4m3fn)\[.*\) -> .*\{", text)
    dots = [line for line in text.splitlines() if re.search(r" dot\(", line)]
    assert len(calls) + len(dots) == 3, text
    assert len(calls) == 3 or set(fused) == {"s8" if precision == "int8" else "f8e4m3fn"}


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_last_bit_of_a_largest_value_does_not_decide_how_it_is_rounded(sign):
    def of(largest):
        x = jnp.asarray([[0.25, 0.5, sign * largest]], "float32")
        return quantized_matmul(x, jnp.eye(3), contract=1, precision="int8")

    near = [of(np.float32(0.7) * (1 + k * np.finfo("float32").eps)) for k in range(-4, 5)]
    np.testing.assert_allclose(near, np.broadcast_to(near[0], (9, 1, 3)), rtol=1e-5)


def test_rows_of_zeros_and_huge_values_stay_finite():
    x = jnp.stack([jnp.zeros(256), jnp.full(256, 1e30), jnp.full(256, 1e-30)])
    for precision in ("int8", "fp8"):
        y = matmul(x, jnp.asarray(W, "float32"), contract=1, ctx=Context(), precision=precision)
        assert jnp.isfinite(y).all()
        assert (y[0] == 0).all()


def test_every_projection_of_a_block_is_quantized_and_nothing_else():
    from trainer.state import abstract_batch, abstract_state
    from trainer.step import build_train_step

    def eight_bit(**changes):
        model = programs.decoder(matmul="int8", scan_layers=True, **changes)
        program = programs.program(model)
        batch = abstract_batch(program, rows=8, length=16)
        text = str(build_train_step(program).trace(abstract_state(program), batch).jaxpr)
        return text.count("preferred_element_type=int32")

    assert eight_bit() == 3 * 7
    assert eight_bit(activation="gelu") == 3 * 6


def test_without_qwix_a_run_is_refused(monkeypatch):
    model = programs.decoder(dtype="float32", param_dtype="float32", matmul="fp8")
    run = dataclasses.replace(programs.load(), task=LanguageModel(model=model))
    check_decoder(run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"matmul='fp8' needs the package qwix.*lockstep\[qwix\]"):
        check_decoder(run)
    check_installed("default")
