"""Tokenizes documents once, into token shards kept in a cache.

Imports NumPy and absl. Promises: the result is keyed by everything that decides it (dataset digest,
tokenizer digest, chat template, format); it appears whole or not at all.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging

from input_pipeline import baselines as baselines_lib
from input_pipeline.cache import make_once
from input_pipeline.corpus import Corpus, open_corpus
from input_pipeline.data_config import SourceConfig, Split, TokenizerConfig, TrainedBpe
from input_pipeline.document_encoder import DocumentEncoder, encoder_of
from input_pipeline.huggingface_tokenizer import train_bpe
from input_pipeline.manifest import digest_of
from input_pipeline.permutation import derive_key, permute
from input_pipeline.progress import Progress
from input_pipeline.source import Source, read_all, split_ragged
from input_pipeline.token_store import STORE_VERSION, SplitRecord, StoreRecord
from input_pipeline.token_writer import SplitWriter
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_files import load_tokenizer, tokenizer_from_json

TRAINING_BYTES = 1 << 26
"""Text that a tokenizer is trained on, where the training split has more."""
_DOCUMENTS_PER_READ = 256
_BPE_VERSION = 1


def prepare_in_cache(source: SourceConfig, *, tokenizer: TokenizerConfig, cache_dir: Path) -> Path:
    """Returns the folder in ``cache_dir`` that holds the token shards, made if need be.

    Raises:
      ValueError: the text or the tokenizer is unfit; see `open_corpus` and `load_tokenizer`.
    """
    corpus = open_corpus(source)
    ready = ready_tokenizer(corpus, config=tokenizer, cache_dir=cache_dir)
    encoder = encoder_of(source, tokenizer=ready)
    deciding = [corpus.manifest.digest, ready.digest, STORE_VERSION]
    key = digest_of([*deciding, encoder.digest] if encoder.digest else deciding)[:32]
    folder = cache_dir / "tokens" / f"{corpus.manifest.name}-{key}"

    def make(partial: Path) -> None:
        write_store(partial, corpus, tokenizer=ready, encoder=encoder)

    return make_once(folder, make=make)


def ready_tokenizer(corpus: Corpus, *, config: TokenizerConfig, cache_dir: Path) -> Tokenizer:
    """Returns the tokenizer that ``config`` names, trained on ``corpus`` and cached if need be.

    Raises:
      ValueError: it cannot be loaded, or is to be trained on something that is no text.
    """
    if not isinstance(config, TrainedBpe):
        return load_tokenizer(config)
    if not corpus.plain:
        raise ValueError(
            "TrainedBpe learns its tokens from documents, not from conversations. Name the "
            "tokenizer of the model that is trained further: DataConfig.tokenizer="
            "@TokenizerFile() with its folder as TokenizerFile.path."
        )
    key = digest_of([corpus.manifest.digest, dataclasses.asdict(config), _BPE_VERSION])[:32]
    folder = cache_dir / "tokenizers" / f"{corpus.manifest.name}-bpe{config.vocab_size}-{key}"
    path = "tokenizer.json"

    def make(partial: Path) -> None:
        logging.info("Training a byte-pair encoding of %d tokens.", config.vocab_size)
        trained = train_bpe(_training_texts(corpus.splits["train"]), config=config)
        (partial / path).write_text(trained.to_json(), encoding="utf-8")

    made = make_once(folder, make=make) / path
    return tokenizer_from_json(made.read_text(encoding="utf-8"), where=str(made))


def _training_texts(source: Source) -> Iterator[str]:
    """Yields documents in a fixed random order until `TRAINING_BYTES` are reached."""
    count, left = len(source), TRAINING_BYTES
    key = derive_key("tokenizer training", 0)
    for start in range(0, count, _DOCUMENTS_PER_READ):
        places = np.arange(start, min(start + _DOCUMENTS_PER_READ, count))
        part = source.read(permute(places, size=count, key=key))
        for text in split_ragged(part["text"], part["lengths"]):
            if left <= 0:
                return
            left -= len(text)
            yield text.decode()


def write_store(
    folder: Path, corpus: Corpus, *, tokenizer: Tokenizer, encoder: DocumentEncoder
) -> StoreRecord:
    """Writes both splits of ``corpus`` and, of text, their baselines into the empty ``folder``."""
    splits: dict[str, SplitRecord] = {
        split: _write_split(
            folder, split=split, corpus=corpus, tokenizer=tokenizer, encoder=encoder
        )
        for split in corpus.splits
    }
    record = StoreRecord.of(
        corpus.manifest,
        tokenizer=encoder.tokenizer_json(),
        vocab_size=tokenizer.vocab_size,
        splits=splits,
    )
    scores = None
    if corpus.plain:
        scores = baselines_lib.fit_and_score(corpus.splits["train"], corpus.splits["held_out"])
    if scores is not None:
        text = json.dumps(dataclasses.asdict(scores), indent=1)
        (folder / "baselines.json").write_text(text + "\n", encoding="utf-8")
    record.write(folder)
    return record


def read_baselines(folder: Path) -> baselines_lib.Baselines | None:
    """Returns the scores that were written beside the token shards, if any."""
    path = folder / "baselines.json"
    if not path.is_file():
        return None
    return baselines_lib.Baselines(**json.loads(path.read_text(encoding="utf-8")))


def _write_split(
    folder: Path, *, split: Split, corpus: Corpus, tokenizer: Tokenizer, encoder: DocumentEncoder
) -> SplitRecord:
    source = corpus.splits[split]
    writer = SplitWriter(folder, split=split, vocab_size=tokenizer.vocab_size)
    progress = Progress(f"Tokenizing {split}", unit="documents")
    documents = text_bytes = counted = 0
    for part in read_all(source, at_once=_DOCUMENTS_PER_READ):
        texts = split_ragged(part["text"], part["lengths"])
        encoded = encoder.encode(texts, where=functools.partial(_where, source, documents))
        writer.append(encoded.tokens, lengths=encoded.lengths, weights=encoded.weights)
        text_bytes += len(part["text"])
        counted += int(tokenizer.token_bytes[encoded.tokens].sum())
        documents += len(texts)
        progress(documents, len(source))
    if not corpus.plain:
        return writer.finish()
    if counted != text_bytes:
        logging.warning(
            "The tokens of %s stand for %d bytes, but the text has %d: this tokenizer changes text "
            "(it normalizes, or adds spaces), so bits per byte are off by that ratio.",
            split,
            counted,
            text_bytes,
        )
    return writer.finish(text_bytes=text_bytes)


def _where(source: Source, before: int, number: int) -> str:
    return source.where(before + number)
