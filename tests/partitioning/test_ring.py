"""What is skipped was empty, and what is empty is skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioning.attention_pair import Tokens
from partitioning.ring import edges_of_halves, visible_halves
from partitioning.sequence_layout import dealt_columns


def mask_of(positions, segments, window):
    behind = positions[:, :, None] - positions[:, None, :]
    mask = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None] != 0)
    mask &= behind >= 0
    return mask if window is None else mask & (behind < window)


def needed(positions, segments, parts, window):
    size = positions.shape[1] // parts
    mask = mask_of(positions, segments, window)
    return mask.reshape(-1, parts, size, parts, size).any(axis=(0, 2, 4))


@st.composite
def rows(draw):
    """Returns positions and segments [2, 32]: documents of any lengths, some padding at the end."""
    positions, segments = np.zeros((2, 2, 32), np.int32)
    for row in range(2):
        start, number = 0, 0
        while start < 32 and draw(st.integers(0, 9)):
            size = min(draw(st.integers(1, 32)), 32 - start)
            number += 1
            segments[row, start : start + size] = number
            positions[row, start : start + size] = np.arange(size)
            start += size
    return positions, segments


WINDOWS = st.one_of(st.none(), st.integers(1, 12))


def visible(positions, segments, parts, window):
    at = Tokens(positions=positions, segments=segments)
    with jax.disable_jit():
        return np.asarray(visible_halves(edges_of_halves(at, halves=parts), window=window))


@given(rows=rows(), shards=st.sampled_from([2, 4]), zigzag=st.booleans(), window=WINDOWS)
def test_just_the_pairs_that_the_mask_leaves_are_visible(rows, shards, zigzag, window):
    layout = "zigzag" if zigzag else "contiguous"
    columns = dealt_columns(layout=layout, length=32, shards=shards)
    positions, segments = (x if columns is None else x[:, columns] for x in rows)
    found = visible(positions, segments, 2 * shards, window)
    wanted = needed(positions, segments, 2 * shards, window)
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=50)
@given(rows=rows(), order=st.permutations(range(32)), window=WINDOWS)
def test_in_any_order_of_tokens_no_pair_is_left_out(rows, order, window):
    positions, segments = (x[:, list(order)] for x in rows)
    found = visible(positions, segments, 8, window)
    assert not (needed(positions, segments, 8, window) & ~found).any()


def test_padding_alone_sees_nothing():
    nothing = np.zeros((1, 8), np.int32)
    assert not visible(nothing, nothing, 4, None).any()


@pytest.mark.parametrize(("shards", "halves"), [(2, 5), (4, 9), (8, 17)])
def test_zigzag_gives_every_rank_the_same_number_of_half_blocks(shards, halves):
    positions = dealt_columns(layout="zigzag", length=64, shards=shards)[None]
    found = visible(jnp.asarray(positions), jnp.ones((1, 64), jnp.int32), 2 * shards, None)
    assert found.reshape(shards, -1).sum(axis=1).tolist() == [halves] * shards
