"""Two processes read disjoint halves of each batch, and together exactly what one would."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.data_config import DataConfig, TokenShards
from input_pipeline.dataset import build_dataset
from input_pipeline.position import PositionRecord

PROGRAM = """
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from input_pipeline.data_config import DataConfig, TokenShards
from input_pipeline.dataset import build_dataset
from input_pipeline.loader import BatchLoader
from input_pipeline.placement import DevicePrefetcher, local_rows
from input_pipeline.position import PositionRecord

folder, port, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(
    f"127.0.0.1:{port}", 2, rank, cluster_detection_method="deactivate"
)
config = DataConfig(source=TokenShards(path=folder), sequence_length=8, global_batch=6)
dataset = build_dataset(config, split="train", cache_dir=Path(folder))
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
rows = local_rows(sharding, 6)
position = PositionRecord.start(global_batch=6)
with (
    BatchLoader(dataset, position=position, rows=rows, stop_step=4) as loader,
    DevicePrefetcher(loader, {"inputs": sharding}) as placed,
):
    for step, arrays, _ in placed:
        whole = arrays["inputs"]
        assert whole.shape == (6, 8), whole.shape
        [mine] = whole.addressable_shards
        np.save(f"{folder}/got-{step}-{rank}.npy", mine.data)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_two_processes_hold_the_batch_of_one(make_store, tmp_path) -> None:
    folder = make_store(range(2, 30))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(port), str(rank)], env=environment
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    config = DataConfig(source=TokenShards(path=str(folder)), sequence_length=8, global_batch=6)
    dataset = build_dataset(config, split="train", cache_dir=tmp_path)
    position = PositionRecord.start(global_batch=6)
    for step in range(4):
        halves = [np.load(folder / f"got-{step}-{rank}.npy") for rank in range(2)]
        assert [half.shape for half in halves] == [(3, 8), (3, 8)]
        expected = dataset.rows(position.examples(step))["inputs"]
        assert np.array_equal(np.concatenate(halves), expected)
