"""Special tokens in text: where they are spelled, and encoding what lies between them. NumPy only.

A special token that a chat template writes is meant; one that a document or a message spells is
ordinary text, lest text end a turn or a document.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

Span = tuple[int, int]
"""First character, and the one after the last."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Tokens of a text, and the characters that each came from; each field is [tokens].

    Attributes:
      tokens: int32.
      starts: int64, first character of each.
      stops: int64, the character after its last; tokens that are bytes of a character share it.
    """

    tokens: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, tokens: Sequence[int], spans: Sequence[Span]) -> "Encoded":
        """Returns tokens with their spans."""
        edges = np.array(spans, np.int64).reshape(-1, 2)
        return cls(np.array(tokens, np.int32), edges[:, 0], edges[:, 1])

    def within(self, spans: Sequence[Span]) -> np.ndarray:
        """Returns which tokens have a character in one of the spans: bool [tokens]."""
        found = np.zeros(len(self.tokens), bool)
        stops = np.maximum(self.stops, self.starts + 1)
        for start, stop in spans:
            found |= (self.starts < stop) & (stops > start)
        return found


def pattern_of(names: Collection[str]) -> re.Pattern[str]:
    """Returns what finds any of ``names``, the longest where several begin."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def spelled(text: str, *, names: Collection[str]) -> list[Span]:
    """Returns where ``text`` spells one of ``names``, from left to right, without overlaps."""
    return [match.span() for match in pattern_of(names).finditer(text)]


def encode_between(
    text: str,
    *,
    meant: Sequence[Span],
    special: Mapping[str, int],
    encode: Callable[[str, bool], Encoded],
) -> Encoded:
    """Encodes special tokens where they are meant, and what lies between them as ordinary text.

    Args:
      text: the whole text.
      meant: where special tokens are meant, from left to right; white space around their names
        vanishes.
      special: special tokens by name.
      encode: encodes ordinary text, told whether the whole text begins with it.
    """
    parts = list(_parts(text, meant=meant, special=special, encode=encode))
    if not parts:
        return Encoded.of([], [])
    return Encoded(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in _FIELDS))


_FIELDS = dataclasses.fields(Encoded)


def _parts(
    text: str,
    *,
    meant: Sequence[Span],
    special: Mapping[str, int],
    encode: Callable[[str, bool], Encoded],
) -> Iterator[Encoded]:
    place = 0
    for start, stop in [*meant, (len(text), len(text))]:
        if start > place:
            part = encode(text[place:start], place == 0)
            yield Encoded(part.tokens, part.starts + place, part.stops + place)
        if stop > start:
            name = text[start:stop]
            token = special[name if name in special else name.strip()]
            yield Encoded.of([token], [(start, stop)])
        place = stop
