"""A line of the journal is whole or counts for nothing, whatever happens to its writer."""

import os
import pathlib

import pytest

from launch.journal import Journal
from launch.records import ContractError


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> Journal:
    made = Journal(tmp_path)
    made.append("first", attempt=1)
    return made


def events(journal: Journal) -> list[str]:
    return [entry.event for entry in journal.entries()]


@pytest.mark.parametrize(
    "torn",
    [b'{"version": 1, "ti', b"\xff\xfe\n", b"\n\n", b"[" * 100_000, b"9" * 5000, b"\0" * 4096],
)
def test_what_is_no_line_counts_for_nothing(journal: Journal, torn: bytes) -> None:
    with journal.path.open("ab") as file:
        file.write(torn)
    journal.append("second", attempt=1)
    assert events(journal) == ["first", "second"]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_line_without_room_is_an_error_and_no_line(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    write = os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda file, data: write(file, data[:kept]))
        with pytest.raises(OSError, match="No space left"):
            journal.append("lost", attempt=1)
    journal.append("second", attempt=1)
    assert events(journal) == ["first", "second"]


def test_a_line_of_another_version_is_named(journal: Journal) -> None:
    with journal.path.open("a") as file:
        file.write('{"version": 2}\n')
    with pytest.raises(ContractError, match=r"journal.jsonl:2 has version 2"):
        journal.entries()
