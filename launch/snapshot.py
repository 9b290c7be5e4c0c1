"""The code of a run, copied once at submission: what git tracks, as it is in the folder now.

Only tracked files are ever copied, so that keys and downloads that lie about stay where they are.
The digest covers names, contents and execute bits, is the same on every machine, and names the
copy's folder. Imports the standard library only; git is started as a program.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
from collections.abc import Iterator

GIT_S = 60.0
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class SnapshotError(ValueError):
    """The folder cannot be copied; says what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a folder holds now.

    Attributes:
      folder: the folder.
      files: tracked files that are there, relative, in order.
      digest: sha256 over names, contents and execute bits, in hexadecimal.
      untracked: Python files that git neither tracks nor ignores; they are not copied.
    """

    folder: pathlib.Path
    files: tuple[str, ...]
    digest: str
    untracked: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the copy's folder."""
        return self.digest[:16]


def describe(folder: pathlib.Path) -> Snapshot:
    """Returns what would be copied; writes nothing.

    Raises:
      SnapshotError: the folder is in no git work tree, or a submodule is not checked out.
    """
    tracked = sorted(set(_git(folder, "ls-files", "-z", "--cached", "--recurse-submodules")))
    files = tuple(name for name in tracked if os.path.lexists(folder / name))
    if absent := [name for name in files if stat.S_ISDIR(os.lstat(folder / name).st_mode)]:
        raise SnapshotError(
            f"{folder / absent[0]} is a submodule that is not checked out; run git submodule "
            "update --init, or name another folder."
        )
    if not files:
        raise SnapshotError(f"git tracks no file in {folder}; add the code with git add.")
    others = _git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    return Snapshot(
        folder=folder,
        files=files,
        digest=_digest(folder, files),
        untracked=tuple(sorted(name for name in others if name.endswith(".py"))),
    )


def copy(snapshot: Snapshot, *, into: pathlib.Path) -> pathlib.Path:
    """Copies a snapshot to ``into/<name>``, whole or not at all; one that is there is kept.

    Raises:
      SnapshotError: files changed since the snapshot was described.
    """
    final = into / snapshot.name
    if final.exists():
        return final
    partial = into / f".{snapshot.name}.{os.getpid()}"
    try:
        for name in snapshot.files:
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(snapshot.folder / name, target, follow_symlinks=False)
        if _digest(partial, snapshot.files) != snapshot.digest:
            raise SnapshotError(f"{snapshot.folder} changed while it was copied; submit again.")
        _rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _rename(partial: pathlib.Path, final: pathlib.Path) -> None:
    try:
        partial.rename(final)
    except OSError:
        if not final.exists():  # another submission was first
            raise


def _digest(folder: pathlib.Path, files: tuple[str, ...]) -> str:
    whole = hashlib.sha256()
    for name in files:
        kind, content = _content(folder / name)
        whole.update(f"{kind} {content} ".encode() + os.fsencode(name) + b"\0")
    return whole.hexdigest()


def _content(path: pathlib.Path) -> tuple[str, str]:
    """Returns the kind of a file (git's modes) and the sha256 of its content."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return "120000", hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ("100755" if mode & stat.S_IXUSR else "100644"), digest


def _git(folder: pathlib.Path, *arguments: str) -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environment,
            capture_output=True,
            check=False,
            timeout=GIT_S,
        )
    except FileNotFoundError:
        raise SnapshotError("code.snapshot needs git, which is not installed here.") from None
    except subprocess.TimeoutExpired:
        raise SnapshotError(f"git did not answer within {GIT_S:g} s in {folder}.") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise SnapshotError(
            f"{folder} cannot be snapshot: {told[0] if told else 'git failed'}. Name a folder of "
            "a git work tree, or leave code.snapshot out to run the code where it is."
        )
    yield from (os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
