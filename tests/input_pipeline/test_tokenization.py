"""Preparing: once, whole, the same for all, whoever else prepares and whenever it is killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from input_pipeline import tokenization
from input_pipeline.cache import make_once
from input_pipeline.corpus import open_corpus
from input_pipeline.data_config import Bytes, TextFiles, TrainedBpe
from input_pipeline.source import split_ragged
from input_pipeline.token_store import StoreRecord, TokenStore
from input_pipeline.tokenization import prepare_in_cache, read_baselines
from input_pipeline.tokenizer_files import tokenizer_from_json

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def text(tmp_path: Path) -> TextFiles:
    root = tmp_path / "text"
    root.mkdir()
    for number in range(40):
        (root / f"{number}.txt").write_text(f"the text of number {number} é\n" * (number % 5))
    return TextFiles(root=str(root), licence="CC0-1.0", held_out=0.3)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("tokenizer", [Bytes(), TrainedBpe(vocab_size=290)], ids=["bytes", "bpe"])
def test_every_document_is_stored_whole_between_its_start_and_end(text, cache, tokenizer) -> None:
    folder = prepare_in_cache(text, tokenizer=tokenizer, cache_dir=cache)
    for split, source in open_corpus(text).splits.items():
        store = TokenStore(folder, split=split)
        made = tokenizer_from_json(store.record.tokenizer, where="test")
        part = source.read(np.arange(len(source)))
        expected = split_ragged(part["text"], part["lengths"])
        assert len(store) == len(expected)
        assert store.split.text_bytes == sum(map(len, expected))
        for number, document in enumerate(expected):
            tokens = store.read(np.array([number]))["tokens"]
            assert (tokens[0], tokens[-1]) == (made.bos, made.eos)
            assert made.decode(tokens).encode() == document
    assert read_baselines(folder) is not None


def test_what_is_prepared_is_used_again_and_what_is_different_is_not(
    text, cache, monkeypatch
) -> None:
    first = prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=290), cache_dir=cache)
    other = prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=289), cache_dir=cache)
    (Path(text.root) / "new.txt").write_text("new")
    changed = prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=290), cache_dir=cache)
    assert len({first, other, changed}) == 3
    monkeypatch.setattr(tokenization, "write_store", None)
    monkeypatch.setattr(tokenization, "train_bpe", None)
    again = prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=290), cache_dir=cache)
    assert again == changed


def test_another_cache_gives_the_same_dataset(text, tmp_path) -> None:
    digests = {
        StoreRecord.read(
            prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=290), cache_dir=tmp_path / name)
        ).digest
        for name in ("a", "b")
    }
    assert len(digests) == 1


PREPARE = """
import sys
from pathlib import Path
from input_pipeline import tokenization
from input_pipeline.data_config import TextFiles, TrainedBpe

text = TextFiles(root=sys.argv[1], licence="CC0-1.0", held_out=0.3)
print("ready", flush=True)
sys.stdin.readline()
bpe = TrainedBpe(vocab_size=290)
tokenization.prepare_in_cache(text, tokenizer=bpe, cache_dir=Path(sys.argv[2]))
"""


def test_processes_that_prepare_at_once_all_get_it_and_leave_nothing_else(text, cache) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, text.root, str(cache)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 3
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    for kind in ("tokens", "tokenizers"):
        assert len(list((cache / kind).glob("[!.]*"))) == 1
        assert all(path.name.endswith(".lock") for path in (cache / kind).glob(".*"))


KILLED = """
import os, sys
from pathlib import Path
from input_pipeline import token_writer, tokenization
from input_pipeline.data_config import Bytes, TextFiles

text = TextFiles(root=sys.argv[1], licence="CC0-1.0", held_out=0.3)
finish = token_writer.SplitWriter.finish
def die(self, **options):
    finish(self, **options)
    os.kill(os.getpid(), 9)
