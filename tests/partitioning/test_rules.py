"""The resolver: ordered, one mesh axis once per tensor, nothing dropped in silence."""

import math

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from partitioning.mesh_config import AXES, RulesConfig
from partitioning.rules import (
    activation_rules,
    check_rules,
    mesh_axes,
    optimizer_rules,
    resolve,
)

SIZES = {"data": 2, "stage": 1, "fsdp": 4, "expert": 1, "context": 1, "tensor": 2}


def spec(axes, shape, *rules, sizes=SIZES):
    return resolve(axes, shape=shape, rules=rules, sizes=sizes).spec


def test_each_dimension_takes_the_first_candidate_of_its_rule():
    rules = (("embed", "fsdp"), ("mlp", "tensor"))
    assert spec(("embed", "mlp"), (8, 8), *rules) == P("fsdp", "tensor")


def test_rules_that_come_first_choose_first():
    first, second = ("a", "fsdp", None), ("b", "fsdp", None)
    assert spec(("a", "b"), (8, 8), first, second) == P("fsdp", None)
    assert spec(("a", "b"), (8, 8), second, first) == P(None, "fsdp")


def test_a_candidate_whose_axis_is_taken_gives_way_to_the_next():
    found = resolve(
        ("a", "b"),
        shape=(8, 8),
        rules=(("a", "fsdp"), ("b", "fsdp", "tensor")),
        sizes=SIZES,
    )
    assert found.spec == P("fsdp", "tensor")
    assert found.notes == ("b -> 'tensor' ('fsdp': 'fsdp' already splits another dimension)",)


def test_two_dimensions_of_one_name_share_its_candidates():
    assert spec(("a", "a"), (8, 8), ("a", "fsdp", "tensor")) == P("fsdp", "tensor")


def test_a_candidate_that_does_not_divide_gives_way_to_the_next():
    assert spec(("a",), (6,), ("a", "fsdp", "tensor")) == P("tensor")
    assert spec(("a",), (3,), ("a", "fsdp", "tensor", None)) == P(None)


def test_several_mesh_axes_split_one_dimension_by_their_product():
    assert spec(("a",), (16,), ("a", ("data", "fsdp"))) == P(("data", "fsdp"))
    with pytest.raises(ValueError, match="12 is not a multiple of 8"):
        spec(("a",), (12,), ("a", ("data", "fsdp")))


def test_mesh_axes_of_size_one_are_left_out():
    assert spec(("a",), (3,), ("a", ("stage", "context"))) == P(None)
    assert spec(("a",), (8,), ("a", ("stage", "fsdp"))) == P("fsdp")


def test_none_in_the_table_and_none_in_the_tensor_leave_a_dimension_whole():
    assert spec(("a", None), (3, 5), ("a", None)) == P(None, None)


def test_where_nothing_fits_and_the_rule_does_not_end_in_none_it_is_an_error():
    with pytest.raises(ValueError, match=r"w: no candidate .*'a' fits its size 6.*multiple of 4"):
        resolve(("a",), shape=(6,), rules=(("a", "fsdp"),), sizes=SIZES, name="w")


def test_an_unknown_name_is_an_error_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"'emebd' has no rule\. Did you mean 'embed'"):
        spec(("emebd",), (8,), ("embed", "fsdp"), ("mlp", "tensor"))


def test_names_and_shape_must_be_as_many():
    with pytest.raises(ValueError, match=r"2 logical axes \('a', 'a'\) for shape \(8,\)"):
        spec(("a", "a"), (8,), ("a", None))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ((("embed", "model"),), "'embed' names the mesh axis 'model', which does not exist"),
        ((("embed", ("fsdp", "x")),), "names the mesh axis 'x'.*Mesh axes: data, stage, fsdp"),
        ((("embed",),), r"\('embed',\) is not \(logical axis, candidate"),
        ((("embed", "fsdp"), ("embed", None)), "two rules for 'embed'"),
        (((None, "fsdp"),), "is not"),
    ],
)
def test_a_table_that_cannot_work_is_refused(rules, message):
    """P009: the compiler never sees a wrong rule."""
    with pytest.raises(ValueError, match=message):
        check_rules(rules, table="parameters")


def test_without_sequence_parallelism_the_residual_is_not_split_over_tensor():
    config = RulesConfig(sequence_parallel=False)
    changed = dict.fromkeys(set(activation_rules(config)) ^ set(config.activations))
    assert {rule[0] for rule in changed} == {"act_length_residual"}
    assert ("act_length_residual", ("context",)) in changed
    assert activation_rules(RulesConfig()) == RulesConfig().activations


def test_optimizer_state_follows_the_parameters_unless_it_has_its_own_table():
    own = (("embed", "data"),)
    assert optimizer_rules(RulesConfig()) == RulesConfig().parameters
    assert optimizer_rules(RulesConfig(optimizer=own)) == own


names = st.sampled_from(["a", "b", "c"])
candidate = st.one_of(
    st.none(),
    st.sampled_from(AXES),
    st.lists(st.sampled_from(AXES), min_size=2, max_size=3, unique=True).map(tuple),
)
tables = st.tuples(*(st.lists(candidate, min_size=1, max_size=3) for _ in "abc")).flatmap(
    lambda each: st.permutations([(name, *c) for name, c in zip("abc", each, strict=True)])
)
meshes = st.fixed_dictionaries({axis: st.sampled_from([1, 2, 3, 4]) for axis in AXES})


@settings(max_examples=300, deadline=None)
@given(
    tables,
    meshes,
    st.lists(st.tuples(names, st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])), max_size=4),
)
def test_what_is_resolved_can_always_be_laid_out(table, sizes, dimensions):
    axes = tuple(name for name, _ in dimensions)
    shape = tuple(size for _, size in dimensions)
    try:
        found = resolve(axes, shape=shape, rules=table, sizes=sizes).spec
    except ValueError as error:
        event(str(error).split(" of ")[0])  # every refusal is "tensor: no candidate"
        return
    used = [axis for entry in found for axis in mesh_axes(entry)]
    assert len(found) == len(shape)
    assert len(used) == len(set(used))
    assert all(sizes[axis] > 1 for axis in used)
    by_name = {rule[0]: rule[1:] for rule in table}
    for axis, size, entry in zip(axes, shape, found, strict=True):
        parts = mesh_axes(entry)
        assert size % math.prod(sizes[part] for part in parts) == 0
        offered = [tuple(part for part in mesh_axes(c) if sizes[part] > 1) for c in by_name[axis]]
        assert parts in offered


@settings(max_examples=100, deadline=None)
@given(tables, meshes)
def test_a_rule_that_ends_in_none_never_fails(table, sizes):
    ended = [(*rule, None) for rule in table]
    resolve(("a", "b", "c"), shape=(7, 7, 7), rules=ended, sizes=sizes)
