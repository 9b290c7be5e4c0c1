"""The position record loses no row, repeats none, and survives JSON."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.position import PositionEntry, PositionRecord

CHANGES = st.lists(
    st.tuples(st.sampled_from(["batch", "skip"]), st.integers(0, 4), st.integers(1, 7)), max_size=6
)


def built(first_batch: int, changes: list[tuple[str, int, int]]) -> PositionRecord:
    record, step = PositionRecord.start(global_batch=first_batch), 0
    for kind, gap, amount in changes:
        step += gap
        if kind == "batch":
            record = record.change_batch(at_step=step, global_batch=amount)
        else:
            record = record.skip(at_step=step, rows=amount)
    return record


@given(first_batch=st.integers(1, 8), changes=CHANGES)
def test_every_row_is_read_once_or_skipped_once_through_any_changes(
    first_batch: int, changes: list[tuple[str, int, int]]
) -> None:
    record = built(first_batch, changes)
    last = record.entries[-1].from_step + 3
    read = np.concatenate([record.examples(step) for step in range(last)])
    skipped = [
        np.arange(e.first_example - e.skipped, e.first_example) for e in record.entries if e.skipped
    ]
    everything = np.sort(np.concatenate([read, *skipped]))
    assert np.array_equal(everything, np.arange(len(everything)))


@given(first_batch=st.integers(1, 8), changes=CHANGES)
def test_json_round_trip_is_exact(first_batch: int, changes: list[tuple[str, int, int]]) -> None:
    record = built(first_batch, changes)
    assert PositionRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@given(first_batch=st.integers(1, 8), changes=CHANGES, at=st.integers(0, 5))
def test_a_change_leaves_earlier_steps_as_they_were(
    first_batch: int, changes: list[tuple[str, int, int]], at: int
) -> None:
    before = built(first_batch, changes)
    step = before.entries[-1].from_step + at
    after = before.change_batch(at_step=step, global_batch=9).skip(at_step=step, rows=2)
    for earlier in range(step):
        assert np.array_equal(before.examples(earlier), after.examples(earlier))


def test_rows_are_64_bit_and_overflow_is_an_error() -> None:
    record = PositionRecord.start(global_batch=2**20)
    assert record.examples(2**40)[0] == 2**60
    with pytest.raises(ValueError, match="64-bit"):
        record.examples(2**43)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_example": 11}, "lost or repeated"),
        ({"skipped": 1}, "lost or repeated"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"global_batch": 2.0}, "global_batch=2.0"),
        ({"global_batch": True}, "global_batch=True"),
        ({"from_step": 0}, "steps must rise"),
        ({"weights": []}, "weights"),
        ({"weights": [-1.0]}, "weights"),
        ({"weights": "x"}, "weights"),
        ({"extra": 1}, "keys"),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(change: dict, message: str) -> None:
    value = PositionRecord.start(global_batch=4).change_batch(at_step=3, global_batch=2).to_json()
    value[1] |= change
    with pytest.raises(ValueError, match=message):
        PositionRecord.from_json(value)


@pytest.mark.parametrize("value", [None, [], {}, [1], "[]"])
def test_what_is_not_a_record_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="osition"):
        PositionRecord.from_json(value)


def test_history_cannot_be_changed() -> None:
    record = PositionRecord.start(global_batch=4).change_batch(at_step=10, global_batch=2)
    with pytest.raises(ValueError, match="stays as it is"):
        record.skip(at_step=9, rows=1)


def test_the_first_entry_must_say_what_it_skips() -> None:
    with pytest.raises(ValueError, match="skipped"):
        PositionRecord((PositionEntry(from_step=0, first_example=5, global_batch=1),))