token_writer.SplitWriter.finish = die
tokenization.prepare_in_cache(text, tokenizer=Bytes(), cache_dir=Path(sys.argv[2]))
"""


def test_a_kill_halfway_leaves_nothing_that_counts_and_the_next_clears_it(text, cache) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, text.root, str(cache)], env=environment, check=False
    )
    assert killed.returncode == -9
    assert not list((cache / "tokens").glob("[!.]*"))
    assert len(list((cache / "tokens").glob(".*.*.????????????????????????????????"))) == 1
    folder = prepare_in_cache(text, tokenizer=Bytes(), cache_dir=cache)
    TokenStore(folder, split="train", verify=True)
    assert sorted(p.name for p in (cache / "tokens").iterdir()) == sorted(
        [folder.name, f".{folder.name}.lock"]
    )


def test_a_failure_halfway_is_raised_and_leaves_nothing(tmp_path) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught:
        make_once(tmp_path / "made", make=make)
    assert "While preparing" in caught.value.__notes__[0]
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]
    done = make_once(tmp_path / "made", make=lambda folder: (folder / "x").touch())
    assert [path.name for path in done.iterdir()] == ["x"]


def test_a_host_that_loses_the_race_takes_the_winners(tmp_path) -> None:
    def make(folder: Path) -> None:
        # The lock does not reach the other host.
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "theirs").touch()
        (folder / "ours").touch()

    made = make_once(tmp_path / "made", make=make)
    assert [path.name for path in made.iterdir()] == ["theirs"]
    assert not list(tmp_path.glob(".made.*.[0-9a-f]*[0-9a-f]"))


def test_a_tokenizer_is_trained_on_a_bounded_sample_of_the_training_split_only(
    text, cache, monkeypatch
) -> None:
    seen: list[str] = []

    def train(texts: Iterator[str], **options: object) -> None:
        seen.extend(texts)
        raise InterruptedError

    monkeypatch.setattr(tokenization, "train_bpe", train)
    monkeypatch.setattr(tokenization, "TRAINING_BYTES", 300)
    with pytest.raises(InterruptedError):
        prepare_in_cache(text, tokenizer=TrainedBpe(vocab_size=290), cache_dir=cache)
    corpus = open_corpus(text)
    part = corpus.splits["train"].read(np.arange(len(corpus.splits["train"])))
    allowed = {one.decode() for one in split_ragged(part["text"], part["lengths"])}
    assert set(seen) <= allowed
    size = sum(len(one.encode()) for one in seen)
    assert 300 <= size < 300 + max(len(one.encode()) for one in allowed)


def run_prepare(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "input_pipeline.prepare", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )


def test_the_command_writes_shards_and_checks_them(text, tmp_path) -> None:
    out = tmp_path / "shards"
    flags = ["--root", text.root, "--licence=CC0-1.0", "--held_out=0.3", "--out", str(out)]
    done = run_prepare(*flags, "--tokenizer=bpe", "--vocab_size=290")
    assert done.returncode == 0, done.stderr
    record = StoreRecord.read(out)
    assert record.digest in done.stdout
    assert record.vocab_size == 290
    assert sorted(record.splits) == ["held_out", "train"]

    again = run_prepare(*flags)
    assert (again.returncode, again.stdout) == (64, "")
    assert "exists already" in again.stderr

    assert "every digest is right" in run_prepare(f"--verify={out}").stdout
    path = out / "train" / "offsets.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    damaged = run_prepare(f"--verify={out}")
    assert damaged.returncode == 64
    assert "offsets.bin differs" in damaged.stderr


def test_the_manifest_is_one_json_that_people_can_read(text, cache) -> None:
    folder = prepare_in_cache(text, tokenizer=Bytes(), cache_dir=cache)
    value = json.loads((folder / "manifest.json").read_text())
    assert value["version"] == 1
    assert value["manifest"]["licence"] == "CC0-1.0"
    assert len(value["manifest"]["files"]) == 40
    assert value["splits"]["train"]["documents"] + value["splits"]["held_out"]["documents"] == 40
