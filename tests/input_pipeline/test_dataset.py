"""The one entry to data: what it carries, and how what does not fit is said."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.data_config import (
    Bytes,
    DataConfig,
    TextFiles,
    TokenizerFile,
    TokenShards,
    TrainedBpe,
)
from input_pipeline.dataset import build_dataset
from input_pipeline.token_store import StoreRecord
from input_pipeline.tokenization import prepare_in_cache


@pytest.fixture
def text(tmp_path: Path) -> TextFiles:
    root = tmp_path / "text"
    root.mkdir()
    for number in range(40):
        (root / f"{number}.txt").write_text(f"the text of number {number}\n" * (1 + number % 5))
    return TextFiles(root=str(root), licence="CC0-1.0", held_out=0.3)


@pytest.fixture
def config(text: TextFiles) -> DataConfig:
    return DataConfig(source=text, tokenizer=Bytes(), sequence_length=16, global_batch=4)


def test_text_becomes_rows_that_decode_to_the_text(config, tmp_path) -> None:
    dataset = build_dataset(replace(config, packing="pad"), split="held_out", cache_dir=tmp_path)
    rows = dataset.rows(np.arange(dataset.rows_per_epoch))
    text = dataset.tokenizer.decode(rows["targets"][rows["loss_weights"] == 1])
    root = Path(config.source.root)
    files = {path.read_text() for path in root.iterdir()}
    assert text
    assert all(part in "".join(files) for part in text.splitlines())
    counted = dataset.token_bytes[rows["targets"]] * rows["loss_weights"]
    assert counted.sum() == len(text.encode())
    assert dataset.baselines.bigram_bits_per_byte > 0
    assert dataset.manifest.licence == "CC0-1.0"


def test_both_splits_are_one_dataset_and_disjoint(config, tmp_path) -> None:
    train, held_out = (
        build_dataset(config, split=split, cache_dir=tmp_path) for split in ("train", "held_out")
    )
    assert train.digest == held_out.digest
    assert train.vocab_size == held_out.vocab_size == 259
    whole = sum(path.stat().st_size for path in Path(config.source.root).iterdir())
    ends = 40  # each document's end is predicted, its start is not
    assert train.tokens_per_epoch + held_out.tokens_per_epoch == whole + ends


def test_prepared_shards_are_the_same_dataset_as_the_text(config, tmp_path) -> None:
    direct = build_dataset(config, split="train", cache_dir=tmp_path)
    folder = prepare_in_cache(config.source, tokenizer=Bytes(), cache_dir=tmp_path)
    shards = replace(config, source=TokenShards(path=str(folder)), tokenizer=None)
    ready = build_dataset(shards, split="train", cache_dir=tmp_path / "unused")
    assert ready.digest == direct.digest
    assert ready.tokenizer.digest == direct.tokenizer.digest
    assert ready.baselines == direct.baselines
    for name, values in ready.rows(np.arange(20)).items():
        assert np.array_equal(values, direct.rows(np.arange(20))[name])
    assert not (tmp_path / "unused").exists()


def test_a_changed_text_is_a_changed_dataset(config, tmp_path) -> None:
    before = build_dataset(config, split="train", cache_dir=tmp_path).digest
    (Path(config.source.root) / "0.txt").write_text("changed")
    assert build_dataset(config, split="train", cache_dir=tmp_path).digest != before


def test_layout_and_seed_are_the_configs_business_not_the_digests(config, tmp_path) -> None:
    digests = {
        build_dataset(replace(config, **change), split="train", cache_dir=tmp_path).digest
        for change in ({}, {"seed": 5}, {"sequence_length": 8}, {"packing": "pad"})
    }
    assert len(digests) == 1


def test_shards_with_another_tokenizer_are_refused(config, tmp_path) -> None:
    folder = prepare_in_cache(config.source, tokenizer=Bytes(), cache_dir=tmp_path)
    shards = replace(config, source=TokenShards(path=str(folder)))
    build_dataset(shards, split="train", cache_dir=tmp_path)
    made = prepare_in_cache(config.source, tokenizer=TrainedBpe(vocab_size=270), cache_dir=tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(_spec(made))
    other = replace(shards, tokenizer=TokenizerFile(path=str(path), bos="<|bos|>", eos="<|eos|>"))
    with pytest.raises(ValueError, match=r"270 tokens, but the shards.*259 tokens"):
        build_dataset(other, split="train", cache_dir=tmp_path)


def _spec(folder: Path) -> str:
    return json.dumps(json.loads(StoreRecord.read(folder).tokenizer)["spec"])


def test_text_without_a_tokenizer_says_what_to_set(config, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"TextFiles holds text.*@Bytes\(\)"):
        build_dataset(replace(config, tokenizer=None), split="train", cache_dir=tmp_path)


def test_a_model_with_too_few_tokens_is_refused(config, tmp_path) -> None:
    dataset = build_dataset(config, split="train", cache_dir=tmp_path)
    dataset.check_vocabulary(259)
    dataset.check_vocabulary(512)
    with pytest.raises(ValueError, match=r"vocabulary of 258.*at least 259"):
        dataset.check_vocabulary(258)


def test_a_row_longer_than_all_text_is_refused(config, tmp_path) -> None:
    with pytest.raises(ValueError, match="sequence_length=100000 is longer than the whole"):
        build_dataset(replace(config, sequence_length=100_000), split="train", cache_dir=tmp_path)


def test_nothing_held_out_says_so(config, tmp_path) -> None:
    source = replace(config.source, held_out=0.0)
    with pytest.raises(ValueError, match=r"'held_out' .* is empty.*raise TextFiles\.held_out"):
        build_dataset(replace(config, source=source), split="held_out", cache_dir=tmp_path)


def test_a_missing_token_store_says_how_to_make_one(config, tmp_path) -> None:
    shards = replace(config, source=TokenShards(path=str(tmp_path / "none")), tokenizer=None)
    with pytest.raises(ValueError, match=r"input_pipeline\.prepare"):
        build_dataset(shards, split="train", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_length": 0},
        {"global_batch": -1},
        {"seed": -1},
        {"workers": -1},
        {"prefetch": -1},
        {"packing": "stack"},
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(config, change) -> None:
    [name] = change
    with pytest.raises(ValueError, match=f"DataConfig.{name}"):
        replace(config, **change)


def test_rows_need_neither_jax_nor_grain() -> None:
    program = (
        "import sys; import input_pipeline.dataset, input_pipeline.evaluation; "
        "sys.exit(bool({'jax', 'grain', 'tokenizers', 'tensorflow', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0
