"""Folders that are made once, whole or not at all. Imports the standard library only.

Promises: a folder that exists is complete; two processes that make the same one at once both get
it; a process that is killed leaves nothing that counts, and the next one clears it away.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path


def make_once(folder: Path, *, make: Callable[[Path], None]) -> Path:
    """Returns ``folder``, first letting ``make`` fill it if it does not exist.

    Args:
      folder: where the result will be.
      make: fills the empty folder that it is given; may raise, and then nothing is kept.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    host = f".{folder.name}.{socket.gethostname()}."
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        # Whoever made these on this host is gone, for it held the lock that we hold.
        for stale in folder.parent.glob(f"{glob.escape(host)}*"):
            shutil.rmtree(stale)
        partial = folder.with_name(f"{host}{uuid.uuid4().hex}")
        partial.mkdir()
        try:
            make(partial)
            _flush(partial)
            _publish(partial, folder=folder)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            error.add_note(f"While preparing {folder}.")
            raise
    return folder


def make_new[Made](folder: Path, *, make: Callable[[Path], Made]) -> Made:
    """Lets ``make`` fill a folder that must not exist; returns what ``make`` returns.

    Raises:
      ValueError: it exists, perhaps because another process has made it meanwhile.
    """
    check_new(folder)
    made: list[Made] = []
    make_once(folder, make=lambda partial: made.append(make(partial)))
    if not made:
        check_new(folder)
    return made[0]


def check_new(folder: Path) -> None:
    """Raises ValueError if there is something where a folder is to be made."""
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"{folder} exists already; delete it or give another name.")


def _publish(partial: Path, *, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        # Another host, which the lock does not reach on every file system, was first.
        if not folder.is_dir():
            raise
        shutil.rmtree(partial)


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
