import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.planner.calculators.activations import Layer, layers_in_flight

sizes = st.integers(1, 64)
layers = st.builds(
    Layer, rows=sizes, length=sizes, width=sizes, tensor=sizes, sequence_parallel=st.booleans()
)


@given(layers, st.integers(1, 64))
def test_what_is_computed_again_is_not_kept(layer, heads):
    assert layer.full() < layer.selective() < layer.nothing_recomputed(heads=heads)


@given(layers)
def test_sequence_parallelism_never_takes_more(layer):
    split = dataclasses.replace(layer, sequence_parallel=True)
    whole = dataclasses.replace(layer, sequence_parallel=False)
    assert split.selective() <= whole.selective()
    assert split.full() * layer.tensor == pytest.approx(whole.full())


def test_published_figures():
    """Korthikanti et al. 2022: GPT-3 keeps 2.9 times 34 s b h if nothing is recomputed."""
    gpt3 = Layer(rows=1, length=2048, width=12_288, tensor=8)
    assert gpt3.nothing_recomputed(heads=96) / gpt3.selective() == pytest.approx(1 + 80 / 34)


@given(st.integers(1, 16), st.integers(1, 40))
def test_so_much_waits_on_the_first_stage_of_1f1b(stages, microbatches):
    warm = min(stages - 1, microbatches)
    order = [1] * warm + [1, -1] * (microbatches - warm) + [-1] * warm
    assert order.count(1) == order.count(-1) == microbatches
    most = max(itertools.accumulate(order))
    assert layers_in_flight(3 * stages, stages=stages, microbatches=microbatches) == 3 * most


def test_the_fullest_stage_counts_where_layers_do_not_divide():
    assert layers_in_flight(10, stages=4, microbatches=8) == 12
