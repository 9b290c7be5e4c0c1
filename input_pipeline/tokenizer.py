"""Text to tokens and back: what every tokenizer offers, and bytes as tokens. Imports NumPy only.

Promises: the same tokenizer digest gives the same tokens; text that spells a special token is
ordinary text; ``token_bytes`` counts the UTF-8 bytes that each token stands for, so that a loss
in nats per token becomes exact bits per byte.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from input_pipeline.manifest import digest_of
from input_pipeline.special_tokens import Encoded, Span, encode_between, spelled

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
BYTES = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conventions:
    """What a tokenizer's folder says beside its tokens; it changes no token of a document.

    Attributes:
      names: special tokens by what they are for, such as ``{"eos_token": "</s>"}``.
      chat_templates: Jinja templates by name; the one that is meant without a name is "default".
      tokenizer_class: name of the class that the folder was written for; empty if not known.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chat_templates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokenizer_class: str = ""

    @classmethod
    def of_ends(cls, *, bos: str | None, eos: str) -> "Conventions":
        """Returns those of a tokenizer of which only start and end are known."""
        return cls(
            names={"eos_token": eos} if bos is None else {"bos_token": bos, "eos_token": eos}
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields."""
        return dataclasses.asdict(self)


class Tokenizer(Protocol):
    """What every tokenizer offers.

    Attributes:
      vocab_size: tokens are in ``[0, vocab_size)``.
      bos: token put before every document; None puts none.
      eos: token put after every document.
      special: special tokens by the text that spells them.
      digest: sha256 of all that decides the tokens of documents.
      token_bytes: int32 [vocab_size], bytes that a token stands for; 0 for special tokens.
      conventions: names and chat templates that came with it.
    """

    vocab_size: int
    bos: int | None
    eos: int
    special: Mapping[str, int]
    digest: str
    token_bytes: np.ndarray
    conventions: Conventions

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Returns the tokens of each UTF-8 text, without special ones: int32 [length]."""

    def encode_marked(self, text: str, *, meant: Sequence[Span] | None = None) -> Encoded:
        """Returns the tokens of a text in which special tokens are meant.

        Args:
          text: what a chat template writes.
          meant: where, from left to right; None means them wherever they are spelled.
        """

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens; special ones vanish, incomplete characters become U+FFFD."""

    def to_json(self) -> str:
        """Returns what `input_pipeline.tokenizer_files.tokenizer_from_json` reads back."""


class ByteTokenizer:
    """Tokens 0 to 255 are bytes; 256, 257 and 258 are padding, start and end."""

    vocab_size = BYTES + 3
    bos: int | None = BYTES + 1
    eos = BYTES + 2

    def __init__(self, *, conventions: Conventions | None = None) -> None:
        self.special: Mapping[str, int] = {PAD: BYTES, BOS: BYTES + 1, EOS: BYTES + 2}
        self.conventions = conventions or Conventions.of_ends(bos=BOS, eos=EOS)
        self.digest = digest_of(["bytes", 1])
        self.token_bytes = np.array([1] * BYTES + [0] * 3, dtype=np.int32)

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """See `Tokenizer.encode_batch`."""
        return [np.frombuffer(text, dtype=np.uint8).astype(np.int32) for text in texts]

    def encode_marked(self, text: str, *, meant: Sequence[Span] | None = None) -> Encoded:
        """See `Tokenizer.encode_marked`."""
        meant = spelled(text, names=self.special) if meant is None else meant
        return encode_between(text, meant=meant, special=self.special, encode=_bytes_of)

    def decode(self, tokens: np.ndarray) -> str:
        """See `Tokenizer.decode`."""
        values = np.asarray(tokens)
        return values[values < BYTES].astype(np.uint8).tobytes().decode(errors="replace")

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        return json.dumps({"kind": "bytes", **told(self)})


def ends_of(
    special: Mapping[str, int], *, bos: str | None, eos: str, where: str
) -> tuple[int | None, int]:
    """Returns the start token, if there is one, and the end token.

    Raises:
      ValueError: a name is no special token; ``where`` says of what.
    """
    for name in (bos, eos):
        if name is not None and name not in special:
            raise ValueError(
                f"{where}: no special token {name!r}; it has {sorted(special)}. Set "
                "TokenizerFile.bos and TokenizerFile.eos."
            )
    return (None if bos is None else special[bos]), special[eos]


def _bytes_of(text: str, _first: bool) -> Encoded:
    raw = text.encode()
    sizes = [len(character.encode()) for character in text]
    starts = np.repeat(np.arange(len(text), dtype=np.int64), sizes)
    return Encoded(np.frombuffer(raw, np.uint8).astype(np.int32), starts, starts + 1)


def told(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the conventions for `Tokenizer.to_json`, if there are more than start and end.

    Nothing else, so that stores of tokenizers without a folder keep their digests.
    """
    names = {token: name for name, token in tokenizer.special.items()}
    bos = None if tokenizer.bos is None else names[tokenizer.bos]
    if tokenizer.conventions == Conventions.of_ends(bos=bos, eos=names[tokenizer.eos]):
        return {}
    return {"conventions": tokenizer.conventions.to_json()}
