import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.state import (
    STATE,
    Layout,
    checkpoint_bytes,
    least_replicas,
    per_device,
)

sizes = st.integers(1, 64)
layouts = st.builds(Layout, tensor=sizes, stage=sizes, data=sizes, context=sizes)
parameters = st.floats(1e6, 1e13)


@given(parameters, layouts)
def test_a_higher_stage_never_takes_more_and_the_last_shares_everything(count, layout):
    totals = [per_device(count, zero=zero, layout=layout).total for zero in (0, 1, 2, 3)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] * layout.tensor * layout.stage == pytest.approx(STATE * count)
    assert totals[3] * layout.devices == pytest.approx(STATE * count)


@given(parameters, layouts)
def test_without_replicas_all_stages_are_alike(count, layout):
    alone = Layout(tensor=layout.tensor, stage=layout.stage)
    assert len({per_device(count, zero=zero, layout=alone).total for zero in (0, 1, 2, 3)}) == 1


@given(parameters, st.integers(1, 512))
def test_so_many_replicas_just_fit(count, replicas):
    room = per_device(count, zero=3, layout=Layout(data=replicas)).total
    assert least_replicas(count, room=room, layout=Layout()) == pytest.approx(replicas)


@given(parameters)
def test_gradients_are_not_saved(count):
    whole = per_device(count, zero=0, layout=Layout())
    assert checkpoint_bytes(count) == whole.optimizer
    assert checkpoint_bytes(count, copy=True) == pytest.approx(whole.total - whole.gradients)
