import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.mfu import Machine, added, attention_flops, label, multiplied

machines = st.builds(
    Machine,
    parameters=st.floats(1e6, 1e13),
    devices=st.integers(1, 20_000),
    peak=st.floats(1e12, 1e16),
)
losses = st.lists(st.floats(0, 0.5), max_size=6)


@given(machines, st.floats(0, 1))
def test_tokens_per_second_and_mfu_are_inverse(machine, mfu):
    assert machine.mfu(machine.tokens_per_second(mfu)) == pytest.approx(mfu)


@given(machines, st.floats(1, 1e12))
def test_attention_lowers_the_ceiling(machine, attention):
    more = dataclasses.replace(machine, attention=attention)
    assert more.ceiling <= machine.ceiling


def test_causal_attention_is_half():
    sizes = {"width": 8192, "length": 4096}
    assert attention_flops(80, **sizes) == 2 * attention_flops(80, causal=True, **sizes)


@given(losses)
def test_losses_multiplied_leave_at_least_what_added_ones_do(shares):
    assert multiplied(shares) >= added(shares) - 1e-9
    assert 0 <= multiplied(shares) <= 1


@pytest.mark.parametrize(
    ("mfu", "word"),
    [
        (0.0, "critical"),
        (0.2999, "critical"),
        (0.30, "suboptimal"),
        (0.45, "good"),
        (0.60, "excellent"),
        (0.70, "excellent"),
        (0.7001, "outstanding"),
    ],
)
def test_ranges(mfu, word):
    assert label(mfu).startswith(word)
