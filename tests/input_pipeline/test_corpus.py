"""Sources of text: what is found, how it is split, what the manifest says, how errors read."""

import json
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.corpus import hash_share, open_corpus
from input_pipeline.data_config import JsonLines, StandardLibrary, TextFiles, TokenShards
from input_pipeline.manifest import Manifest
from input_pipeline.source import JsonLineDocuments, Source, line_spans, split_ragged


def texts(source: Source) -> list[bytes]:
    part = source.read(np.arange(len(source)))
    return split_ragged(part["text"], part["lengths"])


@pytest.fixture
def folder(tmp_path: Path) -> TextFiles:
    for number in range(60):
        path = tmp_path / f"part{number % 3}" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {number} é")
    return TextFiles(root=str(tmp_path), licence="CC0-1.0", held_out=0.3)


@pytest.fixture
def lines(tmp_path: Path) -> JsonLines:
    rows = [json.dumps({"text": f"line {n} é", "id": n}) for n in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:20]) + "\n\n  \n")
    (tmp_path / "b.jsonl").write_text("\r\n".join(rows[20:]))
    return JsonLines(root=str(tmp_path), licence="CC0-1.0", held_out=0.3)


@pytest.mark.parametrize("name", ["folder", "lines"])
def test_every_document_is_in_exactly_one_split(name, request) -> None:
    corpus = open_corpus(request.getfixturevalue(name))
    both = texts(corpus.splits["train"]) + texts(corpus.splits["held_out"])
    kind, count = ("text", 60) if name == "folder" else ("line", 50)
    assert sorted(both) == sorted(f"{kind} {n} é".encode() for n in range(count))
    assert 5 < len(corpus.splits["held_out"]) < count / 2


def test_a_document_stays_in_its_split_when_others_come_and_go(folder) -> None:
    before = set(texts(open_corpus(folder).splits["held_out"]))
    for number in range(0, 60, 2):
        (Path(folder.root) / f"part{number % 3}" / f"{number}.txt").unlink()
    (Path(folder.root) / "new.txt").write_text("new")
    after = set(texts(open_corpus(folder).splits["held_out"])) - {b"new"}
    assert after == {text for text in before if int(text.split()[1]) % 2}


@given(st.lists(st.binary(max_size=6), unique=True, min_size=1))
def test_shares_depend_on_content_alone(contents: list[bytes]) -> None:
    shares = [hash_share(content) for content in contents]
    assert all(0 <= share < 1 for share in shares)
    assert shares == [hash_share(content) for content in contents]
    assert len(set(shares)) == len(contents)


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename", "field"])
def test_a_changed_dataset_has_another_digest_and_a_moved_one_the_same(
    folder, tmp_path_factory, change
) -> None:
    before = open_corpus(folder).manifest.digest
    root = Path(folder.root)
    moved = tmp_path_factory.mktemp("moved") / root.name
    root.rename(moved)
    assert open_corpus(replace(folder, root=str(moved))).manifest.digest == before
    config = replace(folder, root=str(moved))
    match change:
        case "edit":
            (moved / "part0" / "0.txt").write_text("text 1 é")
        case "add":
            (moved / "more.txt").write_text("")
        case "remove":
            (moved / "part0" / "0.txt").unlink()
        case "rename":
            (moved / "part0" / "0.txt").rename(moved / "part0" / "00.txt")
        case "field":
            config = replace(config, held_out=0.31)
    assert open_corpus(config).manifest.digest != before


def test_the_manifest_lists_files_sizes_digests_and_records(lines) -> None:
    manifest = open_corpus(lines).manifest
    assert [(f.path, f.records) for f in manifest.files] == [("a.jsonl", 20), ("b.jsonl", 30)]
    assert manifest.files[0].size == (Path(lines.root) / "a.jsonl").stat().st_size
    assert all(len(f.sha256) == 64 for f in manifest.files)
    assert manifest.records == 50
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert lines.root not in json.dumps(manifest.to_json())


