"""Conversations from docstrings: plain text, whole answers, the same every time."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from input_pipeline import docstring_conversations as made
from input_pipeline.conversation import conversation_text

DOCSTRING = """svd(a, full=True)

Take a matrix apart.

The result of :func:`numpy.linalg.svd` is ``u`` [1]_.

.. versionadded:: 1.2
   And changed since.

Parameters
----------
a : array
    What is taken apart.

    Real or complex.
full : bool
    Whether all of it::

        is there

Returns
-------
u : array
    A part.
"""


def test_sections_become_turns_without_markup() -> None:
    turns = made.turns("pkg.svd", DOCSTRING, longest=600)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3
    assert [turn["content"] for turn in turns] == [
        "What does pkg.svd do?",
        "Take a matrix apart.\n\nThe result of `numpy.linalg.svd` is `u`.",
        "What are its parameters?",
        "a : array\n    What is taken apart.\n\n    Real or complex.\n"
        "full : bool\n    Whether all of it:\n\n        is there",
        "What does it return?",
        "u : array\n    A part.",
    ]


def test_answers_end_with_a_whole_paragraph_or_entry() -> None:
    turns = made.turns("pkg.svd", DOCSTRING, longest=60)
    assert turns[1]["content"] == "Take a matrix apart."
    assert turns[3]["content"] == "a : array\n    What is taken apart.\n\n    Real or complex."
    assert made.turns("pkg.svd", DOCSTRING, longest=5) == []


def test_public_names_come_once_under_their_shortest(monkeypatch) -> None:
    package, inner = types.ModuleType("pkg"), types.ModuleType("pkg.inner")

    def told() -> None:
        """Says something."""

    def silent() -> None:
        pass

    told.__module__ = silent.__module__ = "pkg.inner"
    inner.told, inner.silent, inner._private = told, silent, told
    package.told, package.foreign = told, json.loads
    monkeypatch.setattr(made, "_modules", lambda _: iter([inner, package]))
    assert made.documented(package) == {"pkg.told": "Says something."}


def test_a_package_gives_the_same_conversations_every_time(tmp_path) -> None:
    lines = [made.write("json", output=tmp_path / name, longest=600) for name in ("a", "b")]
    assert lines[0].replace("/a/", "/b/") == lines[1]
    content = (tmp_path / "a" / made.CONVERSATIONS).read_text()
    assert content == (tmp_path / "b" / made.CONVERSATIONS).read_text()
    records = [json.loads(line) for line in content.splitlines()]
    assert "What does json.loads do?" in {r["messages"][0]["content"] for r in records}
    assert all(json.loads(conversation_text(record)) == record for record in records)
    about = (tmp_path / "a" / made.README).read_text()
    assert f"json {sys.version.split()[0]}" in about
    assert "PSF-2.0" in about
    with pytest.raises(ValueError, match="exists already"):
        made.write("json", output=tmp_path / "a", longest=600)


def test_an_installed_package_gives_a_few_megabytes_with_its_licence(tmp_path) -> None:
    made.write("numpy", output=tmp_path / "numpy", longest=600)
    size = (tmp_path / "numpy" / made.CONVERSATIONS).stat().st_size
    assert 500_000 < size < 5_000_000
    assert "BSD-3-Clause" in (tmp_path / "numpy" / made.README).read_text()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "input_pipeline.docstring_conversations", "json"]
    done = subprocess.run(
        [*command, f"--output={tmp_path / 'file' / 'out'}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 64
    assert len(done.stderr.splitlines()) == 1
    assert f"{tmp_path / 'file'}" in done.stderr


@pytest.mark.parametrize("name", ["../x", ".json", "", "broken_package"])
def test_what_cannot_be_imported_is_refused(name, tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"'{name}' cannot be imported"):
        made.conversations(name, longest=600)


def test_a_package_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="'no_such_package' cannot be imported"):
        made.conversations("no_such_package", longest=600)
    with pytest.raises(ValueError, match="no public functions"):
        made.conversations("this", longest=600)
