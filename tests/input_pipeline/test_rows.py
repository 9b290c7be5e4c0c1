"""Packing and padding: every token is predicted once, rows are random access, epochs differ."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from input_pipeline.packing import PackingPlan
from input_pipeline.rows import RowReader
from input_pipeline.token_store import TokenStore

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(lambda x: max(x) > 1)
LAYOUT = {
    "lengths": LENGTHS,
    "length": st.integers(1, 12),
    "pad": st.booleans(),
    "shuffle": st.booleans(),
    "seed": st.integers(0, 50),
    "block": st.sampled_from([1, 2, 3, 7, 1 << 20]),
    "shard": st.sampled_from([1, 5, 40, 1 << 28]),
}
slow_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def reader(folder: Path, *, length: int, **options: object) -> tuple[RowReader, PackingPlan]:
    store = TokenStore(folder, split="train")
    plan = PackingPlan(store, sequence_length=length, **options)
    return RowReader(store, plan=plan, sequence_length=length), plan


def laid_out(documents: list[np.ndarray], *, length: int, pad: bool) -> list[list[tuple]]:
    """The promise in plain Python: rows of (input, target, segment, position)."""
    rows: list[list[tuple]] = [[]]
    for document in documents:
        segment = None
        for source, target in itertools.pairwise(document):
            if len(rows[-1]) == length or (pad and segment is None and rows[-1]):
                rows.append([])
                segment = None
            if segment is None:
                segment = rows[-1][-1][2] + 1 if rows[-1] else 1
                position = 0
            rows[-1].append((source, target, segment, position))
            position += 1
    return rows


@slow_fixture
@given(epoch=st.integers(0, 3), **LAYOUT)
def test_every_token_after_a_documents_first_is_predicted_once_per_epoch(
    make_store, lengths, length, pad, shuffle, seed, block, shard, epoch
) -> None:
    folder = make_store(lengths, shard_tokens=shard)
    rows, plan = reader(folder, length=length, pad=pad, shuffle=shuffle, seed=seed, block=block)
    count = plan.rows_per_epoch
    batch = rows.rows(np.arange(epoch * count, (epoch + 1) * count))
    real = batch["loss_weights"] == 1
    starts = np.cumsum(lengths) - lengths
    firsts = {start for start, size in zip(starts, lengths) if size}
    expected = [token for token in range(sum(lengths)) if token not in firsts]
    assert sorted(batch["targets"][real].tolist()) == expected
    # Tokens count upwards inside a document, so each target follows its input.
    assert np.array_equal(batch["inputs"][real] + 1, batch["targets"][real])
    assert plan.predictions == len(expected)


@slow_fixture
@given(**LAYOUT)
def test_rows_are_the_documents_laid_end_to_end(
    make_store, lengths, length, pad, shuffle, seed, block, shard
) -> None:
    folder = make_store(lengths, shard_tokens=shard)
    rows, plan = reader(folder, length=length, pad=pad, shuffle=shuffle, seed=seed, block=block)
    batch = rows.rows(np.arange(plan.rows_per_epoch))
    order = list(dict.fromkeys(_documents(batch, lengths)))
    starts = np.cumsum(lengths) - lengths
    documents = [np.arange(starts[d], starts[d] + lengths[d]) for d in order]
    expected = laid_out(documents, length=length, pad=pad)
    assert len(expected) == plan.rows_per_epoch
    for number, row in enumerate(expected):
        filled = [*row, *[(0, 0, 0, 0)] * (length - len(row))]
        got = zip(*(batch[n][number] for n in ("inputs", "targets", "segment_ids", "positions")))
        assert list(got) == filled
        assert batch["loss_weights"][number].tolist() == [1.0] * len(row) + [0.0] * (
            length - len(row)
        )
    if not shuffle:
        assert order == sorted(order)


def _documents(batch: dict[str, np.ndarray], lengths: list[int]) -> list[int]:
    real = batch["loss_weights"] == 1
    stops = np.cumsum(lengths)
    return np.searchsorted(stops, batch["inputs"][real], side="right").tolist()


@slow_fixture
@given(data=st.data(), **LAYOUT)
def test_any_rows_in_any_order_equal_the_rows_read_in_sequence(
    make_store, lengths, length, pad, shuffle, seed, block, shard, data
) -> None:
    folder = make_store(lengths, shard_tokens=shard)
    options = {"length": length, "pad": pad, "shuffle": shuffle, "seed": seed, "block": block}
    rows, plan = reader(folder, **options)
    everything = rows.rows(np.arange(3 * plan.rows_per_epoch))
    some = data.draw(st.lists(st.integers(-1, 3 * plan.rows_per_epoch - 1), max_size=12))
    fresh, _ = reader(folder, **options)
    got = fresh.rows(np.array(some, np.int64))
    for name, values in got.items():
        for place, index in enumerate(some):
            expected = everything[name][index] if index >= 0 else np.zeros(length)
            assert np.array_equal(values[place], expected), (name, index)


def test_epochs_differ_and_both_come_again(make_dataset) -> None:
    lengths = list(range(2, 40))
    first, again = make_dataset(lengths, seed=3), make_dataset(lengths, seed=3)
    count = first.rows_per_epoch
    epochs = [first.rows(np.arange(e * count, (e + 1) * count))["inputs"] for e in range(3)]
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])
    for number, epoch in reversed(list(enumerate(epochs))):
        rows = again.rows(np.arange(number * count, (number + 1) * count))
        assert np.array_equal(rows["inputs"], epoch)


def test_the_data_seed_changes_the_order(make_dataset) -> None:
    orders = [
        make_dataset(range(2, 40), seed=seed).rows(np.arange(20))["inputs"] for seed in (1, 2)
    ]
    assert not np.array_equal(*orders)


def test_row_indices_far_beyond_32_bits_work(make_dataset) -> None:
    dataset = make_dataset([9, 30, 4])
    epoch = 10**13
    rows = dataset.rows(np.arange(dataset.rows_per_epoch) + epoch * dataset.rows_per_epoch)
    assert int(rows["loss_weights"].sum()) == dataset.tokens_per_epoch


def test_types_are_what_a_batch_promises(make_dataset) -> None:
    batch = make_dataset([9, 30]).rows(np.array([0, -1]))
    kinds = {name: (array.dtype.name, array.shape) for name, array in batch.items()}
    assert kinds == {
        "inputs": ("int32", (2, 8)),
        "targets": ("int32", (2, 8)),
        "loss_weights": ("float32", (2, 8)),
        "segment_ids": ("int32", (2, 8)),
        "positions": ("int32", (2, 8)),
    }


def test_a_token_outside_the_vocabulary_is_named(make_store, tmp_path) -> None:
    folder = make_store([5, 6], vocab=20)
    rows, plan = reader(folder, length=4, pad=False, shuffle=False, seed=0)
    path = folder / "train" / "tokens-00000.bin"
    path.write_bytes(np.full(11, 999, "<u2").tobytes())
    with pytest.raises(ValueError, match="holds token 999"):
        rows.rows(np.arange(plan.rows_per_epoch))
