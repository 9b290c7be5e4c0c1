"""Set-up says what is wrong and goes on from where it was."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
FAKE_PIP = """
import os, pathlib, sys, time
state = pathlib.Path(os.environ["FAKE_STATE"])
print(os.environ.get("FAKE_SAYS", ""))
(state / "started").touch()
while os.environ.get("FAKE_HANGS") and not (state / "go").exists():
    time.sleep(0.01)
sys.exit(int(os.environ.get("FAKE_CODE", "0")))
"""


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of what set-up needs, with an environment whose pip is under the test's control."""
    folder = tmp_path / "copy"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci" / "setup", folder / ".ci" / "setup")
    shutil.copy(REPOSITORY / ".python-version", folder)
    (folder / "some.lock").write_text("nothing==1\n")
    return folder


def _with_pip(tree: pathlib.Path) -> dict[str, str]:
    package = tree / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_PIP)
    binary = tree / ".venv" / "bin"
    binary.mkdir(parents=True)
    (binary / "python").symlink_to(sys.executable)
    return {**os.environ, "PYTHONPATH": str(tree / "fake"), "FAKE_STATE": str(tree)}


def _setup(tree: pathlib.Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ".ci/setup", "some.lock"],
        cwd=tree,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_missing_python_is_named(tree: pathlib.Path) -> None:
    empty = tree / "bin"
    empty.mkdir()
    for tool in ("bash", "cat", "sha256sum", "cut", "dirname", "basename"):
        found = shutil.which(tool)
        assert found
        (empty / tool).symlink_to(found)
    (empty / "python3").write_text("#!/bin/bash\necho 3.8\n")
    (empty / "python3").chmod(0o755)
    done = _setup(tree, {"PATH": str(empty)})
    assert done.returncode == 1
    assert "needs Python 3.12" in done.stderr
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("ERROR: No space left on device", "disk is full"),
        ("Connection refused: Max retries exceeded", "could not be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "differs from the one that was locked"),
        ("something else", "install.log"),
    ],
)
def test_a_failed_installation_says_what_to_do_and_is_tried_again(
    tree: pathlib.Path, says: str, expected: str
) -> None:
    environ = _with_pip(tree)
    done = _setup(tree, {**environ, "FAKE_SAYS": says, "FAKE_CODE": "1"})
    assert done.returncode == 1
    assert expected in done.stderr
    (tree / "started").unlink()
    assert _setup(tree, environ).returncode == 0
    assert (tree / "started").exists(), "a failed list must be installed again"


def test_a_finished_list_is_not_installed_twice_but_a_changed_one_is(tree: pathlib.Path) -> None:
    environ = _with_pip(tree)
    assert _setup(tree, environ).returncode == 0
    (tree / "started").unlink()
    assert _setup(tree, environ).returncode == 0
    assert not (tree / "started").exists()
    (tree / "some.lock").write_text("nothing==2\n")
    assert _setup(tree, environ).returncode == 0
    assert (tree / "started").exists()


def test_an_interrupt_says_so_and_leaves_no_stamp(tree: pathlib.Path) -> None:
    process = subprocess.Popen(
        ["bash", ".ci/setup", "some.lock"],
        cwd=tree,
        env={**_with_pip(tree), "FAKE_HANGS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tree / "started").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on from here" in text
    assert not (tree / ".venv" / "installed-some.lock").exists()
