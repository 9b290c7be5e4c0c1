"""Tokenizers that are a SentencePiece model (Kudo and Richardson, 2018), read as they are.

Imports NumPy, and ``sentencepiece`` when one is used. As in today's ``transformers`` (and not as
in its "legacy" mode), only the start of a text gets SentencePiece's extra space, not what follows
a special token.
"""

import base64
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from input_pipeline.huggingface_tokenizer import sentence_piece_bytes
from input_pipeline.manifest import digest_of
from input_pipeline.special_tokens import Encoded, Span, encode_between, spelled
from input_pipeline.tokenizer import Conventions, ends_of, told

if TYPE_CHECKING:
    import sentencepiece

_NO_EXTRA_SPACE = b"\x1a\x02\x18\x00"
"""``normalizer_spec { add_dummy_prefix: false }``; appended to a model, it overrides that field."""


class SentencePieceTokenizer:
    """See `input_pipeline.tokenizer.Tokenizer`.

    Special are the model's control symbols, and what the folder around it says. Tokens that the
    folder adds behind the model's own are special, too.
    """

    def __init__(
        self,
        model: bytes,
        *,
        bos: str | None,
        eos: str,
        where: str,
        declared: Iterable[str] = (),
        added: Mapping[str, int] | None = None,
        conventions: Conventions | None = None,
    ) -> None:
        """Reads the content of a ``*.model`` file.

        Args:
          model: the content.
          bos: name of the start token, or None.
          eos: name of the end token.
          where: the file, for errors.
          declared: further tokens of the model that are special, such as ``<start_of_turn>``.
          added: tokens by name; those that are not the model's own stand behind them.
          conventions: what the folder says.

        Raises:
          ValueError: it cannot be read, or has no token ``bos`` or ``eos``.
        """
        self._model, self._names = model, (bos, eos)
        self._processor = _processor(model, where=where)
        size = self._processor.GetPieceSize()
        self._added = {name: n for name, n in (added or {}).items() if n >= size}
        self._special_pieces = self._find_special(declared)
        self.special: Mapping[str, int] = {**self._special_pieces, **self._added}
        self.bos, self.eos = ends_of(self.special, bos=bos, eos=eos, where=where)
        self.conventions = conventions or Conventions.of_ends(bos=bos, eos=eos)
        self.vocab_size = max([size - 1, *self._added.values()]) + 1
        content = hashlib.sha256(model).hexdigest()
        self.digest = digest_of(["sentencepiece", content, bos, eos, dict(self.special)])
        self.token_bytes = np.zeros(self.vocab_size, dtype=np.int32)
        for number in set(range(size)) - set(self.special.values()):
            if not self._processor.IsUnknown(number):
                piece = self._processor.IdToPiece(number)
                self.token_bytes[number] = sentence_piece_bytes(piece)

    def _find_special(self, declared: Iterable[str]) -> dict[str, int]:
        model = self._processor
        pieces = {model.IdToPiece(n): n for n in range(model.GetPieceSize())}
        wanted = set(declared)
        return {
            piece: number
            for piece, number in pieces.items()
            if model.IsControl(number) or piece in wanted
        }

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """See `Tokenizer.encode_batch`."""
        decoded = [text.decode() for text in texts]
        if not any(spelled(text, names=self._matched) for text in decoded):
            return [np.array(ids, np.int32) for ids in self._processor.Encode(decoded)]
        return [self.encode_marked(text, meant=()).tokens for text in decoded]

    @functools.cached_property
    def _matched(self) -> set[str]:
        """Special tokens that SentencePiece itself finds in text."""
        control = self._processor.IsControl
        return {name for name, number in self._special_pieces.items() if not control(number)}

    def encode_marked(self, text: str, *, meant: Sequence[Span] | None = None) -> Encoded:
        """See `Tokenizer.encode_marked`."""
        meant = spelled(text, names=self.special) if meant is None else meant
        return encode_between(text, meant=meant, special=self.special, encode=self._ordinary)

    def _ordinary(self, text: str, first: bool) -> Encoded:
        # A name is cut after its first character, so that SentencePiece cannot find it.
        cuts = [0, *(start + 1 for start, _ in spelled(text, names=self._matched)), len(text)]
        tokens: list[int] = []
        spans: list[Span] = []
        for start, stop in itertools.pairwise(cuts):
            model = self._processor if first and not start else self._inner
            found = model.Encode(text[start:stop], return_type="offset_mapping")
            tokens += found["ids"]
            spans += [(a + start, b + start) for a, b in found["offsets"]]
        return Encoded.of(tokens, spans)

    @functools.cached_property
    def _inner(self) -> "sentencepiece.SentencePieceProcessor":
        return _processor(self._model + _NO_EXTRA_SPACE, where="inside of a text")

    def decode(self, tokens: np.ndarray) -> str:
        """See `Tokenizer.decode`."""
        special = set(self.special.values())
        return str(
            self._processor.Decode([t for t in np.asarray(tokens).tolist() if t not in special])
        )

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        bos, eos = self._names
        value = {
            "kind": "sentencepiece",
            "bos": bos,
            "eos": eos,
            "model": base64.b64encode(self._model).decode(),
            "declared": sorted(self._special_pieces),
            "added": self._added,
        }
        return json.dumps({**value, **told(self)})

    @property
    def model(self) -> bytes:
        """The content of its file."""
        return self._model


def _processor(model: bytes, *, where: str) -> "sentencepiece.SentencePieceProcessor":
    import sentencepiece

    try:
        made = sentencepiece.SentencePieceProcessor()
        made.LoadFromSerializedProto(model)
        if not made.GetPieceSize():
            raise RuntimeError("it has no pieces")
    except RuntimeError as error:
        raise ValueError(
            f"{where}: not a SentencePiece model ({error}). Download it again; a file of a few "
            "hundred bytes is often a Git LFS pointer instead of the model."
        ) from error
    return made
