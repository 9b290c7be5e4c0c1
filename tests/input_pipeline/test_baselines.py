"""Byte unigram and bigram scores equal a plain count by hand."""

import collections
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.baselines import fit_and_score, pair_counts
from input_pipeline.source import ragged_text

TEXTS = st.lists(st.binary(max_size=30), min_size=1, max_size=5)


class Texts:
    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, indices):
        return ragged_text([self._texts[i] for i in indices])


def by_hand(train: list[bytes], held_out: list[bytes]) -> tuple[float, float]:
    singles = collections.Counter(b for text in train for b in text)
    pairs = collections.Counter(p for text in train for p in zip([None, *text], text))
    before = collections.Counter(a for a, _ in pairs.elements())
    total = sum(singles.values())
    count = sum(map(len, held_out))
    unigram = -sum(math.log2((singles[b] + 1) / (total + 256)) for t in held_out for b in t)
    bigram = -sum(
        math.log2((pairs[a, b] + 1) / (before[a] + 256))
        for text in held_out
        for a, b in zip([None, *text], text)
    )
    return unigram / count, bigram / count


@given(train=TEXTS, held_out=TEXTS.filter(lambda texts: any(texts)))
def test_scores_equal_a_count_by_hand(train: list[bytes], held_out: list[bytes]) -> None:
    scores = fit_and_score(Texts(train), Texts(held_out))
    unigram, bigram = by_hand(train, held_out)
    assert scores.unigram_bits_per_byte == pytest.approx(unigram, rel=1e-12)
    assert scores.bigram_bits_per_byte == pytest.approx(bigram, rel=1e-12)


def test_documents_do_not_run_into_each_other() -> None:
    counts = pair_counts(Texts([b"ab", b"", b"cd"]))
    assert counts[ord("a"), ord("b")] == counts[ord("c"), ord("d")] == 1
    assert counts[ord("b"), ord("c")] == 0
    assert counts[256].sum() == 2
    assert counts.sum() == 4


def test_many_documents_are_counted_in_parts() -> None:
    assert pair_counts(Texts([b"xy"] * 2000)).sum() == 4000


def test_nothing_held_out_has_no_score() -> None:
    assert fit_and_score(Texts([b"a"]), Texts([b""])) is None
