"""Placing batches: right rows, right shapes, errors at once, nothing left behind."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from input_pipeline.evaluation import EvaluationBatches
from input_pipeline.loader import BatchLoader
from input_pipeline.placement import DevicePrefetcher, local_rows, place
from input_pipeline.position import PositionRecord

BATCH = 8


def sharding(*spec: object) -> NamedSharding:
    """A sharding over four devices as 2 x 2, or over one where there are fewer."""
    size = 2 if len(jax.devices()) >= 4 else 1
    devices = np.array(jax.devices()[: size * size]).reshape(size, size)
    return NamedSharding(Mesh(devices, ("data", "context")), PartitionSpec(*spec))


class Given:
    """Batches from a list; an exception in it is raised where it stands."""

    def __init__(self, *items: object, rows: int = BATCH) -> None:
        self.global_batch, self.rows, self.items = BATCH, np.arange(rows), items

    def __iter__(self):
        for step, item in enumerate(self.items):
            if isinstance(item, Exception):
                raise item
            yield step, {"inputs": item}


def batch(step: int) -> np.ndarray:
    return np.full((BATCH, 4), step, np.int32)


def test_one_process_needs_every_row_under_any_sharding() -> None:
    for spec in [(), ("data",), (None, "context"), ("data", "context"), (("data", "context"),)]:
        assert np.array_equal(local_rows(sharding(*spec), BATCH), np.arange(BATCH))


def test_a_batch_that_the_mesh_does_not_divide_is_named_before_anything_is_read() -> None:
    class Wide:
        spec = PartitionSpec(("data", "fsdp"))
        mesh = type("M", (), {"shape": {"data": 2, "fsdp": 2}, "size": 4})

    with pytest.raises(ValueError, match=r"19 rows.*'data': 2, 'fsdp': 2.*multiple of 4"):
        local_rows(Wide(), 19)


def test_rows_are_those_of_this_process_only() -> None:
    class Half:
        """Looks like process 1 of 2, with two devices of its own."""

        spec = PartitionSpec("data")
        mesh = type("M", (), {"shape": {"data": 4}, "size": 4})

        def addressable_devices_indices_map(self, shape):
            assert shape == (BATCH,)
            return {"d2": (slice(4, 6),), "d3": (slice(6, 8),)}

    assert local_rows(Half(), BATCH).tolist() == [4, 5, 6, 7]


def test_a_global_array_passed_as_a_local_one_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 4 of 8 rows, but the batch has 8"):
        place(batch(0), sharding=sharding("data"), rows=np.arange(4), global_batch=BATCH)


def test_a_loader_made_for_other_rows_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match=r"needs rows 0\.\.7"):
        DevicePrefetcher(Given(batch(0), rows=4), {"inputs": sharding("data")})


def test_the_batches_of_a_run_arrive_whole_in_order_and_waits_are_measured(make_dataset) -> None:
    dataset = make_dataset(range(2, 40))
    position = PositionRecord.start(global_batch=BATCH)
    shardings = dict.fromkeys(("inputs", "loss_weights"), sharding("data", "context"))
    rows = local_rows(shardings["inputs"], BATCH)
    with (
        BatchLoader(dataset, position=position, rows=rows, start_step=2, stop_step=9) as loader,
        DevicePrefetcher(loader, shardings, depth=3) as placed,
    ):
        got = list(placed)
    assert [one.step for one in got] == list(range(2, 9))
    for one in got:
        expected = dataset.rows(position.examples(one.step))
        assert one.arrays.keys() == shardings.keys()
        for name, array in one.arrays.items():
            assert array.sharding == shardings[name]
            assert np.array_equal(array, expected[name])
        assert one.wait_s >= 0


def test_evaluation_batches_can_be_placed_again_and_again(make_dataset) -> None:
    batches = EvaluationBatches(
        make_dataset([9, 30], split="held_out"), batch=BATCH, rows=np.arange(BATCH)
    )
    before = threading.active_count()
    for _ in range(20):
        with DevicePrefetcher(batches, {"inputs": sharding("data")}) as placed:
            assert len(list(placed)) == len(batches)
    assert threading.active_count() == before


def test_no_more_batches_than_the_depth_are_ready() -> None:
    offered = threading.Semaphore(0)

    class Counted(Given):
        def __iter__(self):
            for item in super().__iter__():
                offered.release()
                yield item

    with DevicePrefetcher(
        Counted(*map(batch, range(9))), {"inputs": sharding()}, depth=2
    ) as placed:
        for _ in range(3):  # two ready, and one in the hands of the thread
            assert offered.acquire(timeout=30)
        assert not offered.acquire(timeout=0.2)
        assert next(placed).step == 0
        assert offered.acquire(timeout=30)


def test_an_error_in_reading_is_raised_at_the_next_step() -> None:
    given = Given(batch(0), batch(1), OSError("disk on fire"))
    with DevicePrefetcher(given, {"inputs": sharding()}, depth=5) as placed:
        placed._thread.join(30)
        with pytest.raises(OSError, match="on fire"):
            next(placed)


def test_closing_ends_a_thread_that_waits_for_room() -> None:
    placed = DevicePrefetcher(Given(*map(batch, range(9))), {"inputs": sharding()}, depth=1)
    placed.close()
    placed.close()
    assert not placed._thread.is_alive()
    assert list(placed) == []


def test_the_loops_transfer_guard_does_not_stop_the_prefetcher() -> None:
    with (
        jax.transfer_guard("disallow"),
        DevicePrefetcher(Given(batch(0)), {"inputs": sharding()}) as placed,
    ):
        assert next(placed).step == 0


def test_columns_are_placed_in_the_order_given_and_the_step_holds_the_same_tokens():
    order = np.array([0, 3, 1, 2])
    tokens = np.arange(BATCH * 4, dtype=np.int32).reshape(BATCH, 4)
    with DevicePrefetcher(
        Given(tokens), {"inputs": sharding("data", "context")}, columns=order
    ) as it:
        placed = next(it).arrays["inputs"]
    np.testing.assert_array_equal(placed, tokens[:, order])
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(shard.data, tokens[:, order][shard.index])


def test_an_order_of_another_length_is_refused():
    with pytest.raises(ValueError, match="An order of 5 columns for a batch of shape"):
        place(
            batch(0),
            sharding=sharding("data"),
            rows=np.arange(BATCH),
            global_batch=BATCH,
            columns=np.arange(5),
        )
