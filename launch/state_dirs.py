"""Folders of one host: progress, pids and secrets of a run's processes. Standard library only."""

import os
import pathlib
import stat
import tempfile


def host_folder(run_id: str, *, host: str) -> pathlib.Path:
    """Returns the folder of a run on this host; made, private, and kept when processes end.

    Raises:
      PermissionError: somebody else made it first.
    """
    base = os.environ.get("LOCKSTEP_STATE") or tempfile.gettempdir()
    return _private(pathlib.Path(base) / f"lockstep-{os.getuid()}", run_id, host)


def secrets_folder(run_id: str, *, host: str) -> pathlib.Path:
    """Returns a folder in memory where there is one, so that secrets never reach a disk."""
    memory = pathlib.Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        return _private(host_folder(run_id, host=host), "secrets")
    return _private(memory / f"lockstep-{os.getuid()}", run_id, host)


def _private(base: pathlib.Path, *names: str) -> pathlib.Path:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = base.lstat()
    if about.st_uid != os.getuid() or not stat.S_ISDIR(about.st_mode):
        raise PermissionError(f"{base} belongs to somebody else; set LOCKSTEP_STATE to a folder.")
    folder = base.joinpath(*names)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
