"""One tensor of a Hugging Face checkpoint, and where its values live in ours. Imports NumPy only.

A ``Layout`` is written as dimensions of theirs, an arrow, and dimensions of ours, as in
``"(heads head_dim) embed -> embed heads head_dim"``: parentheses join dimensions into one. Both
sides name the same dimensions, so that it is read in either direction.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

Slices = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the dimensions of one of their tensors become those of ours, and back.

    Attributes:
      text: ``"theirs -> ours"``; see above.
    """

    text: str

    def __post_init__(self) -> None:
        flat = [name for group in self._theirs for name in group]
        if len(set(flat)) != len(flat) or sorted(flat) != sorted(self._ours):
            raise ValueError(f"Layout {self.text!r}: both sides must name the same dimensions.")

    @functools.cached_property
    def _theirs(self) -> tuple[tuple[str, ...], ...]:
        left = self.text.partition("->")[0]
        return tuple(tuple(part.strip("()").split()) for part in re.findall(r"\([^)]*\)|\S+", left))

    @functools.cached_property
    def _ours(self) -> tuple[str, ...]:
        return tuple(self.text.partition("->")[2].split())

    def _flat(self) -> list[str]:
        return [name for group in self._theirs for name in group]

    def their_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that a tensor has in their checkpoint, from its shape in ours."""
        sizes = dict(zip(self._ours, ours, strict=True))
        return tuple(math.prod(sizes[name] for name in group) for group in self._theirs)

    def their_part(self, ours: tuple[int, ...], part: Slices) -> tuple[Slices, tuple[int, ...]]:
        """Returns what to read of theirs for a part of ours.

        Args:
          ours: shape in our layout.
          part: what is wanted of it: a slice per dimension, without steps.

        Returns:
          Slices of theirs, and the shape in our layout of what they hold. It is the part, except
          that along a joined dimension only its first member is cut.
        """
        sizes = dict(zip(self._ours, ours, strict=True))
        wanted = {
            name: range(*cut.indices(sizes[name]))
            for name, cut in zip(self._ours, part, strict=True)
        }
        slices = []
        held = dict(sizes)
        for first, *rest in self._theirs:
            inner = math.prod(sizes[name] for name in rest)
            slices.append(slice(wanted[first].start * inner, wanted[first].stop * inner))
            held[first] = len(wanted[first])
        return tuple(slices), tuple(held[name] for name in self._ours)

    def to_ours(self, theirs: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a view of ``theirs`` (or a part of it) with ``shape`` in our layout."""
        flat, sizes = self._flat(), dict(zip(self._ours, shape, strict=True))
        split = theirs.reshape([sizes[name] for name in flat])
        return split.transpose([flat.index(name) for name in self._ours])

    def to_theirs(self, ours: np.ndarray) -> np.ndarray:
        """Undoes ``to_ours``."""
        flat = ours.transpose([self._ours.index(name) for name in self._flat()])
        return flat.reshape(self.their_shape(ours.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of their checkpoint.

    Attributes:
      name: in their files, such as "model.layers.3.self_attn.q_proj.weight".
      path: of our parameter, such as "stacks/pattern/blocks/0/attention/query/kernel".
      at: where in our parameter its values are: indices of the leading dimensions (repeat of the
        pattern, then expert); () where it is the whole parameter.
      shape: of its values in our layout, the leading dimensions of ``at`` left out.
      layout: between both.
    """

    name: str
    path: str
    at: tuple[int, ...]
    shape: tuple[int, ...]
    layout: Layout

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Shape in their files."""
        return self.layout.their_shape(self.shape)


def by_path(tensors: Iterable[Tensor]) -> dict[str, list[Tensor]]:
    """Returns path of our parameter -> the tensors that it is made of, both in their order."""
    found: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.path, []).append(tensor)
    return found


def whole_shape(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """Returns the shape of the parameter that these tensors make, the leading dimensions in it."""
    lead = (max(places) + 1 for places in zip(*(part.at for part in parts), strict=True))
    return (*lead, *parts[0].shape)
