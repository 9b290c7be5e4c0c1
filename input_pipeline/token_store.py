"""Documents as tokens on disk: written once, then read at random through memory maps.

Imports NumPy only. A store is a folder::

    manifest.json                what it holds, where it came from, and the digest of every file
    baselines.json               scores of simple models on the held-out text, where known
    <split>/offsets.bin          int64, little endian: first token of each document, and the end
    <split>/tokens-00000.bin     uint16 or uint32, little endian; a document never spans two files

Promises: a store with ``manifest.json`` is complete; its digest covers every token. Opening checks
every size, and the digests of stores small enough that it takes no time.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from input_pipeline.cache import make_once
from input_pipeline.data_config import Split
from input_pipeline.manifest import Manifest, digest_of, file_digest

STORE_VERSION = 1
SHARD_TOKENS = 1 << 28
"""A token file is closed at the first document end after this many tokens."""
VERIFIED_ON_OPEN = 1 << 28
"""Stores up to this many bytes are hashed when they are opened; larger ones only on request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of a store: path relative to the store, size in bytes, sha256, number of entries."""

    path: str
    size: int
    sha256: str
    entries: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitRecord:
    """One split of a store.

    Attributes:
      documents: number of documents.
      tokens: number of tokens, those at the start and end of documents included.
      text_bytes: UTF-8 bytes of the text that was tokenized; None where it is not known.
      offsets: the offsets file.
      shards: token files in order.
    """

    documents: int
    tokens: int
    text_bytes: int | None
    offsets: StoredFile
    shards: tuple[StoredFile, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreRecord:
    """What ``manifest.json`` of a store says.

    Attributes:
      manifest: the text that the tokens came from.
      tokenizer: `Tokenizer.to_json`; None where the tokens came without one.
      vocab_size: tokens are in ``[0, vocab_size)``.
      dtype: "<u2" or "<u4".
      splits: split name -> its record.
      version: version of this format.
    """

    manifest: Manifest
    tokenizer: str | None
    vocab_size: int
    dtype: str
    splits: Mapping[str, SplitRecord]
    version: int = STORE_VERSION

    @property
    def digest(self) -> str:
        """Version of the tokenized dataset; covers text, tokenizer and every token."""
        return digest_of(dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "StoreRecord":
        """Returns the record of the store in ``folder``.

        Raises:
          ValueError: there is none, or it was written by another version.
        """
        path = folder / "manifest.json"
        if not path.is_file():
            raise ValueError(
                f"No token shards in {folder.absolute()}: it has no manifest.json. Write them with "
                "`python -m input_pipeline.prepare --help`."
            )
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value.get("version") != STORE_VERSION:
            raise ValueError(
                f"{path}: version {value.get('version')}, this program reads {STORE_VERSION}. "
                "Prepare the dataset again."
            )
        splits = {name: _split_record(split) for name, split in value["splits"].items()}
        manifest = Manifest.from_json(value["manifest"])
        return cls(**{**value, "manifest": manifest, "splits": splits})

    def write(self, folder: Path) -> None:
        """Writes ``manifest.json``; the last thing that is written into a store."""
        text = json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)
        (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _split_record(value: dict[str, Any]) -> SplitRecord:
    shards = tuple(StoredFile(**shard) for shard in value["shards"])
    return SplitRecord(**{**value, "offsets": StoredFile(**value["offsets"]), "shards": shards})


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type on disk that holds every token."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class SplitWriter:
    """Appends documents to one split of a store; `finish` returns its record."""

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
        self._sizes: list[int] = []
        self._documents = self._tokens = 0

    def append(self, tokens: np.ndarray, *, lengths: np.ndarray) -> None:
        """Appends documents.

        Args:
          tokens: int [sum(lengths)], in ``[0, vocab_size)``.
          lengths: int64 [n], tokens per document.

        Raises:
          ValueError: a token is out of range (names the document), or the lengths do not add up.
        """
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
        start = 0
        while start < len(tokens):
            room = self._shard_tokens - (self._sizes[-1] if self._sizes else 0)
            if self._shard is None or room <= 0:
                self._next_shard()
                continue
            ends = np.append(stops[stops >= start + room][:1], len(tokens))
            stop = int(ends[0])
            assert self._shard is not None
            self._shard.write(tokens[start:stop].astype(self._dtype).tobytes())
            self._sizes[-1] += stop - start
            start = stop
        self._documents += len(lengths)
        self._tokens += len(tokens)

    def _next_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
        name = f"tokens-{len(self._sizes):05d}.bin"
        self._shard = (self._folder / self._split / name).open("xb")
        self._sizes.append(0)

    def finish(self, *, text_bytes: int | None = None) -> SplitRecord:
        """Closes the files and returns their record."""
        if self._shard is not None:
            self._shard.close()
        self._offsets.close()
        return SplitRecord(
            documents=self._documents,
            tokens=self._tokens,
            text_bytes=text_bytes,
            offsets=self._stored("offsets.bin", entries=self._documents + 1),
            shards=tuple(
                self._stored(f"tokens-{number:05d}.bin", entries=size)
                for number, size in enumerate(self._sizes)
            ),
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
    splits: Mapping[Split, Iterable[tuple[np.ndarray, np.ndarray]]],
    tokenizer: str | None = None,
) -> StoreRecord:
    """Writes documents that already are tokens; the folder appears whole or not at all.

    Args:
      folder: where; must not exist.
      manifest: name, licence and source; ``files`` may be empty.
      vocab_size: tokens are in ``[0, vocab_size)``.
      splits: split -> parts of ``(tokens [sum(lengths)], lengths [documents])``.
      tokenizer: `Tokenizer.to_json`, so that bits per byte can be computed and text be shown.

    Raises:
      ValueError: the folder exists, or a token is out of range.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists already; delete it or give another name.")

    def make(partial: Path) -> None:
        records: dict[str, SplitRecord] = {}
        for split, parts in splits.items():
            writer = SplitWriter(partial, split=split, vocab_size=vocab_size)
            for tokens, lengths in parts:
                writer.append(tokens, lengths=lengths)
            records[split] = writer.finish()
        dtype = token_dtype(vocab_size).str
        StoreRecord(
            manifest=manifest,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            dtype=dtype,
            splits=records,
        ).write(partial)

    make_once(folder, make=make)
    return StoreRecord.read(folder)


