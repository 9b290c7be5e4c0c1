import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.communication import (
    Ring,
    Sharded,
    StepTimes,
    all_reduce,
    expert_exchange,
    ring_factor,
)
from partitioning.planner.calculators.state import Layout

times = st.builds(
    StepTimes,
    forward=st.floats(0.01, 10),
    backward=st.floats(0.01, 10),
    communication=st.floats(0.01, 10),
    optimizer=st.floats(0.01, 10),
)


def ring_all_reduce(rows):
    """Runs one: n devices with n chunks each; returns the result and what each device sent."""
    n = len(rows)
    sent = 0
    for first, reduce in ((0, True), (1, False)):
        for step in range(n - 1):
            chunks = [(i + first - step) % n for i in range(n)]
            moving = [rows[i, chunk] for i, chunk in enumerate(chunks)]
            for i, (chunk, value) in enumerate(zip(chunks, moving, strict=True)):
                there = (i + 1) % n
                rows[there, chunk] = rows[there, chunk] + value if reduce else value
            sent += 1
    return rows, sent / n


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_ring_sends_what_the_formula_says_and_sums(devices, seed):
    values = np.random.default_rng(seed).integers(0, 100, (devices, devices))
    total = values.sum(axis=0)
    result, sent = ring_all_reduce(values.copy())
    assert (result == total).all()
    assert sent == pytest.approx(ring_factor(devices))


@given(st.integers(2, 10_000))
def test_twice_the_message_is_never_reached(devices):
    assert 1 <= ring_factor(devices) < 2
    assert ring_factor(devices) < ring_factor(devices + 1)


def test_its_time_is_that_over_the_bandwidth():
    assert all_reduce(450e6, devices=4, bandwidth=450e9) == pytest.approx(1.5e-3)


@given(times, st.floats(0, 1))
def test_overlap_hides_at_most_the_backward_pass(step, overlap):
    sequential = step.forward + step.backward + step.communication + step.optimizer
    assert step.total() == pytest.approx(sequential)
    assert step.perfect <= step.total(overlap) + 1e-9
    assert step.total(overlap) <= sequential + 1e-9
    longest = max(step.backward, step.communication)
    assert step.perfect == pytest.approx(step.forward + longest + step.optimizer)


def test_weights_are_gathered_for_each_microbatch_and_gradients_scattered_once():
    one = Sharded(parameters=8e9, layout=Layout(tensor=2, stage=2, data=4))
    assert one.shard == 4e9
    assert one.once == 3e9
    assert one.step() == 9e9
    assert one.step(microbatches=4) == 27e9
    assert one.step(microbatches=4, scatter_once=False) == 36e9


@given(st.integers(1, 64), st.integers(1, 1024), st.integers(1, 64))
def test_a_ring_of_attention_passes_every_share_but_its_own(length, keys, context):
    ring = Ring(length=length * context, keys=keys, context=context)
    share = ring.keys_and_values / context
    assert ring.sent == pytest.approx((context - 1) * share)


def test_alone_an_expert_exchanges_nothing():
    assert expert_exchange(4096, experts=1, choices=2, width=4096) == 0
