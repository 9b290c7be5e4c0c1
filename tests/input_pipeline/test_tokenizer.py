"""Tokenizers are lossless, count bytes exactly, and take special tokens in text for text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers

from input_pipeline.data_config import Bytes, TokenizerFile, TrainedBpe
from input_pipeline.huggingface_tokenizer import train_bpe
from input_pipeline.tokenizer import ByteTokenizer, Tokenizer
from input_pipeline.tokenizer_files import load_tokenizer, tokenizer_from_json

TEXTS = ["the cat sat on the mat", "a naïve café — 日本語", "def f(x):\n    return x\n"] * 5


def trained() -> Tokenizer:
    return train_bpe(TEXTS, config=TrainedBpe(vocab_size=280))


TOKENIZERS = {"bytes": ByteTokenizer(), "bpe": trained()}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


@every_tokenizer
@given(text=st.text())
def test_text_survives_and_its_bytes_are_counted_exactly(tokenizer: Tokenizer, text: str) -> None:
    [tokens] = tokenizer.encode_batch([text.encode()])
    assert tokenizer.decode(tokens) == text
    assert tokenizer.token_bytes[tokens].sum() == len(text.encode())


@every_tokenizer
def test_special_tokens_stand_for_no_bytes_and_vanish_in_text(tokenizer: Tokenizer) -> None:
    [tokens] = tokenizer.encode_batch([b"abc"])
    framed = np.array([tokenizer.bos, *tokens, tokenizer.eos])
    assert tokenizer.decode(framed) == "abc"
    assert tokenizer.token_bytes[[tokenizer.bos, tokenizer.eos]].tolist() == [0, 0]
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size
    assert tokenizer.bos != tokenizer.eos


@every_tokenizer
def test_text_that_spells_a_special_token_is_text(tokenizer: Tokenizer) -> None:
    text = b"a<|eos|>b<|bos|><|pad|>"
    [tokens] = tokenizer.encode_batch([text])
    assert not {tokenizer.bos, tokenizer.eos} & set(tokens.tolist())
    assert tokenizer.token_bytes[tokens].sum() == len(text)


@every_tokenizer
def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer) -> None:
    copy = tokenizer_from_json(tokenizer.to_json(), where="test")
    assert copy.digest == tokenizer.digest
    assert np.array_equal(copy.token_bytes, tokenizer.token_bytes)
    texts = [text.encode() for text in TEXTS]
    for a, b in zip(copy.encode_batch(texts), tokenizer.encode_batch(texts), strict=True):
        assert np.array_equal(a, b)


def test_training_again_gives_the_same_tokenizer() -> None:
    assert trained().digest == TOKENIZERS["bpe"].digest
    assert trained().to_json() == TOKENIZERS["bpe"].to_json()


def test_training_really_merges_up_to_the_size_asked_for() -> None:
    assert TOKENIZERS["bpe"].vocab_size == 280
    text = TEXTS[0].encode()
    assert len(TOKENIZERS["bpe"].encode_batch([text])[0]) < len(text)


def test_a_vocabulary_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 259"):
        train_bpe(TEXTS, config=TrainedBpe(vocab_size=258))
    with pytest.raises(ValueError, match="supports only"):
        train_bpe(["a"], config=TrainedBpe(vocab_size=5000))


def spaced_vocabulary() -> Raw:
    """In the manner of SentencePiece: words with "▁", and bytes as a fallback."""
    vocabulary = {"<s>": 0, "</s>": 1, "▁the": 2, "▁": 3, "é": 4, "<0x41>": 5}
    raw = Raw(models.BPE(vocabulary, [], byte_fallback=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens(["<s>", "</s>"])
    return raw


def test_a_tokenizer_file_counts_spaces_and_byte_tokens_as_text(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    spaced_vocabulary().save(str(path))
    tokenizer = load_tokenizer(TokenizerFile(path=str(path), bos="<s>", eos="</s>"))
    assert tokenizer.token_bytes.tolist() == [0, 0, 4, 1, 2, 1]
    assert (tokenizer.bos, tokenizer.eos) == (0, 1)


def test_a_missing_special_token_lists_those_that_exist(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    spaced_vocabulary().save(str(path))
    with pytest.raises(ValueError, match=r"no special token '<bos>'; it has \['</s>', '<s>'\]"):
        load_tokenizer(TokenizerFile(path=str(path), bos="<bos>", eos="</s>"))


def test_a_missing_or_broken_file_is_named(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="no such file"):
        load_tokenizer(TokenizerFile(path=str(path), bos="a", eos="b"))
    path.write_text(json.dumps({"model": "?"}))
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(TokenizerFile(path=str(path), bos="a", eos="b"))


def test_a_tokenizer_that_must_be_trained_is_not_loaded() -> None:
    assert load_tokenizer(Bytes()).vocab_size == 259
    with pytest.raises(ValueError, match="TrainedBpe"):
        load_tokenizer(TrainedBpe())
