"""Documents to what a store keeps: tokens, and which of them are learned. Imports NumPy only.

Promises: a document gets the tokenizer's start token in front, if it has one, and its end token
behind; a conversation is what its chat template writes, and nothing else.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from input_pipeline.data_config import Conversations, SourceConfig
from input_pipeline.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedDocuments:
    """Documents, one after the other.

    Attributes:
      tokens: int32 [sum(lengths)].
      lengths: int64 [n].
      weights: bool [sum(lengths)], which tokens are learned; None learns all.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray | None = None


class DocumentEncoder(Protocol):
    """How the documents of a source become tokens.

    Attributes:
      digest: of what decides the tokens beside text and tokenizer; empty if nothing does.
    """

    digest: str

    def encode(self, texts: Sequence[bytes], *, where: Callable[[int], str]) -> EncodedDocuments:
        """Returns documents as tokens.

        Args:
          texts: UTF-8.
          where: returns where one of them stands, for errors.

        Raises:
          ValueError: a document is unfit.
        """

    def tokenizer_json(self) -> str:
        """Returns the tokenizer, as a store records it."""


class TextEncoder:
    """Encodes text; see `DocumentEncoder`."""

    digest = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[bytes], *, where: Callable[[int], str]) -> EncodedDocuments:
        """See `DocumentEncoder.encode`."""
        del where
        bos, eos = self._tokenizer.bos, self._tokenizer.eos
        start, end = np.array([] if bos is None else [bos], np.int32), np.array([eos], np.int32)
        encoded = self._tokenizer.encode_batch(texts)
        return EncodedDocuments(
            tokens=np.concatenate([piece for one in encoded for piece in (start, one, end)]),
            lengths=np.array([len(start) + len(one) + 1 for one in encoded], np.int64),
        )

    def tokenizer_json(self) -> str:
        """See `DocumentEncoder.tokenizer_json`."""
        return self._tokenizer.to_json()


def encoder_of(source: SourceConfig, *, tokenizer: Tokenizer) -> DocumentEncoder:
    """Returns what encodes the documents of ``source``.

    Raises:
      ValueError: conversations need a chat template that is missing or unfit.
    """
    if isinstance(source, Conversations):
        from input_pipeline.conversation_encoder import ConversationEncoder

        return ConversationEncoder(source, tokenizer=tokenizer)
    return TextEncoder(tokenizer)
