"""How fast data is read and made ready: ``python -m benchmarks.input [--json]``.

Compares one process's rows and loader with the floor (slices of a memory map), with plain Grain
(one Python call per example) and, where it is installed, with torch's DataLoader, on the same
synthetic tokens, in turns. Not equal work: the others return one array of cut-up tokens; ours packs
documents and returns inputs, targets, weights, segments and positions. Tokens are per CPU second of
this process, threads included. Imports the input pipeline, Grain, and torch if it can.
"""

import importlib
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grain
import numpy as np
from absl import app, flags

from benchmarks.output import JSON
from input_pipeline.corpus import Corpus, open_corpus
from input_pipeline.data_config import (
    Bytes,
    DataConfig,
    JsonLines,
    SourceConfig,
    StandardLibrary,
    TextFiles,
    TokenizerConfig,
    TokenShards,
    TrainedBpe,
)
from input_pipeline.dataset import Dataset, build_dataset
from input_pipeline.loader import BatchLoader
from input_pipeline.manifest import Manifest
from input_pipeline.position import PositionRecord
from input_pipeline.source import split_ragged
from input_pipeline.token_store import StoreRecord, TokenStore
from input_pipeline.token_writer import write_tokens
from input_pipeline.tokenization import prepare_in_cache

BATCH = 32
VOCAB = 32_000
FAR = 10_000_000

flags.declare_key_flag("json")  # listed by --help
_SECONDS = flags.DEFINE_float("seconds", 1.0, "CPU seconds per measurement.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each is measured, in turns.")
_LENGTH = flags.DEFINE_integer("sequence_length", 2048, "Tokens per row.")
_TOKENS = flags.DEFINE_integer("tokens", 40_000_000, "Size of the synthetic dataset.")


class _Slices:
    """Rows cut from a memory map: what the others read."""

    def __init__(self, path: Path, *, length: int) -> None:
        self._tokens = np.memmap(path, dtype="<u2", mode="r")
        self._length = length

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def __getitem__(self, index: int) -> np.ndarray:
        start = int(index) * self._length
        return self._tokens[start : start + self._length].astype(np.int32)


