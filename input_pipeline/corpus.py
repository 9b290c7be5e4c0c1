"""Opens the text that a config names: documents, their split, and their manifest.

Imports NumPy only. Promises: the same files give the same manifest on every machine; a document's
split depends on its path (files) or content (lines) alone, never on how many others there are.
"""

import dataclasses
import functools
import glob
import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from input_pipeline.conversation import conversation_text
from input_pipeline.data_config import (
    Conversations,
    JsonLines,
    SourceConfig,
    Split,
    StandardLibrary,
    TextFiles,
)
from input_pipeline.manifest import FileRecord, Manifest, file_digest
from input_pipeline.source import (
    FileDocuments,
    JsonLineDocuments,
    Source,
    Subset,
    read_all,
    split_ragged,
    text_in,
)

_NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
_LINES_PER_READ = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text, ready to be tokenized. Only `splits` reads the documents themselves.

    Attributes:
      manifest: files, digests, licence; its digest is the dataset's version.
      source: all documents.
      shares: returns a number in [0, 1) for each document, float64 [documents].
      held_out: documents whose number is below it are held out.
      plain: whether a document's text is what is learned, and not a conversation as JSON.
    """

    manifest: Manifest
    source: Source
    shares: Callable[[], np.ndarray]
    held_out: float
    plain: bool = True

    def __post_init__(self) -> None:
        name = self.manifest.name
        if not 0.0 <= self.held_out < 1.0:
            raise ValueError(f"held_out={self.held_out} of dataset {name!r} is not in [0, 1).")
        if not len(self.source):
            raise ValueError(f"Dataset {name!r} is empty: its files hold no documents.")

    @functools.cached_property
    def splits(self) -> dict[Split, Source]:
        """Documents of each split.

        Raises:
          ValueError: a document cannot be read, or none is left for training.
        """
        share = self.shares()
        train, held_out = np.flatnonzero(share >= self.held_out), share < self.held_out
        if not len(train):
            raise ValueError(
                f"All {len(share)} documents of dataset {self.manifest.name!r} fall into the "
                f"held-out split; lower held_out={self.held_out} or add documents."
            )
        return {
            "train": Subset(self.source, indices=train),
            "held_out": Subset(self.source, indices=np.flatnonzero(held_out)),
        }


def open_corpus(config: SourceConfig) -> Corpus:
    """Returns the documents that ``config`` names.

    Raises:
      ValueError: no files, no documents, no licence, or an empty split.
    """
    match config:
        case StandardLibrary():
            return _standard_library(config)
        case TextFiles():
            return _text_files(config)
        case JsonLines():
            text_of = functools.partial(text_in, field=config.field)
            return _lines(config, kind=f"line, field {config.field!r}", text_of=text_of)
        case Conversations():
            return _lines(config, kind="line, a conversation", text_of=conversation_text)
    raise ValueError(
        f"DataConfig.source is a {type(config).__name__}, which holds no text. Sources of text are "
        "StandardLibrary, TextFiles, JsonLines and Conversations."
    )


def _standard_library(config: StandardLibrary) -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    found = [path.relative_to(root) for path in root.rglob("*.py")]
    paths = sorted(path.as_posix() for path in found if not _NOT_LIBRARY & set(path.parts))
    if not paths:
        raise ValueError(
            f"No *.py files under {root}: this Python's standard library is not stored as files. "
            "Use TextFiles on a folder of text instead."
        )
    version = sysconfig.get_python_version()
    return _of_files(
        root,
        paths=paths,
        name=f"standard-library-{version}",
        licence="PSF-2.0",
        held_out=config.held_out,
    )


def _text_files(config: TextFiles) -> Corpus:
    root = Path(config.root)
    paths = find_files(root, patterns=config.files, owner="TextFiles")
    return _of_files(
        root, paths=paths, name=root.name, licence=config.licence, held_out=config.held_out
    )


def _of_files(root: Path, *, paths: list[str], name: str, licence: str, held_out: float) -> Corpus:
    manifest = Manifest(
        name=name,
        source=f"one document per file, held out {held_out!r} by path",
        licence=licence,
        files=tuple(_file_record(root, path=path, records=1) for path in paths),
    )
    return Corpus(
        manifest=manifest,
        source=FileDocuments(root, paths=paths),
        shares=lambda: np.array([hash_share(path.encode()) for path in paths]),
        held_out=held_out,
    )


def _lines(
    config: JsonLines | Conversations, *, kind: str, text_of: Callable[[dict[str, Any]], str]
) -> Corpus:
    root = Path(config.root)
    paths = find_files(root, patterns=config.files, owner=type(config).__name__)
    source = JsonLineDocuments(root, paths=paths, text_of=text_of)
    manifest = Manifest(
        name=root.name,
        source=f"one document per {kind}, held out {config.held_out!r} by content",
        licence=config.licence,
        files=tuple(
            _file_record(root, path=path, records=records)
            for path, records in zip(paths, source.records)
        ),
    )
    return Corpus(
        manifest=manifest,
        source=source,
        shares=lambda: _content_shares(source),
        held_out=config.held_out,
        plain=isinstance(config, JsonLines),
    )


def _content_shares(source: Source) -> np.ndarray:
    shares: list[float] = []
    for part in read_all(source, at_once=_LINES_PER_READ):
        shares += [hash_share(text) for text in split_ragged(part["text"], part["lengths"])]
    return np.array(shares)


def hash_share(text: bytes) -> float:
    """Returns a number in [0, 1) that depends on ``text`` alone, uniform over texts."""
    return int.from_bytes(hashlib.sha256(b"held out/" + text).digest()[:6], "big") / 2**48


def find_files(root: Path, *, patterns: tuple[str, ...], owner: str) -> list[str]:
    """Returns the files under ``root`` that any pattern matches, sorted, relative to it.

    Raises:
      ValueError: the folder is missing or a pattern matches no file; says what was searched.
    """
    if root.is_file():
        raise ValueError(
            f"{owner}.root={str(root)!r} is a file. Set {owner}.root={str(root.parent)!r} and "
            f"{owner}.files=({root.name!r},)."
        )
    if not root.is_dir():
        parent = next(p for p in [root.absolute(), *root.absolute().parents] if p.is_dir())
        around = sorted(p.name for p in parent.iterdir())[:8]
        raise ValueError(
            f"{owner}.root={str(root)!r}: no such folder ({root.absolute()}). "
            f"{parent} exists and holds {around}."
        )
    found: set[str] = set()
    for pattern in patterns:
        names = glob.glob(pattern, root_dir=root, recursive=True)
        files = {Path(name).as_posix() for name in names if (root / name).is_file()}
        if not files:
            around = sorted(p.name for p in root.iterdir())[:8]
            raise ValueError(
                f"{owner}.files: pattern {pattern!r} matches no file under {root.absolute()}, "
                f"which holds {around}."
            )
        found |= files
    if not found:
        raise ValueError(f"{owner}.files is empty; give at least one pattern.")
    return sorted(found)


def _file_record(root: Path, *, path: str, records: int) -> FileRecord:
    file = root / path
    return FileRecord(
        path=path, size=file.stat().st_size, sha256=file_digest(file), records=records
    )
