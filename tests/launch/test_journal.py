"""A line of the journal is there as a whole, or whoever wrote it hears that it is not."""

import os
import pathlib

import pytest

from launch.journal import Journal


def test_lines_come_back_as_they_were_written(tmp_path: pathlib.Path) -> None:
    journal = Journal(tmp_path / "new")
    written = [journal.append("decided", attempt=n, why=f"line\n{n} \u2028") for n in range(3)]
    assert journal.entries() == written


@pytest.mark.parametrize("torn", [b'{"version": 1, "ti', b"\xff\xfe", b"[" * 100_000])
def test_a_torn_line_hides_no_other(tmp_path: pathlib.Path, torn: bytes) -> None:
    journal = Journal(tmp_path)
    first = journal.append("allocated", attempt=1)
    with journal.path.open("ab") as file:
        file.write(torn)
    assert journal.entries() == [first]
    second = journal.append("done", attempt=1)
    assert journal.entries() == [first, second]


def test_a_line_that_is_only_half_on_a_full_disk_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, write = Journal(tmp_path), os.write
    monkeypatch.setattr("os.write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        journal.append("done", attempt=1)
    assert journal.entries() == []
