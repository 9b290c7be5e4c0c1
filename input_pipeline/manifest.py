"""What a dataset consists of: one JSON whose digest is the dataset's version.

Imports the standard library only. Promises: paths are relative, so that the digest is the same on
every machine; a changed, added, removed or renamed file changes it.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST_VERSION = 1


def canonical_json(value: object) -> str:
    """Returns the one text that stands for ``value``; digests are taken over it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object) -> str:
    """Returns the sha256 of ``value``'s canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file of a dataset.

    Attributes:
      path: relative to the dataset's root, with forward slashes.
      size: bytes.
      sha256: digest of the content, in hexadecimal.
      records: documents in it.
    """

    path: str
    size: int
    sha256: str
    records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Where a dataset's text came from.

    Attributes:
      name: what people call it.
      source: how it was read: kind of source, and the options that decide its documents.
      licence: what it may be used for.
      files: in the order in which documents are numbered.
      version: version of this format.
    """

    name: str
    source: str
    licence: str
    files: tuple[FileRecord, ...]
    version: int = MANIFEST_VERSION

    def __post_init__(self) -> None:
        if not self.licence.strip():
            raise ValueError(
                f"Dataset {self.name!r} names no licence. Set the source's `licence` to an SPDX "
                "name such as 'CC-BY-4.0', or to a sentence that says what it may be used for."
            )
        if self.version != MANIFEST_VERSION:
            raise ValueError(
                f"Dataset {self.name!r} has manifest version {self.version}; this program reads "
                f"version {MANIFEST_VERSION}. Prepare it again."
            )

    @property
    def digest(self) -> str:
        """The dataset's version."""
        return digest_of(self.to_json())

    @property
    def records(self) -> int:
        """Documents in all files."""
        return sum(file.records for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Manifest":
        """Returns the manifest that `to_json` gave."""
        files = tuple(FileRecord(**file) for file in value["files"])
        return cls(**{**value, "files": files})
