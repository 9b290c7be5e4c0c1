"""Every printed form of device groups gives the devices, and the mesh axes that they span."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.device_groups import axes_of, groups, pairs

SIZES = {"data": 2, "fsdp": 4, "tensor": 3}


def along(*axes: str) -> list[list[int]]:
    """Groups along mesh axes, by definition."""
    ids = np.arange(24).reshape(tuple(SIZES.values()))
    inside = [list(SIZES).index(axis) for axis in axes]
    around = [i for i in range(3) if i not in inside]
    size = int(np.prod([ids.shape[i] for i in inside]))
    return ids.transpose(around + inside).reshape(-1, size).tolist()


def printed(members: list[list[int]]) -> str:
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in members) + "}"


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("[8,3]<=[24]", ("tensor",)),
        ("[6,4]<=[2,4,3]T(0,2,1)", ("fsdp",)),
        ("[12,2]<=[2,12]T(1,0)", ("data",)),
        ("[2,12]<=[24]", ("fsdp", "tensor")),
        ("mesh['data'=2,'fsdp'=4,'tensor'=3] {'tensor'}", ("tensor",)),
        ("mesh['data'=2,'fsdp'=4,'tensor'=3] {'data','fsdp'}", ("data", "fsdp")),
        ("@mesh['axis_0'=8,'axis_1'=3] {'axis_0'}", ("data", "fsdp")),
        ("mesh['axis_0'=3,'axis_1'=8], device_ids=([8,3]<=[24]) {'axis_0'}", None),
        ("mesh['a'=3,'b'=8] device_ids=([3,8]<=[8,3]T(1,0)) {'b'}", ("data", "fsdp")),
        ("mesh['a'=8,'b'=3] {'a':(1)2}", ("data",)),
        ("mesh['a'=8,'b'=3] {'a':(2)4}", ("fsdp",)),
        ("mesh['a'=24] {'a':(2)4}", ("fsdp",)),
        ("{}", ("data", "fsdp", "tensor")),
    ],
)
def test_every_form_names_its_axes(text, axes):
    found = groups(f"channel_id=1, replica_groups={text}, use_global_device_ids=true", devices=24)
    assert found is not None
    assert sorted(found.reshape(-1).tolist()) == list(range(24))
    if axes is not None:
        assert sorted(map(sorted, found.tolist())) == sorted(map(sorted, along(*axes)))
        assert axes_of(found, sizes=SIZES) == axes


@given(st.sets(st.sampled_from(sorted(SIZES)), min_size=1), st.randoms())
def test_lists_of_any_order_span_the_axes_that_they_were_made_of(axes, random):
    members = along(*axes)
    random.shuffle(members)
    for row in members:
        random.shuffle(row)
    found = groups(f"replica_groups={printed(members)}, dimensions={{0}}")
    assert found is not None
    assert found.tolist() == members
    assert set(axes_of(found, sizes=SIZES)) == axes


@given(st.permutations(range(3)))
def test_transposed_ranges_are_what_numpy_makes_of_them(order):
    text = f"replica_groups=[6,4]<=[2,4,3]T({','.join(map(str, order))})"
    found = groups(text)
    assert found is not None
    assert found.tolist() == np.arange(24).reshape(2, 4, 3).transpose(order).reshape(6, 4).tolist()


@given(
    st.permutations(["a", "b", "c"]).flatmap(lambda names: st.sampled_from(
        [names[:size] for size in (1, 2, 3)]
    ))
)  # fmt: skip
def test_named_axes_are_taken_in_the_order_of_their_names(names):
    found = groups(
        "replica_groups=mesh['a'=2,'b'=4,'c'=3] {" + ",".join(f"'{n}'" for n in names) + "}"
    )
    assert found is not None
    sizes = {"a": 2, "b": 4, "c": 3}
    grid = np.arange(24).reshape(2, 4, 3)
    for row, member in itertools.product(range(found.shape[0]), range(found.shape[1])):
        at = np.unravel_index(member, [sizes[name] for name in names])
        where = dict(zip(names, at, strict=True))
        first = dict(zip("abc", np.argwhere(grid == found[row, 0])[0], strict=True))
        assert found[row, member] == grid[tuple(where.get(n, first[n]) for n in "abc")]


def test_groups_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="different sizes"):
        groups("replica_groups={{0,1},{2}}")


def test_an_unknown_form_is_refused_with_its_text():
    with pytest.raises(ValueError, match="spiral"):
        groups("replica_groups=spiral(4)")


def test_all_devices_needs_their_number():
    with pytest.raises(ValueError, match="number"):
        groups("replica_groups={}")


def test_a_permutation_spans_the_axes_whose_coordinate_changes():
    ring = [(row * 3 + i, row * 3 + (i + 1) % 3) for row in range(8) for i in range(3)]
    text = "source_target_pairs={" + ",".join(f"{{{a},{b}}}" for a, b in ring) + "}"
    found = pairs(f"channel_id=3, {text}, metadata={{}}")
    assert found is not None
    assert found.tolist() == [list(pair) for pair in ring]
    assert axes_of(found, sizes=SIZES) == ("tensor",)
    shift = np.asarray([(i, i + 12) for i in range(12)])
    assert axes_of(shift, sizes=SIZES) == ("data",)


def test_other_instructions_have_neither():
    assert groups("dimensions={0}") is None
    assert pairs("dimensions={0}") is None
