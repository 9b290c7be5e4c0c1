"""The code of a run is what git tracks, as it is in the folder; nothing else is ever copied."""

import os
import pathlib
import subprocess

import pytest

from launch import snapshot
from launch.snapshot import SnapshotError


def git(folder: pathlib.Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A work tree with a package, a script, a link and an ignored file."""
    folder = tmp_path / "tree"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "a b.py").write_text("A = 1\n")
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    (folder / ".gitignore").write_text("*.key\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


def test_tracked_files_are_copied_with_their_uncommitted_changes(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    git(tree, "commit", "-qm", "first")
    (tree / "package" / "a b.py").write_text("A = 2\n")
    copied = snapshot.copy(snapshot.describe(tree), into=tmp_path)
    assert (copied / "package" / "a b.py").read_text() == "A = 2\n"
    assert os.access(copied / "run.sh", os.X_OK)
    assert os.readlink(copied / "link") == "run.sh"
    assert not (copied / ".git").exists()


def test_what_git_does_not_track_is_never_copied_but_python_is_mentioned(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tree / "secret.key").write_text("x")
    (tree / ".env").write_text("TOKEN=x")
    (tree / "new.py").write_text("B = 1\n")
    found = snapshot.describe(tree)
    assert found.untracked == ("new.py",)
    copied = snapshot.copy(found, into=tmp_path)
    names = {path.name for path in copied.rglob("*") if not path.is_dir()}
    assert names == {"a b.py", "run.sh", "link", ".gitignore"}


def test_the_digest_is_the_same_for_the_same_content_wherever_and_whenever(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    before = snapshot.describe(tree).digest
    git(tree, "commit", "-qm", "first")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(tree), str(clone))
    os.utime(clone / "run.sh", (0, 0))
    assert snapshot.describe(clone).digest == before


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "removed"])
def test_every_change_of_a_file_changes_the_digest(tree: pathlib.Path, change: str) -> None:
    before = snapshot.describe(tree).digest
    match change:
        case "content":
            (tree / "run.sh").write_text("false\n")
        case "name":
            git(tree, "mv", "run.sh", "go.sh")
        case "mode":
            (tree / "run.sh").chmod(0o644)
        case "link":
            (tree / "link").unlink()
            (tree / "link").symlink_to("elsewhere")
        case "removed":
            (tree / "run.sh").unlink()
    assert snapshot.describe(tree).digest != before


def test_a_copy_that_is_there_is_used_again(tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = snapshot.copy(snapshot.describe(tree), into=tmp_path)
    (first / "mark").write_text("")
    assert snapshot.copy(snapshot.describe(tree), into=tmp_path) == first
    assert (first / "mark").exists()


def test_code_that_changes_while_it_is_copied_is_refused_and_leaves_nothing(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    described = snapshot.describe(tree)
    (tree / "run.sh").write_text("false\n")
    into = tmp_path / "code"
    into.mkdir()
    with pytest.raises(SnapshotError, match="changed while it was copied"):
        snapshot.copy(described, into=into)
    assert list(into.iterdir()) == []


def test_only_the_named_part_of_a_work_tree_is_copied(tree: pathlib.Path) -> None:
    assert snapshot.describe(tree / "package").files == ("a b.py",)


def test_a_hook_of_another_repository_does_not_mislead(
    tree: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert snapshot.describe(tree).files


def test_a_folder_outside_of_git_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SnapshotError, match="Name a folder of a git work tree"):
        snapshot.describe(tmp_path)
    with pytest.raises(SnapshotError, match="absent"):
        snapshot.describe(tmp_path / "absent")


def test_a_work_tree_without_tracked_files_is_refused(tmp_path: pathlib.Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(SnapshotError, match="git add"):
        snapshot.describe(tmp_path)


def test_without_git_the_reason_is_said(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SnapshotError, match="needs git"):
        snapshot.describe(tree)
