"""The command that certifies layouts: mistakes and interruptions end in one sentence."""

import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.end_to_end.runs import REPOSITORY, read_only
from trainer.certificate.page import check_writable


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer.certify", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--only=(", "--only=(: no regular expression: missing )"),
        ("--only=[z-a]", "no regular expression: bad character range"),
        ("--only=no such row", "--only='no such row' matches no row."),
        ("--onyl=x", "Unknown command line flag 'onyl'. Did you mean: only"),
        ("fsdp", "Unknown argument 'fsdp'."),
    ],
)
def test_a_wrong_command_line_ends_in_a_sentence(argument: str, words: str) -> None:
    done = command(argument)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_cannot_be_written_is_known_before_the_rows_are_run(
    tmp_path: pathlib.Path,
) -> None:
    check_writable(tmp_path / "new.md")
    with pytest.raises(ValueError, match=r"absent/page\.md, which cannot be written"):
        check_writable(tmp_path / "absent" / "page.md")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "page.md").write_text("old")
    with read_only(folder):
        for name in ("page.md", "new.md"):
            with pytest.raises(ValueError, match="cannot be written"):
                check_writable(folder / name)


def start(only: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.certify", f"--only={only}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupted_command_says_how_far_it_came() -> None:
    process = start("one device")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1/")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert re.search(r"^Interrupted after \d+ of \d+ rows; nothing was written.$", output, re.M)


def test_rows_go_on_when_nobody_reads_them() -> None:
    process = start("one device, 2 microbatches")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert (process.wait(), "Traceback" in said) == (0, False), said
