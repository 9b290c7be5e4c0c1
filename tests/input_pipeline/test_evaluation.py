"""Held-out sets of any size are covered exactly once."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from input_pipeline.evaluation import EvaluationBatches


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lengths=st.lists(st.integers(0, 25), min_size=1, max_size=12).filter(lambda x: max(x) > 1),
    processes=st.sampled_from([1, 2, 4]),
    per_process=st.integers(1, 4),
    packing=st.sampled_from(["pack", "pad"]),
)
def test_every_held_out_token_counts_once_whatever_the_sizes(
    make_dataset, lengths, processes, per_process, packing
) -> None:
    dataset = make_dataset(lengths, split="held_out", packing=packing)
    size = processes * per_process
    shares = [
        EvaluationBatches(dataset, batch=size, rows=rows)
        for rows in np.arange(size).reshape(processes, -1)
    ]
    targets, weights = [], []
    for share in shares:
        batches = list(share)
        assert [index for index, _ in batches] == list(range(len(share)))
        assert all(batch["inputs"].shape == (per_process, 8) for _, batch in batches)
        targets += [batch["targets"] for _, batch in batches]
        weights += [batch["loss_weights"] for _, batch in batches]
    counted = np.concatenate(targets)[np.concatenate(weights) == 1]
    starts = {s for s, n in zip(np.cumsum(lengths) - lengths, lengths) if n}
    assert sorted(counted.tolist()) == [t for t in range(sum(lengths)) if t not in starts]
    assert len({len(share) for share in shares}) == 1


def test_a_held_out_set_is_in_source_order_and_starts_again_each_time(make_dataset) -> None:
    dataset = make_dataset([9] * 19, split="held_out", sequence_length=8)
    batches = EvaluationBatches(dataset, batch=4, rows=np.arange(4))
    assert len(batches) == 5
    first, second = (np.concatenate([b["inputs"] for _, b in batches]) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(first[:19, 0], np.arange(19) * 9)
    assert not first[19:].any()


def test_max_batches_takes_the_first(make_dataset) -> None:
    dataset = make_dataset([9] * 19, split="held_out")
    few = EvaluationBatches(dataset, batch=4, rows=np.arange(4), max_batches=2)
    assert [index for index, _ in few] == [0, 1]
    assert len(few) == 2


@pytest.mark.parametrize(("batch", "rows"), [(0, [0]), (4, [4]), (4, [-1]), (4, [])])
def test_rows_outside_the_batch_are_refused(make_dataset, batch, rows) -> None:
    with pytest.raises(ValueError, match="not in a batch"):
        EvaluationBatches(make_dataset([9]), batch=batch, rows=np.array(rows, np.int64))
