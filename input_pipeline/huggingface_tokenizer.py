"""Tokenizers of Hugging Face ``tokenizers``: a ``tokenizer.json``, or one trained here.

Imports NumPy, and ``tokenizers`` when one is used.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from input_pipeline.data_config import TrainedBpe
from input_pipeline.manifest import digest_of
from input_pipeline.special_tokens import Encoded, Span, encode_between
from input_pipeline.tokenizer import BOS, BYTES, EOS, PAD, Conventions, ends_of, told

if TYPE_CHECKING:
    import tokenizers


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` library; see `input_pipeline.tokenizer.Tokenizer`.

    Tokens that were added to the vocabulary without being special, such as ``<think>`` in some
    models, are found in any text, as everywhere else where the file is used.
    """

    def __init__(
        self,
        text: str,
        *,
        bos: str | None,
        eos: str,
        where: str,
        conventions: Conventions | None = None,
    ) -> None:
        """Reads the content of a ``tokenizer.json``.

        Raises:
          ValueError: it cannot be read, or has no token ``bos`` or ``eos``.
        """
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise ValueError(f"{where}: not a tokenizer.json ({error}).") from error
        self._spec = json.loads(text)
        self._names = (bos, eos)
        self.conventions = conventions or Conventions.of_ends(bos=bos, eos=eos)
        # Otherwise text that contains "<|eos|>" would end a document.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._spec.get("added_tokens") or []
        self._flags = {t["content"]: (t["lstrip"], t["rstrip"]) for t in added if t["special"]}
        self.special: Mapping[str, int] = {t["content"]: t["id"] for t in added if t["special"]}
        self.bos, self.eos = ends_of(self.special, bos=bos, eos=eos, where=where)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.digest = digest_of(["huggingface", self._spec, bos, eos])
        self.token_bytes = np.zeros(self.vocab_size, dtype=np.int32)
        count = _byte_counter(self._spec)
        literal = {t["content"] for t in added}
        for token, number in vocabulary.items():
            if token not in self.special:
                size = len(token.encode()) if token in literal else count(token)
                self.token_bytes[number] = size

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """See `Tokenizer.encode_batch`."""
        encoded = self._tokenizer.encode_batch_fast(
            [text.decode() for text in texts], add_special_tokens=False
        )
        return [np.array(one.ids, dtype=np.int32) for one in encoded]

    def encode_marked(self, text: str, *, meant: Sequence[Span] | None = None) -> Encoded:
        """See `Tokenizer.encode_marked`."""
        if meant is None:
            return _encoded(self._marking, text)
        return encode_between(
            text,
            meant=self._with_spaces(text, meant=meant),
            special=self.special,
            encode=lambda part, first: _encoded(self._tokenizer if first else self._inner, part),
        )

    @functools.cached_property
    def _marking(self) -> "tokenizers.Tokenizer":
        """Finds special tokens in text."""
        return self._variant(json.dumps(self._spec))

    @functools.cached_property
    def _inner(self) -> "tokenizers.Tokenizer":
        """Encodes ordinary text that does not stand at the start: no space goes in front of it."""
        text = json.dumps(self._spec)
        inner = self._variant(
            text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
        )
        inner.encode_special_tokens = True
        return inner

    def _variant(self, text: str) -> "tokenizers.Tokenizer":
        import tokenizers

        made = tokenizers.Tokenizer.from_str(text)
        made.no_padding()
        made.no_truncation()
        return made

    def _with_spaces(self, text: str, *, meant: Sequence[Span]) -> list[Span]:
        """Returns where special tokens are meant, with the white space that they swallow."""
        found: list[Span] = []
        for start, stop in meant:
            left, right = self._flags[text[start:stop]]
            before = found[-1][1] if found else 0
            head, tail = text[before:start], text[stop:]
            start -= len(head) - len(head.rstrip()) if left else 0
            stop += len(tail) - len(tail.lstrip()) if right else 0
            found.append((start, stop))
        return found

    def decode(self, tokens: np.ndarray) -> str:
        """See `Tokenizer.decode`."""
        return str(self._tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=True))

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        bos, eos = self._names
        value = {"kind": "huggingface", "bos": bos, "eos": eos, "spec": self._spec, **told(self)}
        return json.dumps(value)

    @property
    def spec(self) -> dict[str, Any]:
        """The content of its ``tokenizer.json``."""
        return self._spec


def _encoded(tokenizer: "tokenizers.Tokenizer", text: str) -> Encoded:
    one = tokenizer.encode(text, add_special_tokens=False)
    return Encoded.of(one.ids, one.offsets)


def with_special(spec: dict[str, Any], *, names: Iterable[str]) -> dict[str, Any]:
    """Returns a ``tokenizer.json``'s content in which some tokens of its vocabulary are special.

    Folders name special tokens beside the file, too; names that are no tokens are left out.
    """
    added = {token["content"]: token for token in spec.get("added_tokens") or []}
    vocabulary = spec["model"].get("vocab", {})
    for name in names:
        if name in added:
            added[name]["special"] = True
        elif isinstance(vocabulary, dict) and name in vocabulary:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            number = vocabulary[name]
            added[name] = {"id": number, "content": name, **flags, "special": True}
    return {**spec, "added_tokens": list(added.values())}


def sentence_piece_bytes(token: str) -> int:
    """In a SentencePiece-like vocabulary "▁" is a space and <0x41> a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace("▁", " ").encode())


def _byte_counter(spec: dict[str, Any]) -> Callable[[str], int]:
    """Returns token's name -> bytes; in a byte-level vocabulary a character stands for a byte."""
    stages = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    return len if '"ByteLevel"' in stages else sentence_piece_bytes


def train_bpe(texts: Iterable[str], *, config: TrainedBpe) -> HuggingFaceTokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich et al., 2016; bytes as in GPT-2).

    Raises:
      ValueError: ``vocab_size`` is smaller than the bytes and special tokens, or larger than the
        text supports.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    least = BYTES + 3
    if config.vocab_size < least:
        raise ValueError(
            f"TrainedBpe.vocab_size={config.vocab_size}: 256 bytes and 3 special tokens need at "
            f"least {least}."
        )
    built: tokenizers.Tokenizer = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    if built.get_vocab_size() != config.vocab_size:
        raise ValueError(
            f"TrainedBpe.vocab_size={config.vocab_size}, but the training text supports only "
            f"{built.get_vocab_size()} tokens. Lower it, or train on more text."
        )
    return HuggingFaceTokenizer(built.to_str(), bos=BOS, eos=EOS, where="trained BPE")
