"""Where durable things live: one small interface over a directory, ``gs://`` and ``s3://``.

May import the standard library, and ``object_root`` (tensorstore) only when a URL asks for it.
Promises: ``create`` has one winner; ``write`` is all or nothing; after either returns, the bytes
survive a crash; a read or a listing that starts later sees them.
"""

import abc
import contextlib
import errno
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

_CHUNK_BYTES = 8 * 2**20
_TEMPORARY = ".tmp-"
_TRASH = ".trash"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room."""
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
"""Errors of a place that is not for this user to write to, or no directory."""


class Root(abc.ABC):
    """A tree of immutable or atomically replaced files, addressed by keys such as ``a/b.json``.

    Attributes:
      url: the absolute path or URL, used in every error message.
    """

    url: str

    @abc.abstractmethod
    def child(self, name: str) -> "Root":
        """The root one level (or several, ``a/b``) below this one."""

    @abc.abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Writes a file unless the key exists; of several callers exactly one gets True.

        The data must be unique to the caller (put a random token in it): after a lost response,
        equal bytes are how a caller recognises its own write.
        """

    @abc.abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Writes or replaces a file; readers see the old or the new bytes, never a mixture."""

    @abc.abstractmethod
    def read(self, key: str) -> bytes | None:
        """The file's bytes, or None where there is no such file."""

    @abc.abstractmethod
    def chunks(self, key: str, *, cold: bool = False) -> Iterator[bytes]:
        """The file's bytes in pieces.

        Args:
          key: the file.
          cold: ask for the storage's own bytes rather than a copy in this machine's page cache.

        Raises:
          FileNotFoundError: there is no such file.
        """

    @abc.abstractmethod
    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Keys of all files below a directory (``a/`` or empty for all), sorted."""

    @abc.abstractmethod
    def children(self, prefix: str = "") -> tuple[str, ...]:
        """Names of the files and directories right below a directory, sorted.

        Locally a directory is seen a moment before the first file in it; object stores have no
        empty ones. Decide by the file, not by the directory.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Removes one file; one that is not there is no error."""

    @abc.abstractmethod
    def delete(self, prefix: str, *, first: str) -> None:
        """Removes a directory (``a/``), the file ``first`` in it before all others.

        Locally the directory is renamed out of sight first. Interrupted, it can be called again.
        """

    @abc.abstractmethod
    def put_file(self, key: str, source: pathlib.Path) -> None:
        """Copies a local file to a key."""

    def local_path(self, key: str) -> pathlib.Path | None:
        """The path of a key where it is a file of this machine or a mount, else None."""
        del key
        return None


def open_root(url: str | os.PathLike[str]) -> Root:
    """Opens a directory (made at the first write), a ``gs://`` or an ``s3://`` URL.

    Raises:
      ValueError: a scheme that is not supported, or a URL without a bucket.
    """
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalRoot(pathlib.Path(text))
    if scheme == "file":
        return LocalRoot(pathlib.Path(rest))
    if scheme in ("gs", "s3"):
        from trainer.checkpoints import object_root  # tensorstore takes a while to import

        return object_root.open_bucket(text)
    raise ValueError(
        f"{text!r} has the scheme {scheme!r}; a root is a path, gs://bucket/path or s3://bucket/path."
    )


def check_key(key: str, *, directory: bool = False) -> str:
    """Returns a key that cannot leave its root, or raises ValueError."""
    body = key[:-1] if directory and key.endswith("/") else key
    parts = body.split("/")
    if any(part in ("", ".", "..") for part in parts) or (directory and not key.endswith("/")):
        form = "a directory such as 'a/b/'" if directory else "a file such as 'a/b.json'"
        raise ValueError(f"{key!r} is not {form} below a root.")
    return key


class LocalRoot(Root):
    """A directory of this machine or of a shared file system."""

    def __init__(self, path: pathlib.Path) -> None:
        """Opens a directory, which need not exist."""
        self._path = path.expanduser().absolute()
        self.url = str(self._path)

    def child(self, name: str) -> "LocalRoot":
        return LocalRoot(self._at(name))

    def create(self, key: str, data: bytes) -> bool:
        target = self._at(key)
        with self._temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return target.read_bytes() == data
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                return _create_without_links(target, data)
        _sync_directory(target.parent)
        return True

    def write(self, key: str, data: bytes) -> None:
        target = self._at(key)
        with self._temporary(target, data) as temporary:
            os.replace(temporary, target)
        _sync_directory(target.parent)

    def read(self, key: str) -> bytes | None:
        try:
            return self._at(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def chunks(self, key: str, *, cold: bool = False) -> Iterator[bytes]:
        with self._at(key).open("rb", buffering=0) as source:
            if cold and hasattr(os, "posix_fadvise"):  # Linux; elsewhere the cache may answer
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk

    def list(self, prefix: str = "") -> tuple[str, ...]:
        base = self._at(prefix.rstrip("/")) if prefix else self._path
        found = []
        for folder, folders, files in os.walk(base):
            folders[:] = [name for name in folders if name != _TRASH]
            found += [os.path.join(folder, f) for f in files if not f.startswith(_TEMPORARY)]
        return tuple(sorted(pathlib.Path(f).relative_to(self._path).as_posix() for f in found))

    def children(self, prefix: str = "") -> tuple[str, ...]:
        base = self._at(prefix.rstrip("/")) if prefix else self._path
        try:
            names = os.listdir(base)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(sorted(n for n in names if n != _TRASH and not n.startswith(_TEMPORARY)))

    def remove(self, key: str) -> None:
        self._at(key).unlink(missing_ok=True)

    def delete(self, prefix: str, *, first: str) -> None:
        del first  # the rename takes all of it away at once
        check_key(prefix, directory=True)
        target, trash = self._at(prefix[:-1]), self._path / _TRASH
        try:
            trash.mkdir(parents=True, exist_ok=True)
            os.rename(target, trash / uuid.uuid4().hex)
        except OSError as error:
            if error.errno in FULL:  # no room even for a name: remove it in place
                shutil.rmtree(target)
            elif not isinstance(error, FileNotFoundError):
                raise
        with contextlib.suppress(FileNotFoundError):  # another process empties it too
            shutil.rmtree(trash)

    def put_file(self, key: str, source: pathlib.Path) -> None:
        target = self._at(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            shutil.copyfile(source, temporary)
            with temporary.open("rb") as copied:
                os.fsync(copied.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(target.parent)

    def local_path(self, key: str) -> pathlib.Path | None:
        return self._at(key)

    def _at(self, key: str) -> pathlib.Path:
        return self._path / check_key(key)

    @contextlib.contextmanager
    def _temporary(self, target: pathlib.Path, data: bytes) -> Iterator[pathlib.Path]:
        target.parent.mkdir(parents=True, exist_ok=True)
        path = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            _write_new(path, data)
            yield path
        finally:
            path.unlink(missing_ok=True)


def _create_without_links(target: pathlib.Path, data: bytes) -> bool:
    """Exclusive creation for file systems without hard links; a crash can leave a short file."""
    try:
        _write_new(target, data)
    except FileExistsError:
        return target.read_bytes() == data
    _sync_directory(target.parent)
    return True


def _write_new(path: pathlib.Path, data: bytes) -> None:
    with path.open("xb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _sync_directory(path: pathlib.Path) -> None:
    """Makes a rename or a new name in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
