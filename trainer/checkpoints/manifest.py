"""What a step consists of: MANIFEST.json, its digests, and their verification.

Standard library only. Promises: a manifest that does not carry its own digest is not a manifest,
and a file that differs from it by one bit is named. SHA-256 because OpenSSL computes it at about
1.9 GB/s per core with the processor's SHA instructions (BLAKE2b 1.3, CRC-32 6.6, where measured)
and, unlike CRC-32, two contents never share one.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.checkpoints import layout
from trainer.checkpoints.root import Root

VERSION = 1


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 (hexadecimal) of one file."""

    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and dtype name of one array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of MANIFEST.json.

    Attributes:
      name: the step and the attempt that wrote it.
      parent: the step that the attempt had resumed from; None when it started afresh.
      dataset_digest: digest of the dataset's own manifest; empty where the run has none.
      accepted: the steps on the attempt's sealed list, so that a damaged list can be rebuilt.
      files: each file of the step but MANIFEST.json, by its path in the step.
      tree: each array of the state, by its path (``groups/model/parameters/w``).
    """

    name: layout.StepName
    parent: layout.StepName | None
    dataset_digest: str
    accepted: tuple[layout.StepName, ...]
    files: Mapping[str, FileRecord]
    tree: Mapping[str, Leaf]


def encode(manifest: Manifest) -> bytes:
    """Writes a manifest as JSON with its own digest in it."""
    body: dict[str, Any] = {
        "version": VERSION,
        "step": manifest.name.step,
        "attempt": manifest.name.attempt,
        "parent": str(manifest.parent) if manifest.parent else None,
        "dataset_digest": manifest.dataset_digest,
        "accepted": [str(name) for name in manifest.accepted],
        "files": {path: [f.bytes, f.sha256] for path, f in sorted(manifest.files.items())},
        "tree": {p: [list(leaf.shape), leaf.dtype] for p, leaf in sorted(manifest.tree.items())},
    }
    return sign(body)


def decode(data: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
      ValueError: what is wrong with it.
    """
    body = check_signature(data)
    if body.get("version") != VERSION:
        raise ValueError(f"version {body.get('version')!r}; this code reads {VERSION}")
    try:
        return Manifest(
            name=layout.StepName(body["step"], body["attempt"]),
            parent=layout.parse_strictly(body["parent"]) if body["parent"] else None,
            dataset_digest=body["dataset_digest"],
            accepted=tuple(layout.parse_strictly(name) for name in body["accepted"]),
            files={path: FileRecord(*record) for path, record in body["files"].items()},
            tree={path: Leaf(tuple(shape), dtype) for path, (shape, dtype) in body["tree"].items()},
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or has the wrong type: {error!r}") from error


def sign(body: dict[str, Any]) -> bytes:
    """JSON of an object with the SHA-256 of the rest of it under ``digest``."""
    text = json.dumps(body, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**body, "digest": digest}, sort_keys=True, indent=1).encode()


def check_signature(data: bytes) -> dict[str, Any]:
    """Reads what ``sign`` wrote.

    Raises:
      ValueError: not JSON, or not the bytes that were signed.
    """
    try:
        body = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    stated = body.pop("digest", None)
    if stated != hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest():
        raise ValueError("its contents do not match its own digest")
    return body


def read(root: Root, name: layout.StepName) -> Manifest | None:
    """The manifest of a step, or None where the step has none.

    Raises:
      ValueError: the manifest is damaged or is another step's.
    """
    data = root.read(name.key(layout.MANIFEST))
    if data is None:
        return None
    try:
        manifest = decode(data)
    except ValueError as error:
        raise ValueError(f"{layout.MANIFEST} is damaged: {error}") from error
    if manifest.name != name:
        raise ValueError(f"{layout.MANIFEST} is of step {manifest.name}")
    return manifest


def digest(chunks: Iterable[bytes]) -> FileRecord:
    """Size and digest of a file given in pieces."""
    total, sha = 0, hashlib.sha256()
    for chunk in chunks:
        total += len(chunk)
        sha.update(chunk)
    return FileRecord(total, sha.hexdigest())


def share(files: Mapping[str, FileRecord], *, part: int, parts: int) -> tuple[str, ...]:
    """The files that one of several verifiers takes: all of them once, by size about alike."""
    loads = [0] * parts
    mine = []
    for path, record in sorted(files.items(), key=lambda item: (-item[1].bytes, item[0])):
        lightest = loads.index(min(loads))
        loads[lightest] += record.bytes + 1
        if lightest == part:
            mine.append(path)
    return tuple(sorted(mine))


def faults(
    root: Root, manifest: Manifest, paths: Sequence[str], *, contents: bool = True
) -> list[str]:
    """Compares files with their records; returns one line per file that is not as recorded.

    Args:
      root: the root that holds the step.
      manifest: the step's manifest.
      paths: the files to look at, as they are named in the manifest.
      contents: compare digests; otherwise only whether the files are there.
    """
    if not contents:
        present = set(root.list(manifest.name.key()))
        return [f"{p} is missing" for p in paths if manifest.name.key(p) not in present]
    lines = (_fault(root, manifest.name.key(path), path, manifest.files[path]) for path in paths)
    return [line for line in lines if line]


def _fault(root: Root, key: str, path: str, wanted: FileRecord) -> str:
    try:
        found = digest(root.chunks(key, cold=True))
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error}"
    if found.bytes != wanted.bytes:
        return f"{path} has {found.bytes:,} bytes, written were {wanted.bytes:,}"
    if found.sha256 != wanted.sha256:
        return f"{path} has changed: SHA-256 {found.sha256[:12]}, written was {wanted.sha256[:12]}"
    return ""
