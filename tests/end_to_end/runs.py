"""Starts real training runs through ``python -m trainer.main`` and reads what they left.

The run is small: a two-layer decoder on token shards that are written for the test.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from input_pipeline.manifest import Manifest
from input_pipeline.token_writer import write_tokens

REPOSITORY = pathlib.Path(__file__).parents[2]
VOCAB = 61
CONFIG = """
TrainConfig.steps = 24
DataConfig.global_batch = 4
DataConfig.sequence_length = 16
ScheduleConfig.peak = 1e-2
ScheduleConfig.decay_steps = 24
CheckpointConfig.every = 4
EvaluationConfig.every = 8
LoggingConfig.every = 1
LoggingConfig.tensorboard = False
RunConfig.task = @LanguageModel()
include 'configs/models/tiny.gin'
include 'configs/optimizers/adamw.gin'
include 'configs/partitioning/fsdp.gin'
DataConfig.source = @TokenShards()
TokenShards.path = '{data}'
"""


@dataclasses.dataclass(frozen=True)
class Scene:
    """Where a test's runs live.

    Attributes:
      folder: temporary directory of the test.
      gin: the run file.
    """

    folder: pathlib.Path
    gin: pathlib.Path

    def command(self, run_dir: str, *arguments: str) -> list[str]:
        """Returns the command line of one process."""
        return [
            sys.executable,
            "-m",
            "trainer.main",
            f"--gin_file={self.gin}",
            f"--run_dir={self.folder / run_dir}",
            f"--cache_dir={self.folder / 'cache'}",
            *arguments,
        ]

    def start(
        self, run_dir: str, *arguments: str, environ: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts one process."""
        return subprocess.Popen(
            self.command(run_dir, *arguments),
            cwd=REPOSITORY,
            env={**os.environ, **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, run_dir: str, *arguments: str, expect: int = 0) -> str:
        """Runs one process to its end and returns what it printed."""
        process = self.start(run_dir, *arguments)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == expect, output
        return output

    def run_apart(self, run_dir: str, *arguments: str) -> tuple[int, str, str]:
        """Runs one process and returns its exit code, standard output and standard error."""
        done = subprocess.run(
            self.command(run_dir, *arguments),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def gang(
        self,
        run_dir: str,
        *arguments: str,
        processes: int,
        attempt: int = 1,
        last_rank: Sequence[str] = (),
        environ: dict[str, str] | None = None,
    ) -> list[subprocess.Popen[str]]:
        """Starts the processes of one attempt as a launcher would; ``last_rank`` gets more."""
        port = free_port()
        shared = {
            "LAUNCH_RUN_ID": run_dir,
            "LAUNCH_ATTEMPT": str(attempt),
            "LAUNCH_COORDINATOR": f"127.0.0.1:{port}",
            "LAUNCH_NUM_PROCESSES": str(processes),
            "LAUNCH_LOCAL_DEVICES": "",
            "LAUNCH_STATE_DIR": str(self.folder / "state"),
        }
        (self.folder / "state").mkdir(exist_ok=True)
        extra: list[Sequence[str]] = [*[()] * (processes - 1), last_rank]
        return [
            self.start(
                run_dir,
                *arguments,
                *extra[rank],
                environ={**shared, **(environ or {}), "LAUNCH_PROCESS_ID": str(rank)},
            )
            for rank in range(processes)
        ]

    def copy(self, run_dir: str, name: str) -> pathlib.Path:
        """Copies a run that is not going on, for a test to damage or to continue."""
        return shutil.copytree(self.folder / run_dir, self.folder / name)

    def rows(self, run_dir: str, kind: str = "train") -> dict[int, dict[str, Any]]:
        """Returns step -> row of metrics.jsonl."""
        lines = (self.folder / run_dir / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == kind]
        assert len({row["step"] for row in rows}) == len(rows), "a step appears twice"
        return {row["step"]: row for row in rows}

    def losses(self, run_dir: str) -> list[tuple[int, float]]:
        """Returns what the run reported."""
        return [(step, row["loss"]) for step, row in sorted(self.rows(run_dir).items())]

    def parameters(self, run_dir: str, *, group: str = "model") -> dict[str, np.ndarray]:
        """Returns the parameters of the newest step."""
        from trainer.checkpoints.root import open_root
        from trainer.checkpoints.store import CheckpointStore
        from trainer.run_config import CheckpointConfig

        store = CheckpointStore(
            open_root(self.folder / run_dir), attempt=None, config=CheckpointConfig()
        )
        step = self.folder / run_dir / "checkpoints" / str(store.steps()[-1])
        return read_parameters(step, group=group)


def make_scene(folder: pathlib.Path, *, documents: int = 80, seed: int = 0) -> Scene:
    """Writes a dataset that can be learned, and the run file."""
    rng = np.random.default_rng(seed)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = rng.integers(5, 40, count)
        documents = [(rng.integers(VOCAB) + 3 * np.arange(n)) % VOCAB for n in lengths]
        return np.concatenate(documents).astype(np.int32), lengths

    manifest = Manifest(name="counting", source="made for a test", licence="CC0-1.0", files=())
    splits = {"train": [split(documents)], "held_out": [split(11)]}
    write_tokens(folder / "data", manifest=manifest, vocab_size=VOCAB, splits=splits)
    gin = folder / "run.gin"
    gin.write_text(CONFIG.format(data=folder / "data"))
    return Scene(folder, gin)


def wait_for(process: subprocess.Popen[str], start: str) -> None:
    """Returns when a process has printed a line that starts with ``start``."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith(start):
            return
        seen.append(line)
    raise AssertionError(f"ended without a line that starts with {start!r}:\n{''.join(seen)}")


@contextlib.contextmanager
def mounted(path: pathlib.Path, *options: str) -> Iterator[None]:
    """Mounts something at a path, or skips the test where that is not permitted."""
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@contextlib.contextmanager
def read_only(path: pathlib.Path) -> Iterator[None]:
    """Makes a folder read-only, also for a superuser."""
    with mounted(path, "--bind", str(path)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Waits for all processes and returns what they printed."""
    return [process.communicate(timeout=300)[0] for process in processes]


def free_port() -> int:
    """Returns a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_parameters(step: pathlib.Path, *, group: str = "model") -> dict[str, np.ndarray]:
    """Returns path -> array of the parameters in one checkpointed step, on one device."""
    import jax

    from trainer.checkpoints.parameters import load_params
    from trainer.paths import nest

    tree = json.loads((step / "MANIFEST.json").read_text())["tree"]
    inside = f"groups/{group}/parameters/"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = {
        path.removeprefix(inside): jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=here)
        for path, (shape, dtype) in tree.items()
        if path.startswith(inside)
    }
    leaves = jax.tree.leaves_with_path(load_params(str(step), nest(abstract), group=group))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
