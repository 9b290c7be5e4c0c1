"""Prompts: texts begin as documents do, conversations as the chat template writes them."""

import dataclasses
import json

import numpy as np
import pytest

from input_pipeline.data_config import Conversations, DataConfig, StandardLibrary, TokenShards
from input_pipeline.tokenizer import ByteTokenizer, Conventions
from trainer.prompts import PromptReader, asked_prompts, stop_tokens, text_prompt

TEXTS = DataConfig(source=StandardLibrary(), sequence_length=8, global_batch=1)
CHATS = dataclasses.replace(TEXTS, source=Conversations(root="", template="plain"))
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


class WithoutStart(ByteTokenizer):
    """Has no token before a document, as Qwen's."""

    bos = None


def spelled(prompt) -> str:
    return ByteTokenizer().decode(prompt.tokens)


def test_a_text_begins_as_documents_do():
    assert text_prompt("ab", tokenizer=ByteTokenizer()).tolist() == [257, 97, 98]
    assert text_prompt("ab", tokenizer=WithoutStart()).tolist() == [97, 98]
    assert text_prompt("", tokenizer=WithoutStart()).dtype == np.int32


def test_a_special_token_in_a_text_is_text():
    reader = PromptReader(TEXTS, tokenizer=ByteTokenizer())
    assert 258 not in reader.text("<|eos|>").tokens
    asked = {"messages": [{"role": "user", "content": "<|eos|>"}]}
    assert 258 not in PromptReader(CHATS, tokenizer=ByteTokenizer()).conversation(asked).tokens


def test_a_conversation_ends_where_the_answer_begins():
    reader = PromptReader(CHATS, tokenizer=ByteTokenizer())
    assert spelled(reader.conversation(HELLO)) == "### User\nhello\n\n### Assistant\n"
    assert reader.stop == (258,)


def test_the_token_that_ends_a_turn_stops_an_answer():
    """A model whose texts end with one token and whose turns with another."""
    marked = (
        "{% for m in messages %}{% generation %}{{ m.content + '<|pad|>' }}{% endgeneration %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '>' }}{% endif %}"
    )
    names = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    conventions = Conventions(names=names, chat_templates={"default": marked})
    reader = PromptReader(TEXTS, tokenizer=ByteTokenizer(conventions=conventions))
    assert reader.stop == (258,)
    reader.conversation(HELLO)
    assert set(reader.stop) == {256, 258}


def test_prepared_conversations_end_turns_as_unprepared_ones_do():
    """Their shards record the template, and no day: it must not be asked for."""
    template = (
        "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role + m.content + '<|pad|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
    )
    plain = ByteTokenizer()
    conventions = dataclasses.replace(plain.conventions, chat_templates={"default": template})
    chats = ByteTokenizer(conventions=conventions)
    source = Conversations(root="", date="2024-07-26")
    shards = TokenShards(path="")
    assert stop_tokens(source, tokenizer=chats) == (256, 258)
    assert stop_tokens(shards, tokenizer=chats) == (256, 258)
    assert stop_tokens(shards, tokenizer=plain) == (258,)


def test_texts_and_lines_come_in_order(tmp_path):
    path = tmp_path / "asked.jsonl"
    lines = [{"prompt": "b"}, HELLO, {"prompt": "c"}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    reader = PromptReader(CHATS, tokenizer=ByteTokenizer())
    found = asked_prompts(reader, texts=["a"], file=path, chat=False)
    assert [prompt.asked for prompt in found] == [{"prompt": "a"}, *lines]
    (asked,) = asked_prompts(reader, texts=["hello"], file=None, chat=True)
    np.testing.assert_array_equal(asked.tokens, found[2].tokens)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "asked.jsonl:2: "),
        ("[" * 100_000, "recursion"),
        ('{"prompt": "\\ud800"}', "no Unicode text: surrogates"),
        ('{"messages": [{"role": "user", "content": "\\udc00"}]}', "no Unicode text: surrogates"),
        ("[1]", "a line is"),
        ('{"text": "a"}', "a line is"),
        ('{"messages": []}', "no messages"),
        ('{"messages": [{"role": "user"}]}', "no 'content'"),
    ],
)
def test_a_line_that_asks_nothing_is_named(tmp_path, line, said):
    path = tmp_path / "asked.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(ValueError, match=said) as raised:
        PromptReader(CHATS, tokenizer=ByteTokenizer()).file(path)
    assert "asked.jsonl:2: " in str(raised.value)


def test_a_line_ends_at_a_line_feed_alone(tmp_path):
    """Texts of JSON may hold what other programs take for the end of a line."""
    texts = ["a\u2028b", "c\x85d", "e\x0cf"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    path = tmp_path / "asked.jsonl"
    path.write_bytes("\r\n".join(["\ufeff" + lines[0], " ", *lines[1:], ""]).encode())
    found = PromptReader(TEXTS, tokenizer=ByteTokenizer()).file(path)
    assert [prompt.asked["prompt"] for prompt in found] == texts


def test_nothing_asked_is_said_so(tmp_path):
    reader = PromptReader(TEXTS, tokenizer=ByteTokenizer())
    with pytest.raises(ValueError, match="--prompt="):
        asked_prompts(reader, texts=[], file=None, chat=False)
    with pytest.raises(ValueError, match=r"none\.jsonl cannot be read"):
        asked_prompts(reader, texts=[], file=tmp_path / "none.jsonl", chat=False)


def test_a_chat_without_a_template_says_which_there_are():
    with pytest.raises(ValueError, match="'plain'"):
        PromptReader(TEXTS, tokenizer=ByteTokenizer()).conversation(HELLO)
