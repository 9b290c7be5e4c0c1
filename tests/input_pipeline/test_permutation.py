"""Permutations are bijections, pinned for ever, and differ by key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.permutation import derive_key, permute


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
def test_every_index_is_hit_once(size: int, seed: int) -> None:
    got = permute(np.arange(size), size=size, key=derive_key(seed))
    assert np.array_equal(np.sort(got), np.arange(size))


@given(size=st.integers(1, 2**62), seed=st.integers(0, 99), data=st.data())
def test_any_size_up_to_2_62_keeps_distinct_indices_distinct_and_in_range(
    size: int, seed: int, data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=20))
    got = permute(np.array(some, np.int64), size=size, key=derive_key(seed))
    assert len(set(got.tolist())) == len(some)
    assert got.min() >= 0
    assert got.max() < size


def test_the_order_is_pinned_so_that_no_upgrade_changes_a_running_job() -> None:
    got = permute(np.arange(10), size=10, key=derive_key(7, "documents", 0, 0))
    assert got.tolist() == GOLDEN_TEN
    far = permute(np.array([0, 1, 2**40]), size=5 * 10**13, key=derive_key(7))
    assert far.tolist() == GOLDEN_FAR


def test_keys_differ_by_seed_epoch_and_type() -> None:
    keys = [derive_key(0, 1), derive_key(1, 0), derive_key(0, "1"), derive_key(0, 1, 0)]
    assert len({key.tobytes() for key in keys}) == len(keys)


def test_the_order_looks_random() -> None:
    size = 4096
    got = permute(np.arange(size), size=size, key=derive_key(3))
    assert abs(np.corrcoef(np.arange(size), got)[0, 1]) < 0.05
    assert np.count_nonzero(np.abs(np.diff(got)) == 1) < 12


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="not in"):
        permute(np.array([5]), size=5, key=derive_key(0))


GOLDEN_TEN = [8, 3, 1, 9, 2, 6, 0, 4, 5, 7]
GOLDEN_FAR = [5419489434043, 43778105753700, 20635186067913]
