"""The few file operations that a run's records need, so that a run may live on any store.

Imports the standard library only. `Files` is what the run directory asks of a store; a directory
of this machine is `LocalFiles`, and a checkpoint root (gs://, s3://) has the same methods.
"""

import os
import pathlib
from typing import Protocol


class Files(Protocol):
    """Small files under keys such as ``attempts/1/owner.json``."""

    def create(self, key: str, data: bytes) -> bool:
        """Writes a file unless it exists; of several callers exactly one gets True."""

    def write(self, key: str, data: bytes) -> None:
        """Writes or replaces a file; a reader sees the old or the new one, never a part."""

    def read(self, key: str) -> bytes | None:
        """Returns a file's bytes, None where there is none."""

    def children(self, prefix: str = "") -> tuple[str, ...]:
        """Returns the names right below ``prefix`` ("" or "a/"), sorted."""


class LocalFiles:
    """Files below a directory of this machine."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)

    def create(self, key: str, data: bytes) -> bool:
        """See `Files.create`."""
        path, temporary = self._write_beside(key, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def write(self, key: str, data: bytes) -> None:
        """See `Files.write`."""
        path, temporary = self._write_beside(key, data)
        temporary.replace(path)

    def read(self, key: str) -> bytes | None:
        """See `Files.read`."""
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def children(self, prefix: str = "") -> tuple[str, ...]:
        """See `Files.children`."""
        try:
            names = os.listdir(self.folder / prefix)
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def _write_beside(self, key: str, data: bytes) -> tuple[pathlib.Path, pathlib.Path]:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path, temporary
