"""Slots and layouts: every member has its own row, in order; limits turn away the last."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models import dispatch

COUNTS = st.integers(1, 6)
few = settings(max_examples=40)
"""Every new shape compiles."""


@st.composite
def grouped(draw):
    """[A] groups in [0, count], where count means none; and count."""
    count = draw(COUNTS)
    groups = draw(st.lists(st.integers(0, count), min_size=1, max_size=24))
    return np.asarray(groups, np.int32), count


def loop_ranks(groups):
    seen: dict[int, int] = {}
    ranks = []
    for group in groups.tolist():
        ranks.append(seen.get(group, 0))
        seen[group] = ranks[-1] + 1
    return ranks


@few
@given(grouped())
def test_ranks_number_the_members_of_each_group_in_order(case):
    groups, count = case
    rank, sizes = dispatch.rank_within(jnp.asarray(groups), count=count)
    assert rank.tolist() == loop_ranks(groups)
    assert sizes.tolist() == np.bincount(groups, minlength=count + 1)[:count].tolist()


@few
@given(grouped(), st.integers(1, 8), st.booleans())
def test_a_layout_has_one_row_for_every_member_inside_its_group(case, block, is_even):
    groups, count = case
    rank, sizes = dispatch.rank_within(jnp.asarray(groups), count=count)
    layout = (
        dispatch.even(sizes, each=groups.size)
        if is_even
        else dispatch.packed(sizes, total=groups.size, block=block)
    )
    rows = np.asarray(dispatch.rows_of(jnp.asarray(groups), rank, layout))
    offsets, filled = np.asarray(layout.offsets), np.asarray(layout.sizes)
    for group, row in zip(groups, rows, strict=True):
        if group == count:
            assert row == layout.rows
        else:
            assert offsets[group] <= row < offsets[group] + filled[group] <= layout.rows
    used = rows[groups < count]
    assert len(set(used.tolist())) == used.size
    assert not (filled % layout.block).any()
    assert layout.rows % layout.block == 0
    if not is_even:  # in order and without gaps, as the loop over blocks relies on
        assert offsets.tolist() == (np.cumsum(filled) - filled).tolist()


@few
@given(grouped(), st.integers(1, 8))
def test_members_of_rows_inverts_rows_of_members(case, block):
    groups, count = case
    rank, sizes = dispatch.rank_within(jnp.asarray(groups), count=count)
    layout = dispatch.packed(sizes, total=groups.size, block=block)
    rows = dispatch.rows_of(jnp.asarray(groups), rank, layout)
    members = np.asarray(dispatch.members_of(rows, rows=layout.rows))
    for row, member in enumerate(members.tolist()):
        assert member == groups.size or rows[member] == row
    assert (
        sorted(m for m in members.tolist() if m < groups.size)
        == np.flatnonzero(groups < count).tolist()
    )


@few
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 30), st.data())
def test_groups_of_rows_are_those_that_the_sizes_say(sources, groups, spare, data):
    sizes = np.asarray(
        data.draw(
            st.lists(
                st.lists(st.integers(0, 5), min_size=groups, max_size=groups),
                min_size=sources,
                max_size=sources,
            )
        ),
        np.int32,
    )
    rows = max(int(sizes.sum(axis=1).max()) + spare, 1)
    found = dispatch.groups_of(jnp.asarray(sizes), rows=rows)
    for source in range(sources):
        expected = np.repeat(np.arange(groups), sizes[source])
        expected = np.concatenate([expected, np.full(rows - expected.size, groups)])
        assert found[source].tolist() == expected.tolist()


@few
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.data())
def test_what_exceeds_a_limit_is_turned_away_last_come_first(devices, held, most, data):
    count = devices * held
    groups = data.draw(st.lists(st.integers(0, count), min_size=1, max_size=24))
    found = dispatch.admit(jnp.asarray(groups, jnp.int32), count=count, most=most, among=held)
    room = [most] * devices
    expected = []
    for group in groups:
        fits = group < count and room[group // held] > 0
        if fits:
            room[group // held] -= 1
        expected.append(group if fits else count)
    assert found.tolist() == expected


@few
@given(st.integers(1, 6), st.integers(1, 3), st.data())
def test_the_gradient_of_a_gather_is_that_of_plain_indexing(source, choices, data):
    copies = data.draw(st.permutations(range(source * choices)))
    kept = data.draw(st.integers(0, len(copies)))
    rows = len(copies) + 2
    row_A = np.full(len(copies), rows, np.int32)
    row_A[copies[:kept]] = np.random.default_rng(kept).permutation(rows)[:kept]
    member = np.asarray(dispatch.members_of(jnp.asarray(row_A), rows=rows))
    index = np.where(member < len(copies), member % source, source).astype(np.int32)
    inverse = jnp.asarray(row_A.reshape(choices, source))
    random = np.random.default_rng(0)
    x, weights = random.standard_normal((source, 2)), random.standard_normal((rows, 2))
    index_R = jnp.asarray(index)
    y, pull = jax.vjp(lambda x: dispatch.gather_rows(x, index_R, inverse), jnp.asarray(x))
    plain = np.concatenate([x, np.zeros((1, 2))])
    np.testing.assert_allclose(y, plain[index], rtol=1e-6)
    expected = np.zeros((source + 1, 2))
    np.add.at(expected, index, weights)
    np.testing.assert_allclose(pull(jnp.asarray(weights, y.dtype))[0], expected[:-1], atol=1e-5)
