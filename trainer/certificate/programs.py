"""Small programs to compare: the rule sets as users load them, tiny models, batches by hand.

Shape suffixes: B rows, T length.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from models.decoder_config import DecoderConfig
from partitioning.mesh import build_mesh
from partitioning.mesh_config import AXES, MeshConfig, PipelineConfig, RulesConfig
from trainer import config
from trainer.optimizer_config import SGD, OptimizerConfig, ScheduleConfig
from trainer.program import Program, build_program, build_task
from trainer.run_config import LanguageModel, RunConfig, TrainConfig
from trainer.task import Task

ROWS, LENGTH, VOCAB = 32, 16, 64


@functools.cache
def load(*, model: str = "tiny", rules: str = "fsdp", optimizer: str = "sgd") -> RunConfig:
    """Returns the run that these parts of configs/ make."""
    parts = {"models": model, "partitioning": rules, "optimizers": optimizer}
    files = [f"configs/{folder}/{name}.gin" for folder, name in parts.items()]
    bindings = [
        "RunConfig.task = @LanguageModel()",
        "ScheduleConfig.peak = 0.1",
        "TrainConfig.steps = 10",
        "DataConfig.global_batch = 32",
        "DataConfig.sequence_length = 16",
    ]
    return config.load([*files, "configs/data/stdlib_bytes.gin"], bindings).run


def run(
    model: DecoderConfig,
    *,
    rules: str,
    mesh: MeshConfig,
    rows: int,
    length: int,
    optimizer: str = "adamw",
    microbatches: int = 1,
    pipeline: PipelineConfig = PipelineConfig(),  # noqa: B008 - frozen
) -> RunConfig:
    """Returns a run with a small decoder, for programs that are only compiled."""
    loaded = load(rules=rules, optimizer=optimizer)
    return dataclasses.replace(
        loaded,
        task=LanguageModel(model=model),
        mesh=mesh,
        pipeline=pipeline,
        data=dataclasses.replace(loaded.data, global_batch=rows, sequence_length=length),
        train=dataclasses.replace(loaded.train, microbatches=microbatches),
    )


def rules(name: str) -> RulesConfig:
    """Returns the tables of configs/partitioning/<name>.gin."""
    return load(rules=name).rules


def decoder(**changes: Any) -> DecoderConfig:
    """Returns a decoder with 8 query heads and 2 key/value heads, 32 wide, in float64."""
    wide = {"dtype": "float64", "param_dtype": "float64"}
    shape = {"vocab_size": VOCAB, "embed_dim": 32, "layers": 2, "heads": 8, "kv_heads": 2}
    return DecoderConfig(**{**shape, "mlp_dim": 48, **wide, **changes})


def program(
    model: DecoderConfig,
    *,
    mesh: MeshConfig = MeshConfig(),  # noqa: B008 - frozen
    rules: RulesConfig = RulesConfig(),  # noqa: B008 - frozen
    optimizer: OptimizerConfig = SGD(),  # noqa: B008 - frozen
    schedule: ScheduleConfig = ScheduleConfig(peak=0.1, name="constant"),  # noqa: B008 - frozen
    train: Mapping[str, Any] = types.MappingProxyType({}),
    pipeline: PipelineConfig = PipelineConfig(),  # noqa: B008 - frozen
    z_loss: float = 0.0,
    task: Task | None = None,
) -> Program:
    """Builds a program on the first devices of this machine."""
    language = LanguageModel(model=model, z_loss=z_loss)
    run: Any = types.SimpleNamespace(
        task=language,
        rules=rules,
        optimizer=optimizer,
        schedule=schedule,
        pipeline=pipeline,
        train=TrainConfig(**{"steps": 10, "clip_norm": None, **train}),
    )
    devices = jax.devices()[: math.prod(getattr(mesh, axis) for axis in AXES)]
    mesh_of = build_mesh(mesh, devices=devices)
    return build_program(run, task=task or build_task(language), mesh=mesh_of)


def batch(kind: str, *, rows: int = ROWS, length: int = LENGTH, seed: int = 0) -> dict[str, Any]:
    """Returns [B, T] arrays: ``packed`` documents with a padded end, or one ``padded`` document."""
    random = np.random.default_rng(seed)
    segments = np.zeros((rows, length), np.int32)
    positions = np.zeros((rows, length), np.int32)
    for row in range(rows):
        start, document = 0, 1
        while start < length:
            size = int(random.integers(2, length // 2 if kind == "packed" else length + 1))
            size = min(size, length - start)
            segments[row, start : start + size] = document
            positions[row, start : start + size] = np.arange(size)
            start, document = start + size, document + 1
            if kind == "padded" or random.random() < 0.2:
                break
    inputs = random.integers(0, VOCAB, (rows, length)).astype(np.int32)
    ends = np.concatenate([segments[:, 1:], np.zeros((rows, 1), np.int32)], axis=1) != segments
    return {
        "inputs": inputs,
        "targets": random.integers(0, VOCAB, (rows, length)).astype(np.int32),
        "segment_ids": segments,
        "positions": positions,
        "loss_weights": ((segments != 0) & ~ends).astype(np.float32),
    }
