"""Conversations in a store: what is learned is beside the tokens, and every fault has its line."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.corpus import open_corpus
from input_pipeline.data_config import Bytes, Conversations, DataConfig, TokenizerFile, TrainedBpe
from input_pipeline.dataset import build_dataset
from input_pipeline.token_store import StoreRecord, TokenStore
from input_pipeline.tokenization import prepare_in_cache, read_baselines
from tests.input_pipeline.chat_folders import CHATML, write_byte_level

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def lines(tmp_path: Path) -> Conversations:
    root = tmp_path / "lines"
    root.mkdir()
    records = [{"prompt": f"question {n}?", "completion": f"answer {n}"} for n in range(40)]
    (root / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return Conversations(root=str(root), licence="CC0-1.0", template="plain", held_out=0.3)


def prepared(source: Conversations, cache: Path) -> Path:
    return prepare_in_cache(source, tokenizer=Bytes(), cache_dir=cache)


def test_answers_are_learned_and_nothing_else(lines, tmp_path) -> None:
    folder = prepared(lines, tmp_path / "cache")
    for split in ("train", "held_out"):
        store = TokenStore(folder, split=split)
        assert 0 < len(store) < 40
        part = store.read(np.arange(len(store)))
        learned = store.weights(np.arange(len(part["tokens"]))) == 1
        text = part["tokens"][learned].tolist()
        answers = bytes(t for t in text if t < 256).decode().split("answer ")[1:]
        assert len(answers) == len(store) == text.count(258)
        assert store.split.learned == learned.sum()
        assert store.split.text_bytes is None
    assert read_baselines(folder) is None


def test_a_dataset_of_conversations_brings_the_template_it_was_made_with(lines, tmp_path) -> None:
    config = DataConfig(
        source=lines, tokenizer=Bytes(), sequence_length=64, global_batch=2, packing="whole"
    )
    dataset = build_dataset(config, split="train", cache_dir=tmp_path)
    assert dataset.tokenizer is not None
    assert "### Assistant" in dataset.tokenizer.conventions.chat_templates["default"]
    batch = dataset.rows(np.arange(dataset.rows_per_epoch))
    # The end of a turn is learned; the blank line behind it is not.
    assert set(batch["targets"][batch["loss_weights"] == 1].tolist()) >= {258}
    assert ord("#") not in batch["targets"][batch["loss_weights"] == 1]


def test_template_and_what_is_learned_make_other_stores(lines, tmp_path) -> None:
    changes = [{}, {"train_on": "last_assistant"}, {"train_on": "all"}, {"template": "own.jinja"}]
    (tmp_path / "own.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
        "{% if add_generation_prompt %}{% endif %}"
    )
    changes[3]["template"] = str(tmp_path / "own.jinja")
    changes[3]["train_on"] = "all"
    folders = {prepared(replace(lines, **change), tmp_path / "cache") for change in changes}
    assert len(folders) == 4
    assert len({StoreRecord.read(folder).digest for folder in folders}) >= 3
    assert prepared(lines, tmp_path / "other").name in {folder.name for folder in folders}


def test_a_conversation_stays_in_its_split_however_its_line_is_written(lines) -> None:
    def held_out() -> set[str]:
        source = open_corpus(lines).splits["held_out"]
        return set(source.read(np.arange(len(source)))["text"].tobytes().decode().split('{"mess'))

    before = held_out()
    path = Path(lines.root) / "a.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    turned = [{"completion": r["completion"], "id": 1, "prompt": r["prompt"]} for r in records]
    path.write_text("".join(json.dumps(record, indent=None) + "  \n" for record in turned[::-1]))
    assert held_out() == before


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, r"a\.jsonl:42: the conversation has no messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, r"a\.jsonl:42: .*nothing to learn"),
        ({"text": "x"}, r"a\.jsonl:42: not a conversation"),
    ],
)
def test_a_line_that_cannot_be_learned_is_named(lines, tmp_path, record, message) -> None:
    with (Path(lines.root) / "a.jsonl").open("a") as file:
        file.write("\n" + json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=message):
        prepared(lines, tmp_path / "cache")


def test_a_line_nested_too_deeply_is_named(lines, tmp_path) -> None:
    path = Path(lines.root) / "a.jsonl"
    for depth in range(300, 1200, 60):
        turns = '[{"role": "user", "content": "x", "more": ' + "[" * depth + "]" * depth
        path.write_text('{"messages": ' + turns + '}, {"role": "assistant", "content": "x"}]}\n')
        with contextlib.suppress(ValueError):
            prepared(replace(lines, held_out=0.0), tmp_path / "cache")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: .*recursion"):
        prepared(replace(lines, held_out=0.0), tmp_path / "cache")


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_rows_too_short_for_any_answer_are_refused(lines, tmp_path, split) -> None:
    config = DataConfig(
        source=lines, tokenizer=Bytes(), sequence_length=20, global_batch=2, packing="whole"
    )
    with pytest.raises(ValueError, match=rf"{split}.*nothing to learn: .*sequence_length=20"):
        build_dataset(config, split=split, cache_dir=tmp_path)


def test_what_a_template_refuses_is_said_with_line_template_and_message(lines, tmp_path) -> None:
    refusing = CHATML.replace(
        "{% for message in messages %}",
        "{% for message in messages %}{% if message.role == 'tool' %}"
        "{{ raise_exception('no tools') }}{% endif %}",
    )
    turns = ["<|im_start|>", "<|im_end|>"]
    folder = write_byte_level(
        tmp_path / "m", special=turns, bos=None, eos="<|im_end|>", template=refusing
    )
    with (Path(lines.root) / "a.jsonl").open("a") as file:
        roles = [{"role": role, "content": "x"} for role in ("user", "tool", "assistant")]
        file.write(json.dumps({"messages": roles}) + "\n")
    own = replace(lines, template="")
    with pytest.raises(ValueError, match=r"a\.jsonl:41: .*'default', message 2 of 3: no tools"):
        prepare_in_cache(own, tokenizer=TokenizerFile(path=str(folder)), cache_dir=tmp_path / "c")


def test_a_tokenizer_is_not_trained_on_conversations(lines, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"TrainedBpe learns .*TokenizerFile\.path"):
        prepare_in_cache(lines, tokenizer=TrainedBpe(vocab_size=290), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_on": "user"}, "allowed are assistant, last_assistant, all"),
        ({"date": "x"}, "no day"),
    ],
)
def test_settings_that_cannot_be_are_refused(lines, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(lines, **change)


def run_prepare(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "input_pipeline.prepare", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ},
        check=False,
    )


def test_the_command_writes_conversations_with_a_saved_tokenizer(lines, tmp_path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("question answer ### User Assistant " * 30)
    (tmp_path / "text" / "b.txt").write_text("question answers " * 30)
    saved = tmp_path / "tokenizer"
    text = ("--licence=CC0-1.0", "--held_out=0", "--tokenizer=bpe", "--vocab_size=280")
    done = run_prepare(f"--root={tmp_path / 'text'}", *text, f"--save_tokenizer={saved}")
    assert (done.returncode, "280 tokens" in done.stdout) == (0, True), done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines", "text", "tokenizer"]
    flags = ("--text=conversations", f"--root={lines.root}", "--licence=CC0-1.0")
    out = tmp_path / "shards"
    done = run_prepare(*flags, f"--tokenizer={saved}", "--template=plain", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "of them learned" in done.stdout
    assert "every digest is right" in run_prepare(f"--verify={out}").stdout
    again = run_prepare(*flags, f"--tokenizer={saved}", f"--out={tmp_path / 'no'}")
    assert again.returncode == 64
    assert "no chat template" in again.stderr
    for folder in (saved / "tokenizer.json" / "no", out):
        wrong = run_prepare(*flags, "--template=plain", "--tokenizer=bytes", f"--out={folder}")
        assert (wrong.returncode, len(wrong.stderr.splitlines())) == (64, 1)
    both = tmp_path / "both"
    wrong = run_prepare(*flags, "--tokenizer=bytes", f"--out={both}", f"--save_tokenizer={both}")
    assert (wrong.returncode, both.exists()) == (64, False)