def synthetic_store(folder: Path, *, tokens: int, mean_length: int) -> Path:
    """Writes documents of random lengths and tokens; returns the folder."""
    generator = np.random.default_rng(0)
    lengths = 1 + generator.geometric(1 / mean_length, size=tokens // mean_length)
    values = generator.integers(0, VOCAB, size=int(lengths.sum()), dtype=np.uint16)
    manifest = Manifest(name="synthetic", source="random", licence="CC0-1.0", files=())
    write_tokens(folder, manifest=manifest, vocab_size=VOCAB, splits={"train": [(values, lengths)]})
    return folder


def _memmap(slices: _Slices) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(1)
    while True:
        yield np.stack([slices[i] for i in generator.integers(0, len(slices), BATCH)])


def _grain(slices: _Slices) -> Iterator[np.ndarray]:
    steps = grain.MapDataset.source(slices).shuffle(seed=1).repeat(None).batch(BATCH)
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return iter(steps.to_iter_dataset(read))


def _torch(slices: _Slices) -> Iterator[object]:
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(slices, batch_size=BATCH, shuffle=True, num_workers=0)
    while True:
        yield from loader


def _rows(dataset: Dataset) -> Iterator[dict[str, np.ndarray]]:
    position = PositionRecord.start(global_batch=BATCH)
    step = 0
    while True:
        yield dataset.rows(position.examples(step))
        step += 1


def _loader(dataset: Dataset, *, start: int = 0) -> BatchLoader:
    return BatchLoader(
        dataset,
        position=PositionRecord.start(global_batch=BATCH),
        rows=np.arange(BATCH),
        start_step=start,
    )


def _dataset(folder: Path, *, packing: str) -> Dataset:
    config = DataConfig(
        source=TokenShards(path=str(folder)),
        sequence_length=_LENGTH.value,
        global_batch=BATCH,
        packing="pad" if packing == "pad" else "pack",
    )
    return build_dataset(config, split="train", cache_dir=folder)


def reading_speeds(folder: Path) -> dict[str, list[float]]:
    """Returns name -> tokens per CPU second, one per round; padding is not counted."""
    synthetic_store(folder, tokens=_TOKENS.value, mean_length=600)
    slices = _Slices(folder / "train" / "tokens-00000.bin", length=_LENGTH.value)
    packed, padded = (_dataset(folder, packing=packing) for packing in ("pack", "pad"))
    iterators: dict[str, Iterator[object]] = {
        "memmap slices (floor)": _memmap(slices),
        "plain Grain": _grain(slices),
        "lockstep rows, packed": _rows(packed),
        "lockstep rows, padded": _rows(padded),
        "lockstep loader, packed": _loader(packed),
    }
    if importlib.util.find_spec("torch"):
        iterators["torch DataLoader"] = _torch(slices)
    found: dict[str, list[float]] = {name: [] for name in iterators}
    for iterator in iterators.values():
        next(iterator)
    for _ in range(_ROUNDS.value):
        for name, iterator in iterators.items():
            found[name].append(_tokens_per_cpu_second(iterator))
    return found


def _tokens_per_cpu_second(iterator: Iterator[object]) -> float:
    start, tokens = time.process_time(), 0
    while time.process_time() - start < _SECONDS.value:
        batch = next(iterator)
        if isinstance(batch, tuple):
            batch = batch[1]
        if isinstance(batch, dict):
            tokens += int(np.count_nonzero(batch["loss_weights"]))
        else:
            tokens += BATCH * _LENGTH.value
    return tokens / (time.process_time() - start)


def preparing_speeds(folder: Path) -> dict[str, dict[str, float]]:
    """Returns source -> text bytes and tokens per wall second, and seconds in all, cold."""
    lines = folder / "lines"
    lines.mkdir()
    library = open_corpus(StandardLibrary())
    _write_lines(lines / "library.jsonl", library)
    copied = folder / "files"
    _write_files(copied, library)
    sources: dict[str, tuple[SourceConfig, TokenizerConfig]] = {
        "standard library, bpe 4096": (StandardLibrary(), TrainedBpe()),
        "standard library, bytes": (StandardLibrary(), Bytes()),
        "text files, bytes": (TextFiles(root=str(copied), licence="PSF-2.0"), Bytes()),
        "json lines, bytes": (JsonLines(root=str(lines), licence="PSF-2.0"), Bytes()),
    }
    return {
        name: _prepared(source, tokenizer=tokenizer, cache=folder / f"cache{number}")
        for number, (name, (source, tokenizer)) in enumerate(sources.items())
    }


def _prepared(source: SourceConfig, *, tokenizer: TokenizerConfig, cache: Path) -> dict[str, float]:
    start = time.perf_counter()
    folder = prepare_in_cache(source, tokenizer=tokenizer, cache_dir=cache)
    seconds = time.perf_counter() - start
    splits = StoreRecord.read(folder).splits.values()
    return {
        "seconds": seconds,
        "bytes_per_second": sum(split.text_bytes or 0 for split in splits) / seconds,
        "tokens_per_second": sum(split.tokens for split in splits) / seconds,
    }


def _texts(corpus: Corpus) -> list[bytes]:
    source = corpus.splits["train"]
    part = source.read(np.arange(len(source)))
    return split_ragged(part["text"], part["lengths"])


def _write_lines(path: Path, corpus: Corpus) -> None:
    lines = [json.dumps({"text": text.decode()}) + "\n" for text in _texts(corpus)]
    path.write_text("".join(lines), encoding="utf-8")


def _write_files(folder: Path, corpus: Corpus) -> None:
    folder.mkdir()
    for number, text in enumerate(_texts(corpus)):
        (folder / f"{number}.txt").write_bytes(text)


def far_start(folder: Path) -> dict[str, float]:
    """Returns seconds from an opened dataset to the first batch at example 0 and 10,000,000.

    1.5 million short documents: more than one block, the worst case for finding a row.
    """
    synthetic_store(folder, tokens=36_000_000, mean_length=24)
    opened = _seconds(lambda: TokenStore(folder, split="train"))
    planned = _seconds(lambda: _dataset(folder, packing="pack"))
    first: dict[str, float] = {"open_s": opened, "plan_s": planned}
    for name, example in (("at_0_s", 0), ("at_10_million_s", FAR)):
        dataset = _dataset(folder, packing="pack")

        def start(dataset: Dataset = dataset, example: int = example) -> None:
            with _loader(dataset, start=example // BATCH) as loader:
                next(loader)

        first[name] = _seconds(start)
    return first


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure() -> dict[str, object]:
    """Runs everything in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="benchmark-input-"))
    try:
        reading = reading_speeds(folder / "tokens")
        preparing_folder = folder / "preparing"
        preparing_folder.mkdir()
        preparing = preparing_speeds(preparing_folder)
        start = far_start(folder / "short")
    finally:
        shutil.rmtree(folder)
    return {
        "sequence_length": _LENGTH.value,
        "batch": BATCH,
        "reading_tokens_per_cpu_second": {
            name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
            for name, values in reading.items()
        },
        "preparing": preparing,
        "start": start,
    }


def _print_table(result: dict) -> None:
    print(f"Reading, million tokens per CPU second (rows of {result['sequence_length']})")
    for name, speed in result["reading_tokens_per_cpu_second"].items():
        low, middle, high = (speed[key] / 1e6 for key in ("low", "median", "high"))
        print(f"  {name:<28}{middle:8.1f}   [{low:.1f} .. {high:.1f}]")
    if not importlib.util.find_spec("torch"):
        print("  torch DataLoader             not installed")
    print("Preparing, cold")
    for name, row in result["preparing"].items():
        speeds = f"{row['bytes_per_second'] / 1e6:.1f} MB/s, {row['tokens_per_second'] / 1e6:.2f}"
        print(f"  {name:<28}{row['seconds']:8.2f} s   {speeds} M tokens/s")
    print("Start, 1.5 million short documents")
    for name, seconds in result["start"].items():
        print(f"  {name:<28}{seconds:8.3f} s")


def main(argv: list[str]) -> None:
    """Prints the measurements."""
    del argv
    result = measure()
    if JSON.value:
        print(json.dumps(result))
    else:
        _print_table(result)


if __name__ == "__main__":
    app.run(main)
