"""What the simplest models of bytes reach on the held-out text. Imports NumPy only.

A byte unigram and a byte bigram with add-one smoothing, fitted on the training split's bytes and
scored on the held-out split's. A language model that has learned anything beats the bigram.
"""

import dataclasses

import numpy as np

from input_pipeline.source import Source, read_all

_BYTES = 256
_START = _BYTES  # context of a document's first byte
_DOCUMENTS_PER_READ = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baselines:
    """Held-out scores, in bits per byte.

    Attributes:
      unigram_bits_per_byte: each byte by its share of the training text.
      bigram_bits_per_byte: each byte given the one before it; a document's first byte is given
        that it is the first.
    """

    unigram_bits_per_byte: float
    bigram_bits_per_byte: float


def fit_and_score(train: Source, held_out: Source) -> Baselines | None:
    """Returns the scores, or None where there is no held-out text."""
    fitted, scored = pair_counts(train), pair_counts(held_out)
    if not scored.sum():
        return None
    bigram = _bits(fitted, scored)
    unigram = _bits(fitted.sum(0, keepdims=True), scored.sum(0, keepdims=True))
    return Baselines(unigram_bits_per_byte=unigram, bigram_bits_per_byte=bigram)


def pair_counts(source: Source) -> np.ndarray:
    """Counts pairs of neighbouring bytes.

    Returns:
      int64 [257, 256]: how often byte ``b`` follows context ``a``; context 256 is the start of a
      document.
    """
    counts = np.zeros((_BYTES + 1) * _BYTES, dtype=np.int64)
    for part in read_all(source, at_once=_DOCUMENTS_PER_READ):
        text, lengths = part["text"], part["lengths"]
        context = np.empty(len(text), dtype=np.int64)
        context[1:] = text[:-1]
        first = (np.cumsum(lengths) - lengths)[lengths > 0]
        context[first] = _START
        counts += np.bincount(context * _BYTES + text, minlength=len(counts))
    return counts.reshape(_BYTES + 1, _BYTES)


def _bits(fitted: np.ndarray, scored: np.ndarray) -> float:
    """Mean of -log2 p(byte | context) with add-one smoothing, over the scored bytes."""
    probability = (fitted + 1) / (fitted.sum(1, keepdims=True) + _BYTES)
    return float(-(scored * np.log2(probability)).sum() / scored.sum())
