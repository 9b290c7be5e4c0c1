"""Documents as tokens on disk: written once, then read at random through memory maps.

Imports NumPy only. A store is a folder::

    manifest.json                what it holds, where it came from, and the digest of every file
    baselines.json               scores of simple models on the held-out text, where known
    <split>/offsets.bin          int64, little endian: first token of each document, and the end
    <split>/tokens-00000.bin     uint16 or uint32, little endian; a document never spans two files
    <split>/weights-00000.bin    uint8, 1 for each token that is learned; only where some are not

Promises: a store with ``manifest.json`` is complete; its digest covers every token and weight.
Opening checks every size, and the digests of stores small enough that it takes no time.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from input_pipeline.data_config import Split
from input_pipeline.manifest import Manifest, digest_of, file_digest

STORE_VERSION = 1
WEIGHTED_VERSION = 2
"""Of stores with weights: programs that know none must not read them as if all were learned."""
VERIFIED_ON_OPEN = 1 << 28
"""Stores up to this many bytes are hashed when they are opened; larger ones only on request."""
_OF_WEIGHTS = ("weights", "learned")


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
      weights: one file of weights per token file; none where all tokens are learned.
      learned: tokens of weight 1, where there are weights.
    """

    documents: int
    tokens: int
    text_bytes: int | None
    offsets: StoredFile
    shards: tuple[StoredFile, ...]
    weights: tuple[StoredFile, ...] = ()
    learned: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; those of weights only where there are some, as in version 1."""
        value = dataclasses.asdict(self)
        return {n: v for n, v in value.items() if n not in _OF_WEIGHTS or self.learned is not None}


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
        """Version of the tokenized dataset; covers text, tokenizer, every token and weight."""
        return digest_of(self.to_json())

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        tokenizer: str | None,
        vocab_size: int,
        splits: Mapping[str, SplitRecord],
    ) -> "StoreRecord":
        """Returns the record of splits that have been written."""
        weighted = any(split.learned is not None for split in splits.values())
        return cls(
            manifest=manifest,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            dtype=token_dtype(vocab_size).str,
            splits=splits,
            version=WEIGHTED_VERSION if weighted else STORE_VERSION,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns what `read` finds in ``manifest.json``."""
        splits = {name: split.to_json() for name, split in self.splits.items()}
        return {**dataclasses.asdict(self), "splits": splits}

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
        if value.get("version") not in (STORE_VERSION, WEIGHTED_VERSION):
            raise ValueError(
                f"{path}: version {value.get('version')}, this program reads {STORE_VERSION} and "
                f"{WEIGHTED_VERSION}. Prepare the dataset again."
            )
        splits = {name: _split_record(split) for name, split in value["splits"].items()}
        manifest = Manifest.from_json(value["manifest"])
        return cls(**{**value, "manifest": manifest, "splits": splits})

    def write(self, folder: Path) -> None:
        """Writes ``manifest.json``; the last thing that is written into a store."""
        text = json.dumps(self.to_json(), indent=1, sort_keys=True)
        (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _split_record(value: dict[str, Any]) -> SplitRecord:
    files = {n: tuple(StoredFile(**f) for f in value.get(n, ())) for n in ("shards", "weights")}
    return SplitRecord(**{**value, **files, "offsets": StoredFile(**value["offsets"])})


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type on disk that holds every token."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


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
        files = [self.split.offsets, *self.split.shards, *self.split.weights]
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
        self._weights = [
            _map(self.folder / w.path, dtype=np.dtype("u1")) for w in self.split.weights
        ]
        self._starts = np.cumsum([0, *(shard.entries for shard in self.split.shards)])

    def __getstate__(self) -> dict[str, Any]:
        # A pickled memory map is a copy of the whole file.
        closed = {"_offsets", "_shards", "_weights", "_starts"}
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
        return self._gather(self._shards, addresses, dtype=np.dtype(np.int32))

    def weights(self, addresses: np.ndarray) -> np.ndarray:
        """Returns 1 for each token at int64 [n] addresses that is learned, else 0: float32 [n]."""
        if self.split.learned is None:
            return np.ones(len(addresses), np.float32)
        return self._gather(self._weights, addresses, dtype=np.dtype(np.float32))

    def _gather(
        self, shards: list[np.ndarray], addresses: np.ndarray, *, dtype: np.dtype
    ) -> np.ndarray:
        if len(shards) == 1:
            return shards[0][addresses].astype(dtype)
        result = np.empty(len(addresses), dtype=dtype)
        shard = np.searchsorted(self._starts, addresses, side="right") - 1
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            result[here] = shards[number][addresses[here] - self._starts[number]]
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
