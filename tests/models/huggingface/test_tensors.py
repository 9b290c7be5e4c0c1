"""Layouts: their dimensions to ours, back, and in parts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.huggingface.loading import read_part
from models.huggingface.tensors import Layout, Tensor

LAYOUTS = (
    "norm -> norm",
    "vocab embed -> embed vocab",
    "(heads head_dim) embed -> embed heads head_dim",
    "embed (heads head_dim) -> heads head_dim embed",
    "(heads head_dim) -> heads head_dim",
    "(a b c) d -> d c a b",
)


class Folder:
    """A folder that holds one tensor."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def read(self, name: str, part: tuple[slice, ...]) -> np.ndarray:
        return self.values[part]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, np.ndarray, tuple[slice, ...]]:
    layout = Layout(draw(st.sampled_from(LAYOUTS)))
    rank = len(layout.text.partition("->")[2].split())
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    ends = [draw(st.tuples(st.integers(0, n - 1), st.integers(1, n))) for n in shape]
    part = tuple(slice(min(a, b - 1), max(a + 1, b)) for a, b in ends)
    return layout, np.arange(math.prod(shape)).reshape(shape), part


@given(cases())
def test_a_layout_is_undone_by_its_other_direction(case) -> None:
    layout, ours, _ = case
    theirs = layout.to_theirs(ours)
    assert theirs.shape == layout.their_shape(ours.shape)
    np.testing.assert_array_equal(layout.to_ours(theirs, shape=ours.shape), ours)


@given(cases())
def test_a_part_is_read_without_the_rest(case) -> None:
    layout, ours, part = case
    tensor = Tensor(name="x", path="x", at=(), shape=ours.shape, layout=layout)
    found = read_part(Folder(layout.to_theirs(ours)), tensor, part)
    np.testing.assert_array_equal(found, ours[part])


def test_only_what_the_part_needs_is_asked_for() -> None:
    layout = Layout("(heads head_dim) embed -> embed heads head_dim")
    slices, held = layout.their_part((8, 4, 2), (slice(0, 4), slice(1, 3), slice(0, 2)))
    assert (slices, held) == ((slice(2, 6), slice(0, 4)), (4, 2, 2))


@pytest.mark.parametrize("text", ["a b -> a", "a -> a b", "a a -> a a"])
def test_both_sides_name_the_same_dimensions(text: str) -> None:
    with pytest.raises(ValueError, match="same dimensions"):
        Layout(text)
