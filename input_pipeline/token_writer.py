"""Writes documents as tokens into a store; `input_pipeline.token_store` says what a store is.

Imports NumPy only. Promises: what is written appears whole or not at all (`write_tokens`), and
holds no token outside of the vocabulary.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from input_pipeline.cache import make_new
from input_pipeline.data_config import Split
from input_pipeline.manifest import Manifest, file_digest
from input_pipeline.token_store import SplitRecord, StoredFile, StoreRecord, token_dtype

SHARD_TOKENS = 1 << 28
"""A token file is closed at the first document end after this many tokens."""


class SplitWriter:
    """Appends documents to one split of a store; `finish` returns its record.

    Either all documents come with weights or none does.
    """

    def __init__(
        self, folder: Path, *, split: Split, vocab_size: int, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        (folder / split).mkdir(parents=True)
        self._folder, self._split, self._vocab_size = folder, split, vocab_size
        self._dtype = token_dtype(vocab_size)
        self._shard_tokens = shard_tokens
        self._offsets = (folder / split / "offsets.bin").open("xb")
        self._offsets.write(np.zeros(1, "<i8").tobytes())
        self._shard: BinaryIO | None = None
        self._weights: BinaryIO | None = None
        self._learned: int | None = None
        self._sizes: list[int] = []
        self._documents = self._tokens = 0

    def append(
        self, tokens: np.ndarray, *, lengths: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Appends documents.

        Args:
          tokens: int [sum(lengths)], in ``[0, vocab_size)``.
          lengths: int64 [n], tokens per document.
          weights: bool [sum(lengths)], whether a token is learned; None learns all.

        Raises:
          ValueError: a token is out of range (names the document), the lengths or weights do not
            add up, or some documents come with weights and some without.
        """
        self._count_learned(tokens, weights=weights)
        stops = np.cumsum(lengths, dtype=np.int64)
        if len(tokens) != int(stops[-1] if len(stops) else 0):
            raise ValueError(f"{len(tokens)} tokens, but lengths that sum to {stops[-1:].sum()}.")
        bad = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
        if len(bad):
            document = self._documents + int(np.searchsorted(stops, bad[0], side="right"))
            raise ValueError(
                f"Document {document} of split {self._split!r} holds token {tokens[bad[0]]}; the "
                f"vocabulary has {self._vocab_size} tokens."
            )
        self._offsets.write((self._tokens + stops).astype("<i8").tobytes())
        self._write(tokens, weights, stops=stops)
        self._documents += len(lengths)
        self._tokens += len(tokens)

    def _write(self, tokens: np.ndarray, weights: np.ndarray | None, *, stops: np.ndarray) -> None:
        """Writes documents that end at ``stops``; a full file is closed where one ends."""
        start = 0
        while start < len(tokens):
            room = self._shard_tokens - (self._sizes[-1] if self._sizes else 0)
            if self._shard is None or room <= 0:
                self._next_shard()
                continue
            ends = np.append(stops[stops >= start + room][:1], len(tokens))
            stop = int(ends[0])
            self._shard.write(tokens[start:stop].astype(self._dtype).tobytes())
            if weights is not None and self._weights is not None:
                self._weights.write(weights[start:stop].astype(np.uint8).tobytes())
            self._sizes[-1] += stop - start
            start = stop

    def _count_learned(self, tokens: np.ndarray, *, weights: np.ndarray | None) -> None:
        if weights is None:
            if self._learned is not None:
                raise ValueError("These documents have no weights; those before them have.")
            return
        if len(weights) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(weights)} weights.")
        if self._learned is None and self._documents:
            raise ValueError("These documents have weights; those before them have none.")
        self._learned = (self._learned or 0) + int(np.count_nonzero(weights))

    def _next_shard(self) -> None:
        self._close()
        self._shard = self._new_file("tokens")
        self._weights = None if self._learned is None else self._new_file("weights")
        self._sizes.append(0)

    def _new_file(self, kind: str) -> BinaryIO:
        return (self._folder / self._split / f"{kind}-{len(self._sizes):05d}.bin").open("xb")

    def _close(self) -> None:
        for file in (self._shard, self._weights):
            if file is not None:
                file.close()

    def finish(self, *, text_bytes: int | None = None) -> SplitRecord:
        """Closes the files and returns their record."""
        self._close()
        self._offsets.close()
        weights = () if self._learned is None else self._numbered("weights")
        return SplitRecord(
            documents=self._documents,
            tokens=self._tokens,
            text_bytes=text_bytes,
            offsets=self._stored("offsets.bin", entries=self._documents + 1),
            shards=self._numbered("tokens"),
            weights=weights,
            learned=self._learned,
        )

    def _numbered(self, kind: str) -> tuple[StoredFile, ...]:
        return tuple(
            self._stored(f"{kind}-{number:05d}.bin", entries=size)
            for number, size in enumerate(self._sizes)
        )

    def _stored(self, name: str, *, entries: int) -> StoredFile:
        path = self._folder / self._split / name
        return StoredFile(
            path=f"{self._split}/{name}",
            size=path.stat().st_size,
            sha256=file_digest(path),
            entries=entries,
        )


def write_tokens(
    folder: Path,
    *,
    manifest: Manifest,
    vocab_size: int,
    splits: Mapping[Split, Iterable[tuple[np.ndarray, ...]]],
    tokenizer: str | None = None,
) -> StoreRecord:
    """Writes documents that already are tokens; the folder appears whole or not at all.

    Args:
      folder: where; must not exist.
      manifest: name, licence and source; ``files`` may be empty.
      vocab_size: tokens are in ``[0, vocab_size)``.
      splits: split -> parts of ``(tokens [sum(lengths)], lengths [documents])``, with a third
        array, weights [sum(lengths)], where not all tokens are learned; see `SplitWriter.append`.
      tokenizer: `Tokenizer.to_json`, so that bits per byte can be computed and text be shown.

    Raises:
      ValueError: the folder exists, or a token is out of range.
    """

    def make(partial: Path) -> StoreRecord:
        records: dict[str, SplitRecord] = {}
        for split, parts in splits.items():
            writer = SplitWriter(partial, split=split, vocab_size=vocab_size)
            for tokens, lengths, *weights in parts:
                writer.append(tokens, lengths=lengths, weights=weights[0] if weights else None)
            records[split] = writer.finish()
        record = StoreRecord.of(
            manifest, tokenizer=tokenizer, vocab_size=vocab_size, splits=records
        )
        record.write(partial)
        return record

    return make_new(folder, make=make)