@pytest.mark.parametrize("name", ["folder", "lines"])
def test_a_dataset_without_a_licence_is_refused(name, request) -> None:
    config = replace(request.getfixturevalue(name), licence=" ")
    with pytest.raises(ValueError, match=r"names no licence.*SPDX"):
        open_corpus(config)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', r"a\.jsonl:3: not valid JSON"),
        ("[", r"a\.jsonl:3: not valid JSON .*Each line must be one JSON object"),
        ("[" * 100_000, r"a\.jsonl:3: not valid JSON .*recursion"),
        ("[1]", r"a\.jsonl:3: a line must be a JSON object, not list"),
        ('{"body": "x"}', r"a\.jsonl:3: no field 'text'; it has \['body'\]"),
        ('{"text": 5}', r"a\.jsonl:3: field 'text' is int, not text"),
        ('{"text": "\\ud800"}', r"a\.jsonl:3: .*surrogate"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_line(tmp_path, line, message) -> None:
    good = '{"text": "fine"}'
    (tmp_path / "a.jsonl").write_text(f"{good}\n\n{line}\n{good}\n")
    config = JsonLines(root=str(tmp_path), licence="CC0-1.0", held_out=0.0)
    with pytest.raises(ValueError, match=message):
        _ = open_corpus(config).splits


def test_text_that_is_not_utf8_is_named(folder) -> None:
    (Path(folder.root) / "part1" / "1.txt").write_bytes(b"caf\xe9")
    source = open_corpus(replace(folder, held_out=0.0)).splits["train"]
    with pytest.raises(ValueError, match=r"part1/1\.txt: not UTF-8"):
        texts(source)


def test_what_was_searched_is_said_when_nothing_is_found(folder) -> None:
    with pytest.raises(ValueError, match=r"TextFiles\.root=.*no such folder.*exists and holds"):
        open_corpus(replace(folder, root=folder.root + "/not/here"))
    with pytest.raises(ValueError, match=r"0\.txt' is a file.*TextFiles\.files=\('0\.txt',\)"):
        open_corpus(replace(folder, root=folder.root + "/part0/0.txt"))
    with pytest.raises(ValueError, match=r"pattern '\*\.md' matches no file under .*part0"):
        open_corpus(replace(folder, files=("**/*.txt", "*.md")))
    with pytest.raises(ValueError, match="at least one pattern"):
        open_corpus(replace(folder, files=()))


def test_empty_sets_are_refused(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    config = JsonLines(root=str(tmp_path), licence="CC0-1.0")
    with pytest.raises(ValueError, match="is empty"):
        open_corpus(config)
    (tmp_path / "a.jsonl").write_text('{"text": "x"}')
    with pytest.raises(ValueError, match="held-out"):
        _ = open_corpus(replace(config, held_out=0.999999)).splits
    with pytest.raises(ValueError, match=r"not in \[0, 1\)"):
        open_corpus(replace(config, held_out=1.0))


def test_opening_a_corpus_reads_no_document(lines, monkeypatch) -> None:
    monkeypatch.setattr(JsonLineDocuments, "read", None)
    assert open_corpus(lines).manifest.records == 50


def test_a_source_of_tokens_holds_no_text() -> None:
    with pytest.raises(ValueError, match="TokenShards, which holds no text"):
        open_corpus(TokenShards(path="x"))


def test_the_standard_library_is_source_text_with_a_licence() -> None:
    corpus = open_corpus(StandardLibrary())
    assert corpus.manifest.licence == "PSF-2.0"
    assert sum(file.size for file in corpus.manifest.files) > 5_000_000
    parts = [Path(file.path).parts for file in corpus.manifest.files]
    banned = {"site-packages", "test", "tests", "__pycache__"}
    assert not any(banned & set(path) for path in parts)
    assert ("dataclasses.py",) in parts
    held = sum(map(len, texts(corpus.splits["held_out"])))
    assert 0.01 < held / sum(file.size for file in corpus.manifest.files) < 0.15
    root = Path(sysconfig.get_path("stdlib"))
    sample = texts(corpus.splits["train"])[0]
    assert any(sample == (root / file.path).read_bytes() for file in corpus.manifest.files)


@given(
    st.lists(st.sampled_from([b"", b" ", b"ab", b"c" * 20, b" " * 20, b" x", b"\r"]), max_size=8),
    st.booleans(),
)
def test_lines_are_found_as_python_finds_them(tmp_path_factory, parts, ends) -> None:
    path = tmp_path_factory.mktemp("lines") / "x"
    content = b"\n".join(parts) + (b"\n" if ends else b"")
    path.write_bytes(content)
    expected = [(n, t) for n, t in enumerate(content.split(b"\n"), 1) if t.strip()]
    starts, stops, numbers = line_spans(path)
    assert [(int(n), content[a:b]) for a, b, n in zip(starts, stops, numbers)] == expected
