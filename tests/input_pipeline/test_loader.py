"""The batch of a step is the same for any processes, workers, prefetch and restarts (promise 1)."""

import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from input_pipeline.loader import BatchLoader
from input_pipeline.position import PositionRecord

LENGTHS = [5, 0, 17, 2, 40, 1, 9, 9, 3, 28, 6, 11]
BATCH = 8
POSITION = PositionRecord.start(global_batch=BATCH).skip(at_step=4, rows=5)


@pytest.fixture
def dataset(make_dataset):
    return make_dataset(LENGTHS, sequence_length=7, seed=11)


def taken(dataset, *, rows, start=0, stop, **options) -> list[tuple[int, dict]]:
    with BatchLoader(
        dataset, position=POSITION, rows=rows, start_step=start, stop_step=stop, **options
    ) as loader:
        return list(loader)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(
    processes=st.sampled_from([1, 2, 4]),
    prefetch=st.integers(0, 5),
    restarts=st.lists(st.integers(0, 12), max_size=4),
)
def test_batches_do_not_depend_on_processes_prefetch_or_restarts(
    dataset, processes, prefetch, restarts
) -> None:
    edges = [0, *sorted(restarts), 12]
    shares = []
    for process in range(processes):
        rows = np.arange(BATCH).reshape(processes, -1)[process]
        parts = [
            taken(dataset, rows=rows, start=a, stop=b, prefetch=prefetch)
            for a, b in itertools.pairwise(edges)
        ]
        shares.append([batch for part in parts for batch in part])
    for number, of_step in enumerate(zip(*shares, strict=True)):
        assert {step for step, _ in of_step} == {number}
        whole = {
            name: np.concatenate([batch[name] for _, batch in of_step]) for name in of_step[0][1]
        }
        assert same(whole, dataset.rows(POSITION.examples(number)))
    assert len(shares[0]) == 12


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_continue_from_the_step_asked_for_and_change_nothing(dataset, workers) -> None:
    rows = np.array([1, 6])
    got = taken(dataset, rows=rows, start=5, stop=11, workers=workers, prefetch=3)
    expected = taken(dataset, rows=rows, start=5, stop=11)
    assert not multiprocessing.active_children()
    assert [step for step, _ in got] == list(range(5, 11))
    assert all(same(a, b) for (_, a), (_, b) in zip(got, expected, strict=True))


def test_an_error_in_a_worker_reaches_the_caller(make_dataset) -> None:
    dataset = make_dataset(LENGTHS)
    store = dataset.reader._store
    path = store.folder / store.split.shards[0].path
    path.write_bytes(np.full(path.stat().st_size // 2, 60_000, "<u2").tobytes())
    with (
        BatchLoader(
            dataset, position=PositionRecord.start(global_batch=4), rows=np.arange(4), workers=1
        ) as loader,
        pytest.raises(ValueError, match="holds token 60000"),
    ):
        next(loader)


def test_a_loader_that_is_closed_leaves_no_thread(dataset) -> None:
    taken(dataset, rows=np.arange(2), stop=2)
    before = threading.active_count()
    for _ in range(20):
        with BatchLoader(dataset, position=POSITION, rows=np.arange(2)) as loader:
            next(loader)
    for thread in threading.enumerate():
        if thread.name.startswith("grain-prefetch"):
            thread.join(10)
    assert threading.active_count() <= before


def test_a_closed_loader_gives_nothing_more(dataset) -> None:
    loader = BatchLoader(dataset, position=POSITION, rows=np.arange(2))
    next(loader)
    loader.close()
    loader.close()
    assert list(loader) == []


@pytest.mark.parametrize("rows", [[], [8], [-1], [[0]]])
def test_rows_outside_the_global_batch_are_refused(dataset, rows) -> None:
    with pytest.raises(ValueError, match="ow"):
        BatchLoader(dataset, position=POSITION, rows=np.array(rows))


def test_a_change_of_batch_size_needs_a_new_loader(dataset) -> None:
    position = PositionRecord.start(global_batch=4).change_batch(at_step=6, global_batch=8)
    with pytest.raises(ValueError, match="changes from 4 to 8 at step 6"):
        BatchLoader(dataset, position=position, rows=np.arange(4), stop_step=10)
    BatchLoader(dataset, position=position, rows=np.arange(4), stop_step=6).close()
    BatchLoader(dataset, position=position, rows=np.arange(8), start_step=6).close()


PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from input_pipeline.data_config import DataConfig, TokenShards
from input_pipeline.dataset import build_dataset
from input_pipeline.loader import BatchLoader
from input_pipeline.position import PositionRecord

if __name__ == "__main__":
    folder, wait = sys.argv[1:]
    config = DataConfig(source=TokenShards(path=folder), sequence_length=8, global_batch=4)
    dataset = build_dataset(config, split="train", cache_dir=Path(folder))
    position = PositionRecord.start(global_batch=4)
    loader = BatchLoader(dataset, position=position, rows=np.arange(4), workers=2)
    kept = [next(loader) for _ in range(10)]
    children = [p.pid for p in __import__("multiprocessing").active_children()]
    backends = sys.modules["jax"]._src.xla_bridge._backends
    print(*children, len(backends), flush=True)
    if wait == "wait":
        time.sleep(600)
    if wait == "close":
        loader.close()
"""


@pytest.fixture
def program(tmp_path, make_store):
    """Starts the program above; returns the process and the worker's process ids."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    started = []

    def start(wait: str) -> tuple[subprocess.Popen, list[int]]:
        process = subprocess.Popen(
            [sys.executable, str(file), str(make_store(LENGTHS)), wait],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        *children, backends = map(int, process.stdout.readline().split())
        assert backends == 0, "reading data initialised a jax backend"
        return process, children

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["close", "forget"])
def test_a_program_with_workers_ends_with_nothing_on_stderr(program, ending) -> None:
    process, children = program(ending)
    assert len(children) == 2
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0
    assert stderr == ""


@pytest.mark.slow
def test_workers_ignore_signals_to_the_group_and_end_when_their_parent_is_killed(program) -> None:
    process, children = program("wait")
    handles = [os.pidfd_open(child) for child in children]
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
    assert not _ended(handles, timeout_s=0.5)
    process.kill()
    assert _ended(handles, timeout_s=60)


def _ended(handles: list[int], *, timeout_s: float) -> bool:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    left = set(handles)
    while left:
        ready = poll.poll(timeout_s * 1000)
        if not ready:
            return False
        for handle, _ in ready:
            left.discard(handle)
            poll.unregister(handle)
    return True
