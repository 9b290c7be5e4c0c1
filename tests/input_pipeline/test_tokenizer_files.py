"""Tokenizers are read from files and whole folders, SentencePiece included, and refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.data_config import TokenizerFile
from input_pipeline.sentencepiece_tokenizer import SentencePieceTokenizer
from input_pipeline.special_tokens import encode_between, spelled
from input_pipeline.tokenizer import ByteTokenizer, Tokenizer
from input_pipeline.tokenizer_files import load_tokenizer, save_tokenizer, tokenizer_from_json
from tests.input_pipeline.chat_folders import (
    CHATML,
    HEADERS,
    TEXTS,
    sentencepiece_model,
    write_byte_level,
    write_sentencepiece,
)


def load(path: Path, **options: str) -> Tokenizer:
    return load_tokenizer(TokenizerFile(path=str(path), **options))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    tokenizer = load(write_sentencepiece(tmp_path_factory.mktemp("spm") / "folder"))
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0▁")))
def test_sentencepiece_text_survives_and_its_bytes_are_counted(pieces, text: str) -> None:
    [tokens] = pieces.encode_batch([text.encode()])
    assert pieces.decode(tokens) == text
    # One more than the text: SentencePiece puts a space in front of it.
    assert pieces.token_bytes[tokens].sum() == len(text.encode()) + bool(text)


@given(parts=st.lists(st.sampled_from(["<turn>", "<s>", "</s>", "<tu", "rn>", "the ", "é", " "])))
def test_sentencepiece_takes_spelled_special_tokens_for_text(pieces, parts) -> None:
    text = "".join(parts)
    for tokens in (
        pieces.encode_batch([text.encode()])[0],
        pieces.encode_marked(text, meant=()).tokens,
    ):
        assert not set(pieces.special.values()) & set(tokens.tolist())
        assert pieces.decode(tokens) == text


@given(parts=st.lists(st.sampled_from(["<turn>", "</s>", "the cat", "é", " ", "日本"]), min_size=1))
def test_characters_of_tokens_cover_the_text_in_order(pieces, parts) -> None:
    text = "".join(parts)
    for tokenizer in (pieces, ByteTokenizer()):
        found = tokenizer.encode_marked(text)
        assert (np.diff(found.starts) >= 0).all()
        assert (found.stops <= len(text)).all()
        everywhere = found.within([(0, len(text))])
        assert everywhere.all()
        for token, start, stop in zip(found.tokens, found.starts, found.stops):
            if text[start:stop] in tokenizer.special:
                assert token == tokenizer.special[text[start:stop]]


def test_a_saved_sentencepiece_tokenizer_is_the_same(pieces, tmp_path) -> None:
    save_tokenizer(tmp_path / "saved", pieces)
    copies = [tokenizer_from_json(pieces.to_json(), where="test"), load(tmp_path / "saved")]
    texts = [text.encode() for text in TEXTS[:5]]
    for copy in copies:
        assert copy.digest == pieces.digest
        assert copy.conventions.chat_templates == pieces.conventions.chat_templates
        assert np.array_equal(copy.token_bytes, pieces.token_bytes)
        for one, other in zip(copy.encode_batch(texts), pieces.encode_batch(texts), strict=True):
            assert np.array_equal(one, other)


def test_the_digest_of_sentencepiece_covers_all_that_decides_tokens(tmp_path) -> None:
    base = {"bos": "<s>", "eos": "</s>", "where": "test"}
    changes = [{}, {"bos": None}, {"declared": ["<turn>"]}, {"added": {"<more>": 5000}}]
    made = [SentencePieceTokenizer(sentencepiece_model(), **{**base, **c}) for c in changes]
    other = sentencepiece_model().replace(b"the", b"teh", 1)
    made.append(SentencePieceTokenizer(other, **base))
    assert len({tokenizer.digest for tokenizer in made}) == len(made)
    assert made[3].vocab_size == 5001
    assert made[3].encode_marked("a<more>").tokens[-1] == 5000


def test_a_folder_names_its_own_start_and_end(tmp_path) -> None:
    folder = write_byte_level(
        tmp_path / "a", special=["<a>", "<b>"], bos="<a>", eos="<b>", template=HEADERS
    )
    tokenizer = load(folder)
    assert (tokenizer.bos, tokenizer.eos) == (tokenizer.special["<a>"], tokenizer.special["<b>"])
    assert tokenizer.conventions.chat_templates == {"default": HEADERS}
    swapped = load(folder, bos="<b>", eos="<a>")
    assert (swapped.bos, swapped.eos) == (tokenizer.eos, tokenizer.bos)
    assert load(folder, bos="").bos is None


def test_a_tokenizer_may_have_no_start_token(tmp_path) -> None:
    folder = write_byte_level(tmp_path / "a", special=["<e>"], bos=None, eos="<e>", template=CHATML)
    tokenizer = load(folder)
    assert tokenizer.bos is None
    assert tokenizer_from_json(tokenizer.to_json(), where="test").digest == tokenizer.digest
    assert load(folder / "tokenizer.json", eos="<e>").digest == tokenizer.digest


@pytest.mark.parametrize("nested", [False, True])
def test_documents_begin_with_a_start_token_where_texts_do_elsewhere(tmp_path, nested) -> None:
    """Some models name a start token that begins no text."""
    options = {"special": ["<a>", "<b>"], "bos": "<a>", "eos": "<b>", "template": HEADERS}
    begins = write_byte_level(tmp_path / "begins", **options)
    if nested:
        spec = json.loads((begins / "tokenizer.json").read_text())
        both = [{"type": "ByteLevel"} | dict.fromkeys(("add_prefix_space", "use_regex"), False)]
        both[0]["trim_offsets"] = True
        spec["post_processor"] = {"type": "Sequence", "processors": [*both, spec["post_processor"]]}
        (begins / "tokenizer.json").write_text(json.dumps(spec))
    assert load(begins).bos == load(begins).special["<a>"]
    names_only = write_byte_level(tmp_path / "names", begins=False, **options)
    tokenizer = load(names_only)
    assert tokenizer.bos is None
    assert tokenizer.conventions.names["bos_token"] == "<a>"
    for add, folder in ((False, begins), (True, names_only)):
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": add}))
        assert (load(folder).bos is not None) == add


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("bos", ["", "<a>"])
def test_a_saved_tokenizer_begins_documents_as_it_was_told_to(tmp_path, begins, bos) -> None:
    options = {"special": ["<a>", "<b>"], "bos": "<a>", "eos": "<b>", "template": HEADERS}
    tokenizer = load(write_byte_level(tmp_path / "folder", begins=begins, **options), bos=bos)
    save_tokenizer(tmp_path / "saved", tokenizer)
    assert load(tmp_path / "saved").bos == tokenizer.bos
    assert load(tmp_path / "saved").digest == tokenizer.digest


def test_what_a_folder_calls_special_is_special(tmp_path) -> None:
    folder = write_byte_level(
        tmp_path / "a",
        special=["<e>"],
        bos=None,
        eos="<e>",
        template=CHATML,
        additional_special_tokens=["<think>"],
        added_tokens_decoder={"7": {"content": "</think>", "special": True}},
    )
    tokenizer = load(folder)
    assert set(tokenizer.special) == {"<e>", "<think>", "</think>"}
    [tokens] = tokenizer.encode_batch([b"<think>x"])
    assert tokenizer.special["<think>"] not in tokens
    assert tokenizer.token_bytes[tokens].sum() == 8


def test_tokens_that_are_added_without_being_special_are_found_in_text(tmp_path) -> None:
    folder = write_byte_level(tmp_path / "a", special=["<e>"], bos=None, eos="<e>", template="")
    tokenizer = load(folder)
    [tokens] = tokenizer.encode_batch([b"<think>x"])
    assert len(tokens) == 2
    assert tokenizer.token_bytes[tokens].tolist() == [7, 1]


def test_several_templates_come_by_name(tmp_path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = write_byte_level(
        tmp_path / "a", special=["<e>"], bos=None, eos="<e>", template="c", chat_template=several
    )
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("d")
    templates = {"default": "c", "tool_use": "b", "rag": "d"}
    assert load(folder).conventions.chat_templates == templates
    save_tokenizer(tmp_path / "saved", load(folder))
    assert load(tmp_path / "saved").conventions.chat_templates == templates


def test_a_folder_or_file_that_is_no_tokenizer_is_named(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"neither tokenizer\.json nor .*\*\.model, but \[\]"):
        load(tmp_path)
    pointer = tmp_path / "tokenizer.model"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(ValueError, match=r"tokenizer\.model: not a SentencePiece model .*LFS"):
        load(pointer, eos="</s>")
    pointer.write_bytes(b"")
    with pytest.raises(ValueError, match=r"tokenizer\.model: not a SentencePiece model"):
        load(pointer, eos="</s>")
    pointer.write_bytes(sentencepiece_model()[:-100])
    with pytest.raises(ValueError, match=r"tokenizer\.model: not a SentencePiece model"):
        load(pointer, eos="</s>")
    broken = write_byte_level(tmp_path / "b", special=["<e>"], bos=None, eos="<e>", template="")
    for text in ('["no object"]', "[" * 100_000):
        (broken / "tokenizer.json").write_text(text)
        with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer\.json"):
            load(broken)
    for text in ("{", '{"a":' * 100_000):
        (broken / "tokenizer_config.json").write_text(text)
        with pytest.raises(ValueError, match=r"tokenizer_config\.json: not valid JSON"):
            load(broken)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("chat_template", value) for value in ([1], ["a"], [{"content": "x"}])),
        *(("added_tokens_decoder", value) for value in (3, [1], {"5": "x"}, {"x": {}})),
        *(
            (f"{kind}_special_tokens", value)
            for kind in ("additional", "extra")
            for value in (1, 2.5, "<a>")
        ),
        ("add_bos_token", "false"),
    ],
)
def test_settings_of_another_form_are_refused_with_the_files_name(tmp_path, key, value) -> None:
    folder = write_byte_level(tmp_path / "a", special=["<e>"], bos=None, eos="<e>", template="")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json.*Download it"):
        load(folder)


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/a.jinja"])
def test_a_template_that_is_no_text_is_named(tmp_path, name) -> None:
    folder = write_byte_level(tmp_path / "b", special=["<e>"], bos=None, eos="<e>", template="")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\xff")
    with pytest.raises(ValueError, match=rf"{name}: not UTF-8 text"):
        load(folder)


def test_a_missing_end_token_is_said_with_the_remedy(tmp_path) -> None:
    folder = write_sentencepiece(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"ends a document .*TokenizerFile\.eos, or give the model"
    ):
        load(folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json names no eos_token\. Set Tok"):
        load(folder)
    with pytest.raises(ValueError, match=r"no special token '<eot>'; it has \['</s>', '<s>'\]"):
        load(folder, eos="<eot>")


def test_what_lies_between_meant_tokens_knows_whether_it_comes_first() -> None:
    seen: list[tuple[str, bool]] = []
    tokenizer = ByteTokenizer()

    def encode(text: str, first: bool) -> object:
        seen.append((text, first))
        return tokenizer.encode_marked(text, meant=())

    text = "ab<|eos|><|bos|>c"
    found = encode_between(
        text, meant=spelled(text, names=tokenizer.special), special=tokenizer.special, encode=encode
    )
    assert seen == [("ab", True), ("c", False)]
    assert found.tokens.tolist() == [97, 98, tokenizer.eos, tokenizer.bos, 99]
    assert found.starts.tolist() == [0, 1, 2, 9, 16]
