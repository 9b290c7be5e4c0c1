"""Small datasets for the tests of the input pipeline."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.data_config import DataConfig, TokenShards
from input_pipeline.dataset import Dataset, build_dataset
from input_pipeline.manifest import Manifest
from input_pipeline.token_store import StoreRecord
from input_pipeline.token_writer import SplitWriter

VOCAB = 50_000

MakeStore = Callable[..., Path]
MakeDataset = Callable[..., Dataset]


def distinct_tokens(lengths: Sequence[int]) -> list[np.ndarray]:
    """Documents in which every token of the dataset has its own value."""
    stops = np.cumsum([0, *lengths])
    return [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(stops)]


@pytest.fixture
def make_store(tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Writes documents of given lengths, with distinct tokens, to both splits of a store."""

    def make(
        lengths: Sequence[int],
        *,
        shard_tokens: int = 1 << 28,
        vocab: int = VOCAB,
        weights: np.ndarray | None = None,
    ) -> Path:
        folder = tmp_path_factory.mktemp("store")
        splits = {}
        for split in ("train", "held_out"):
            writer = SplitWriter(folder, split=split, vocab_size=vocab, shard_tokens=shard_tokens)
            tokens = np.concatenate([np.zeros(0, np.int32), *distinct_tokens(lengths)])
            writer.append(tokens, lengths=np.array(lengths, np.int64), weights=weights)
            splits[split] = writer.finish()
        StoreRecord.of(
            Manifest(name="test", source="test", licence="CC0-1.0", files=()),
            tokenizer=None,
            vocab_size=vocab,
            splits=splits,
        ).write(folder)
        return folder

    return make


@pytest.fixture
def make_dataset(make_store: MakeStore, tmp_path: Path) -> MakeDataset:
    """Builds a dataset of documents of given lengths, with distinct tokens."""

    def make(
        lengths: Sequence[int],
        *,
        split: str = "train",
        weights: np.ndarray | None = None,
        **options: object,
    ) -> Dataset:
        settings = {"sequence_length": 8, "global_batch": 4, **options}
        folder = make_store(lengths, weights=weights)
        config = DataConfig(source=TokenShards(path=str(folder)), **settings)
        return build_dataset(config, split=split, cache_dir=tmp_path)

    return make
