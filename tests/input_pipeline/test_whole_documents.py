"""Whole documents in rows: none is cut by a row, each comes once per epoch, rows are full."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from input_pipeline.loader import BatchLoader
from input_pipeline.position import PositionRecord
from input_pipeline.rows import RowReader
from input_pipeline.token_store import TokenStore
from input_pipeline.whole_documents import WholeDocuments

LAYOUT = {
    "lengths": st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(lambda x: max(x) > 1),
    "length": st.integers(1, 12),
    "shuffle": st.booleans(),
    "seed": st.integers(0, 50),
}
slow_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def planned(folder, *, length, **options) -> tuple[RowReader, WholeDocuments]:
    store = TokenStore(folder, split="train")
    plan = WholeDocuments(store, sequence_length=length, **options)
    return RowReader(store, plan=plan, sequence_length=length), plan


@slow_fixture
@given(epoch=st.integers(0, 3), **LAYOUT)
def test_each_document_is_whole_in_one_row_of_every_epoch(
    make_store, lengths, length, shuffle, seed, epoch
) -> None:
    rows, plan = planned(make_store(lengths), length=length, shuffle=shuffle, seed=seed)
    count = plan.rows_per_epoch
    batch = rows.rows(np.arange(epoch * count, (epoch + 1) * count))
    starts = np.cumsum(lengths) - lengths
    expected = {
        tuple(range(start, start + min(size - 1, length)))
        for start, size in zip(starts.tolist(), lengths)
        if size > 1
    }
    found = []
    for row in range(count):
        segments = batch["segment_ids"][row]
        for segment in range(1, segments.max() + 1):
            here = np.flatnonzero(segments == segment)
            assert np.array_equal(here, np.arange(here[0], here[-1] + 1))
            assert batch["positions"][row, here].tolist() == list(range(len(here)))
            inputs = batch["inputs"][row, here]
            assert np.array_equal(inputs + 1, batch["targets"][row, here])
            found.append(tuple(inputs.tolist()))
    assert len(found) == len(expected)
    assert set(found) == expected
    assert plan.predictions == sum(map(len, expected)) == batch["loss_weights"].sum()
    assert plan.left_out == sum(max(size - 1 - length, 0) for size in lengths)
    assert plan.cut == sum(size - 1 > length for size in lengths)


@slow_fixture
@given(data=st.data(), **LAYOUT)
def test_any_rows_in_any_order_equal_the_rows_read_in_sequence(
    make_store, lengths, length, shuffle, seed, data
) -> None:
    folder = make_store(lengths)
    rows, plan = planned(folder, length=length, shuffle=shuffle, seed=seed)
    everything = rows.rows(np.arange(3 * plan.rows_per_epoch))
    some = data.draw(st.lists(st.integers(-1, 3 * plan.rows_per_epoch - 1), max_size=12))
    fresh, _ = planned(folder, length=length, shuffle=shuffle, seed=seed)
    got = pickle.loads(pickle.dumps(fresh)).rows(np.array(some, np.int64))
    for name, values in got.items():
        for place, index in enumerate(some):
            expected = everything[name][index] if index >= 0 else np.zeros(length)
            assert np.array_equal(values[place], expected), (name, index)


@slow_fixture
@given(data=st.data(), packing=st.sampled_from(["pack", "whole", "pad"]), **LAYOUT)
def test_a_predictions_weight_is_that_of_its_target(
    make_dataset, lengths, length, shuffle, seed, data, packing
) -> None:
    count = sum(lengths)
    drawn = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    weights = np.array(drawn)
    options = {"shuffle": shuffle, "seed": seed, "packing": packing, "weights": weights}
    assume(weights.any() and length <= sum(max(size - 1, 0) for size in lengths))
    dataset = make_dataset(lengths, sequence_length=length, **options)
    batch = dataset.rows(np.arange(dataset.rows_per_epoch))
    real = batch["segment_ids"] > 0
    assert np.array_equal(batch["loss_weights"][real], weights[batch["targets"][real]])
    assert not batch["loss_weights"][~real].any()


def test_epochs_have_the_same_rows_in_another_order_and_come_again(make_dataset) -> None:
    lengths = [2 + number % 9 for number in range(60)]
    dataset = make_dataset(lengths, packing="whole", seed=3)
    again = make_dataset(lengths, packing="whole", seed=3)
    count = dataset.rows_per_epoch
    epochs = [dataset.rows(np.arange(e * count, (e + 1) * count))["inputs"] for e in range(3)]
    rows = [sorted(map(tuple, epoch.tolist())) for epoch in epochs]
    assert rows[0] == rows[1] == rows[2]
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])
    for number, epoch in reversed(list(enumerate(epochs))):
        same = again.rows(np.arange(number * count, (number + 1) * count))["inputs"]
        assert np.array_equal(same, epoch)


def test_the_seed_draws_which_documents_share_a_row(make_dataset) -> None:
    rows = [
        make_dataset([5] * 40, packing="whole", seed=seed).rows(np.arange(20))["inputs"]
        for seed in (1, 2)
    ]
    groups = [{frozenset(row) for row in inputs.tolist()} for inputs in rows]
    assert groups[0] != groups[1]


def test_batch_size_workers_and_restarts_change_no_row(make_dataset) -> None:
    dataset = make_dataset([2 + number % 9 for number in range(60)], packing="whole", seed=3)
    expected = dataset.rows(np.arange(24))["inputs"]
    for batch, start, workers in [(4, 0, 0), (4, 3, 0), (8, 0, 0), (4, 2, 2)]:
        position = PositionRecord.start(global_batch=batch)
        steps = BatchLoader(
            dataset,
            position=position,
            rows=np.arange(batch),
            start_step=start,
            stop_step=24 // batch,
            workers=workers,
        )
        with steps as loader:
            found = np.concatenate([values["inputs"] for _, values in loader])
        assert np.array_equal(found, expected[start * batch :])


def test_without_shuffling_rows_come_in_the_order_of_their_first_documents(make_dataset) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 9, 50).tolist()
    dataset = make_dataset(lengths, packing="whole", split="held_out")
    inputs = dataset.rows(np.arange(dataset.rows_per_epoch))["inputs"]
    assert sorted(inputs[:, 0].tolist()) == inputs[:, 0].tolist()


@pytest.mark.parametrize(("documents", "length"), [(300, 2048), (20_000, 512), (20_000, 4096)])
def test_rows_are_over_95_percent_full_for_lognormal_lengths(make_store, documents, length) -> None:
    rng = np.random.default_rng(1)
    lengths = np.minimum(rng.lognormal(5.3, 1.0, documents).astype(int) + 2, length + 1)
    _, plan = planned(make_store(lengths, vocab=1 << 23), length=length, shuffle=True, seed=0)
    assert plan.predictions / (plan.rows_per_epoch * length) > 0.95


def test_a_million_documents_are_planned_in_seconds() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(5.5, 1.0, 1_000_000).astype(np.int64) + 2

    class Lengths:
        split = type("Split", (), {"learned": None})

        def __len__(self) -> int:
            return len(lengths)

        def lengths(self, documents: slice) -> np.ndarray:
            return lengths[documents]

    start = time.process_time()
    plan = WholeDocuments(Lengths(), sequence_length=4096, shuffle=True, seed=0)
    assert time.process_time() - start < 10
    assert plan.predictions / (plan.rows_per_epoch * 4096) > 0.99


def test_documents_longer_than_a_row_are_counted_with_what_is_lost(make_store, caplog) -> None:
    lengths = [20, 5, 20]
    # Of the first, the learned part lies beyond the row; of the last, inside.
    weights = np.array([0] * 15 + [1] * 5 + [0, 1, 1, 1, 1] + [0] * 3 + [1] * 17)
    folder = make_store(lengths, weights=weights)
    _, plan = planned(folder, length=8, shuffle=False, seed=0)
    assert (plan.cut, plan.left_out, plan.unlearned) == (2, 22, 1)
    assert "2 of 3 documents are longer than DataConfig.sequence_length=8" in caplog.text
    assert "last 22 tokens are left out, and 1 of them keep nothing to learn" in caplog.text


def test_how_full_the_rows_are_is_said(make_dataset) -> None:
    weights = np.array([0, 1] * 10)
    said = make_dataset([9, 5, 6], packing="whole", weights=weights).describe()
    assert said == (
        "test: 3 documents in 3 rows of 8 an epoch, 70.8% filled; 10 tokens are to be learned"
    )


def test_a_split_in_which_nothing_is_learned_is_refused(make_dataset) -> None:
    with pytest.raises(ValueError, match="nothing to learn: all of its 16 targets have weight 0"):
        make_dataset([10, 10], packing="whole", weights=np.zeros(20, bool))