class TokenStore:
    """One split of a store, opened for reading. Copies to worker processes are paths only.

    Attributes:
      record: the store's record.
      folder: where it is.
      split: the split's record.
    """

    def __init__(self, folder: Path, *, split: Split, verify: bool | None = None) -> None:
        """Opens a store.

        Args:
          folder: where ``manifest.json`` is.
          split: which part.
          verify: compare digests; None does so for stores up to `VERIFIED_ON_OPEN` bytes.

        Raises:
          ValueError: the store, the split or a file is missing, or a file has changed.
        """
        self.record = StoreRecord.read(folder)
        if split not in self.record.splits:
            raise ValueError(f"{folder}: no split {split!r}; it has {sorted(self.record.splits)}.")
        self.folder = folder
        self.split = self.record.splits[split]
        self._check_files(verify=verify)
        self._open()

    def _check_files(self, *, verify: bool | None) -> None:
        files = [self.split.offsets, *self.split.shards]
        if verify is None:
            verify = sum(file.size for file in files) <= VERIFIED_ON_OPEN
        for file in files:
            path = self.folder / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.size:
                found = "is missing" if size is None else f"has {size} bytes"
                raise ValueError(
                    f"{path} {found}, but the manifest says {file.size} bytes. The store is "
                    "damaged: delete the folder and prepare it again."
                )
            if verify and file_digest(path) != file.sha256:
                raise ValueError(
                    f"{path} differs from its digest in the manifest. The store is damaged or was "
                    "edited: delete the folder and prepare it again."
                )

    def _open(self) -> None:
        self._offsets = _map(self.folder / self.split.offsets.path, dtype=np.dtype("<i8"))
        dtype = np.dtype(self.record.dtype)
        self._shards = [_map(self.folder / s.path, dtype=dtype) for s in self.split.shards]
        self._starts = np.cumsum([0, *(shard.entries for shard in self.split.shards)])

    def __getstate__(self) -> dict[str, Any]:
        # A pickled memory map is a copy of the whole file.
        closed = {"_offsets", "_shards", "_starts"}
        return {name: value for name, value in self.__dict__.items() if name not in closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return self.split.documents

    def starts(self, documents: np.ndarray) -> np.ndarray:
        """Returns the address of the first token of each document: int64 [n]."""
        return np.asarray(self._offsets[documents], dtype=np.int64)

    def lengths(self, documents: np.ndarray | slice) -> np.ndarray:
        """Returns the number of tokens of each document: int64 [n]."""
        if isinstance(documents, slice):
            assert documents.step is None
            start, stop, _ = documents.indices(len(self))
            return np.diff(self._offsets[start : stop + 1]).astype(np.int64)
        return np.asarray(self._offsets[documents + 1] - self._offsets[documents], dtype=np.int64)

    def gather(self, addresses: np.ndarray) -> np.ndarray:
        """Returns the tokens at int64 [n] addresses: int32 [n]."""
        if len(self._shards) == 1:
            return self._shards[0][addresses].astype(np.int32)
        result = np.empty(len(addresses), dtype=np.int32)
        shard = np.searchsorted(self._starts, addresses, side="right") - 1
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            result[here] = self._shards[number][addresses[here] - self._starts[number]]
        return result

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `input_pipeline.source.Source.read`; values are ``tokens`` int32."""
        lengths = self.lengths(indices)
        return {"tokens": self.gather(ranges(self.starts(indices), lengths)), "lengths": lengths}


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns ``start, start + 1, ...`` of each range in turn: int64 [sum(lengths)]."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def _map(path: Path, *, dtype: np.dtype) -> np.ndarray:
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
