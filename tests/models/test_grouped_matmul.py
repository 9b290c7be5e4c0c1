"""Every implementation multiplies each row with its group's matrix, forward and backward."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import dispatch
from models.grouped_matmul import block_rows, choose, grouped_matmul, layout_for

SIZES = {
    "uneven": [5, 0, 17, 1],
    "none at all": [0, 0, 0],
    "all in one": [0, 0, 40, 0, 0],
    "one group": [13],
    "more groups than rows": [1, 0, 0, 1, 0, 0, 0, 1],
    "whole blocks": [8, 16, 8],
}
IMPLEMENTATIONS = ("padded", "blocked", "ragged")


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def problem(sizes, *, implementation, spare=3):
    """Rows in the layout that the implementation wants, and what plain products give."""
    random = np.random.default_rng(0)
    total = sum(sizes) + spare
    groups = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    groups = np.concatenate([groups, np.full(spare, len(sizes), np.int32)])
    rank, counted = dispatch.rank_within(jnp.asarray(groups), count=len(sizes))
    layout = layout_for(counted, implementation=implementation, most=max(*sizes, 1), total=total)
    row = dispatch.rows_of(jnp.asarray(groups), rank, layout)
    member = dispatch.members_of(row, rows=layout.rows)
    x, w = random.standard_normal((total, 4)), random.standard_normal((len(sizes), 4, 6))
    cotangent = jnp.asarray(random.standard_normal((total, 6)))

    def placed(x, w):
        x = dispatch.gather_rows(x, member, row[None])
        y = grouped_matmul(x, w, layout, implementation=implementation)
        return dispatch.gather_rows(y, row, member[None])

    def plain(x, w):
        padded = jnp.concatenate([w, jnp.zeros((1, 4, 6))])
        return jnp.einsum("ri,rio->ro", x, padded[groups])

    return placed, plain, jnp.asarray(x), jnp.asarray(w), cotangent


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_output_and_both_gradients_equal_plain_products(sizes, implementation):
    placed, plain, x, w, cotangent = problem(sizes, implementation=implementation)
    found, pull = jax.vjp(placed, x, w)
    expected, pull_plain = jax.vjp(plain, x, w)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for ours, theirs in zip(pull(cotangent), pull_plain(cotangent), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


def test_blocks_of_half_precision_add_up_in_single_precision():
    """1024 equal gradients: sums of bfloat16 would stop growing at 256 times one of them."""
    x, w = jnp.ones((1024, 8), jnp.bfloat16), jnp.ones((1, 8, 8), jnp.bfloat16)
    layout = layout_for(jnp.asarray([1024]), implementation="blocked", most=1024, total=1024)
    assert layout.block == 128

    def total(w):
        return grouped_matmul(x, w, layout, implementation="blocked").astype(jnp.float32).sum()

    gradient = jax.grad(total)(w)
    assert gradient.dtype == jnp.bfloat16
    assert set(np.asarray(gradient, np.float32).reshape(-1).tolist()) == {1024.0}


def test_empty_blocks_are_not_computed():
    """NaN in the weights of groups without rows reaches nothing."""
    layout = layout_for(jnp.asarray([8, 0]), implementation="blocked", most=100, total=100)
    w = jnp.stack([jnp.ones((4, 4)), jnp.full((4, 4), jnp.nan)])
    x = jnp.zeros((layout.rows, 4)).at[:8].set(1.0)
    y = grouped_matmul(x, w, layout, implementation="blocked")
    assert y.sum() == 8 * 4 * 4


@pytest.mark.parametrize(
    ("rows", "groups", "block"), [(8, 1, 8), (64, 8, 8), (1024, 8, 64), (10**6, 8, 128)]
)
def test_a_block_is_a_fraction_of_a_group(rows, groups, block):
    assert block_rows(rows, groups=groups) == block


def test_auto_takes_what_the_platform_and_the_capacity_are_made_for():
    assert choose("auto", platform="cpu", capacity=True) == "padded"
    assert choose("auto", platform="cpu", capacity=False) == "blocked"
    assert choose("auto", platform="tpu", capacity=False) == "ragged"
    assert choose("ragged", platform="cpu", capacity=True) == "ragged"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"install lockstep\[kernels\]"):
        choose("tokamax", platform="gpu", capacity=False)
