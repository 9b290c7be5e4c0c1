"""The one entry to data: a config becomes rows by global index. Imports NumPy only.

Promise 1: ``dataset.rows(position.examples(step))`` is the global batch of a step, whoever asks,
wherever, and however often.
"""

from pathlib import Path

import numpy as np

from input_pipeline.baselines import Baselines
from input_pipeline.corpus import open_corpus
from input_pipeline.data_config import DataConfig, Split, TokenShards, TrainedBpe
from input_pipeline.document_encoder import encoder_of
from input_pipeline.manifest import Manifest, digest_of
from input_pipeline.packing import PLAN_VERSION, PackingPlan, Plan
from input_pipeline.rows import RowReader
from input_pipeline.token_store import StoreRecord, TokenStore
from input_pipeline.tokenization import prepare_in_cache, read_baselines, ready_tokenizer
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer_files import load_tokenizer, tokenizer_from_json
from input_pipeline.whole_documents import WholeDocuments


class Dataset:
    """One split of a dataset, cut into rows.

    Attributes:
      config: what it was built from.
      split: "train" or "held_out".
      digest: version of text, tokenizer, tokens and layout; saved in every checkpoint.
      manifest: files, digests, licence.
      tokenizer: the one that made the tokens; None where token shards came without one.
      token_bytes: int32 [vocab_size], bytes that each token stands for; None without a tokenizer.
      vocab_size: tokens are below it.
      reader: reads rows by global index; what worker processes get a copy of.
      rows_per_epoch: rows that hold every token once.
      tokens_per_epoch: targets in an epoch, those of weight 0 included.
      baselines: scores of simple models on the held-out text, where there is text.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        config: DataConfig,
        split: Split,
        tokenizer: Tokenizer | None,
        baselines: Baselines | None,
    ) -> None:
        self.config = config
        self.split = split
        self.manifest: Manifest = store.record.manifest
        self.digest = digest_of([store.record.digest, PLAN_VERSION])
        self.tokenizer = tokenizer
        self.token_bytes = None if tokenizer is None else tokenizer.token_bytes
        self.vocab_size = store.record.vocab_size
        self.baselines = baselines
        self._documents = len(store)
        self._learned = store.split.learned
        plan = _plan(store, config=config, shuffle=config.shuffle and split == "train")
        self.reader = RowReader(store, plan=plan, sequence_length=config.sequence_length)
        self.rows_per_epoch = plan.rows_per_epoch
        self.tokens_per_epoch = plan.predictions
        self._check_size(unlearned=getattr(plan, "unlearned", 0))

    def _check_size(self, *, unlearned: int) -> None:
        if not self.tokens_per_epoch:
            raise ValueError(
                f"Split {self.split!r} of dataset {self.manifest.name!r} is empty: it has "
                f"{self._documents} documents and nothing to predict."
                + (self._more_held_out() if self.split == "held_out" else "")
            )
        if self._learned == 0:
            raise ValueError(
                f"Split {self.split!r} of dataset {self.manifest.name!r} has nothing to learn: all "
                f"of its {self.tokens_per_epoch} targets have weight 0."
            )
        if unlearned == self._documents:
            raise ValueError(
                f"Split {self.split!r} of dataset {self.manifest.name!r} has nothing to learn: no "
                f"answer begins within DataConfig.sequence_length={self.config.sequence_length} "
                "tokens. Raise it."
            )
        length = self.config.sequence_length
        shared = self.split == "train" and self.config.packing != "whole"
        if shared and length > self.tokens_per_epoch:
            raise ValueError(
                f"DataConfig.sequence_length={length} is longer than the whole training split of "
                f"dataset {self.manifest.name!r}, which has {self.tokens_per_epoch} tokens."
            )

    def _more_held_out(self) -> str:
        source = self.config.source
        where = f"{type(source).__name__}.held_out"
        if isinstance(source, TokenShards):
            where = "--held_out of input_pipeline.prepare"
        return f" Every run is scored on held-out documents; raise {where}, their share."

    def describe(self) -> str:
        """Returns a line on how the documents lie in rows."""
        length, rows = self.config.sequence_length, self.rows_per_epoch
        learned = "" if self._learned is None else f"; {self._learned:,} tokens are to be learned"
        return (
            f"{self.manifest.name}: {self._documents:,} documents in {rows:,} rows of {length} an "
            f"epoch, {100 * self.tokens_per_epoch / (rows * length):.1f}% filled{learned}"
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ValueError if a model with ``vocab_size`` tokens cannot read this dataset."""
        if vocab_size < self.vocab_size:
            raise ValueError(
                f"The model has a vocabulary of {vocab_size} tokens, but dataset "
                f"{self.manifest.name!r} uses {self.vocab_size}. Set DecoderConfig.vocab_size to "
                f"at least {self.vocab_size}."
            )

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns rows by global index; see `RowReader.rows`."""
        return self.reader.rows(indices)


def _plan(store: TokenStore, *, config: DataConfig, shuffle: bool) -> Plan:
    length, seed = config.sequence_length, config.seed
    if config.packing == "whole":
        return WholeDocuments(store, sequence_length=length, seed=seed, shuffle=shuffle)
    pad = config.packing == "pad"
    return PackingPlan(store, sequence_length=length, pad=pad, seed=seed, shuffle=shuffle)


def build_dataset(config: DataConfig, *, split: Split, cache_dir: Path) -> Dataset:
    """Returns one split of the dataset that ``config`` names, prepared if need be.

    Args:
      config: source, tokenizer and layout.
      split: "train", or "held_out", which is never shuffled.
      cache_dir: where tokenizers and token shards are kept between runs.

    Raises:
      ValueError: the data is missing, empty, malformed or does not fit the config; says what to do.
    """
    folder = _store_folder(config, cache_dir=cache_dir)
    store = TokenStore(folder, split=split)
    tokenizer = None
    if store.record.tokenizer is not None:
        tokenizer = tokenizer_from_json(store.record.tokenizer, where=str(folder))
    if isinstance(config.source, TokenShards) and config.tokenizer is not None:
        _check_tokenizer(store, tokenizer=tokenizer, given=load_tokenizer(config.tokenizer))
    return Dataset(
        store, config=config, split=split, tokenizer=tokenizer, baselines=read_baselines(folder)
    )


def dataset_tokenizer(config: DataConfig, *, cache_dir: Path) -> Tokenizer:
    """Returns the tokenizer of a dataset, without tokenizing the dataset.

    Where the dataset has conversations, their chat template is the tokenizer's own.

    Raises:
      ValueError: there is none, or it cannot be loaded.
    """
    if isinstance(config.source, TokenShards):
        record = StoreRecord.read(Path(config.source.path))
        if record.tokenizer is not None:
            return tokenizer_from_json(record.tokenizer, where=config.source.path)
    if config.tokenizer is None:
        raise ValueError(
            "DataConfig.tokenizer is not set, and the data brings none. Set it, for example to "
            "@TokenizerFile() with the model's folder as TokenizerFile.path."
        )
    if isinstance(config.tokenizer, TrainedBpe):
        corpus = open_corpus(config.source)
        return ready_tokenizer(corpus, config=config.tokenizer, cache_dir=cache_dir)
    tokenizer = load_tokenizer(config.tokenizer)
    told = encoder_of(config.source, tokenizer=tokenizer).tokenizer_json()
    return tokenizer_from_json(told, where=type(config.tokenizer).__name__)


def _store_folder(config: DataConfig, *, cache_dir: Path) -> Path:
    if isinstance(config.source, TokenShards):
        return Path(config.source.path)
    if config.tokenizer is None:
        raise ValueError(
            f"{type(config.source).__name__} holds text, so DataConfig.tokenizer must be set, for "
            "example to @Bytes() or @TrainedBpe()."
        )
    return prepare_in_cache(config.source, tokenizer=config.tokenizer, cache_dir=cache_dir)


def _check_tokenizer(store: TokenStore, *, tokenizer: Tokenizer | None, given: Tokenizer) -> None:
    if tokenizer is not None and tokenizer.digest == given.digest:
        return
    made = "no tokenizer" if tokenizer is None else f"tokenizer {tokenizer.digest[:12]}"
    raise ValueError(
        f"DataConfig.tokenizer is {given.digest[:12]} with {given.vocab_size} tokens, but the "
        f"shards in {store.folder} record {made} and {store.record.vocab_size} tokens. Leave "
        "DataConfig.tokenizer unset to use theirs."
    )
