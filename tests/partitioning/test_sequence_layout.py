"""The dealt order is a permutation that gives every rank its chunks."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.sequence_layout import dealt_columns, granularity, original_columns

LAYOUTS = ("zigzag", "contiguous")
LAYOUT = st.sampled_from(LAYOUTS)


@given(layout=LAYOUT, shards=st.integers(1, 16), size=st.integers(1, 9))
def test_every_column_is_dealt_once(layout, shards, size):
    length = size * granularity(layout, shards=shards)
    columns = dealt_columns(layout=layout, length=length, shards=shards)
    if columns is not None:
        np.testing.assert_array_equal(np.sort(columns), np.arange(length))
        assert layout == "zigzag"
        assert shards > 1


@given(shards=st.integers(2, 16), size=st.integers(1, 9))
def test_zigzag_gives_a_rank_one_chunk_from_the_front_and_its_mirror_from_the_back(shards, size):
    columns = dealt_columns(layout="zigzag", length=2 * shards * size, shards=shards)
    for rank, mine in enumerate(columns.reshape(shards, 2, size)):
        np.testing.assert_array_equal(mine[0], rank * size + np.arange(size))
        np.testing.assert_array_equal(mine[1], (2 * shards - 1 - rank) * size + np.arange(size))


def test_the_order_of_eight_tokens_over_two_ranks():
    columns = dealt_columns(layout="zigzag", length=8, shards=2)
    assert columns.tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert dealt_columns(layout="contiguous", length=8, shards=2) is None
    assert dealt_columns(layout="zigzag", length=8, shards=1) is None


@given(layout=LAYOUT, shards=st.integers(1, 8))
def test_device_arithmetic_is_the_host_s(layout, shards):
    given_ = {"layout": layout, "length": 16 * shards, "shards": shards}
    host = original_columns(np.arange(16 * shards), **given_)
    device = original_columns(jnp.arange(16 * shards), **given_)
    np.testing.assert_array_equal(host, np.asarray(device))


@pytest.mark.parametrize(("layout", "parts"), [("zigzag", 8), ("contiguous", 4)])
def test_a_length_that_does_not_divide_is_refused_with_the_numbers(layout, parts):
    with pytest.raises(ValueError, match=f"12[0-9] tokens does not divide into {parts} .*multiple"):
        dealt_columns(layout=layout, length=122, shards=4)
