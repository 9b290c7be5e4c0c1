"""Holds what a compiled program moves against the formulas, axis by axis.

Bytes on the wire decide, because compilers may take an all-reduce apart or put one together. An
axis that carries less than a hundredth of all bytes is shown, not judged.

Imports no jax.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from partitioning.collectives import Collective, Traffic, traffic
from partitioning.transfers import Transfer

TOLERANCE = 0.10
NEGLIGIBLE = 0.01

_NO_SCATTER = (
    "The compiler reduces to everyone where a reduce-scatter would do: twice the bytes of that "
    "part."
)
_CPU = (
    "XLA on CPU has no reduce-scatter, moves bfloat16 as float32 and merges nothing: compile for "
    "an accelerator to measure."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One kind over one set of mesh axes.

    Attributes:
      kind: of collective.
      axes: mesh axes.
      count: runs per step.
      counted: payload bytes in the compiled program, per device and step.
      formula: the same by the formulas.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    counted: float
    formula: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxisVerdict:
    """All kinds over one set of mesh axes.

    Attributes:
      axes: mesh axes.
      counted: bytes that one device sends per step in the compiled program.
      formula: the same by the formulas.
      judged: whether the axes carry enough to be held against the tolerance.
      agrees: whether they differ by at most ``TOLERANCE``.
      notes: where they do not agree, why.
    """

    axes: tuple[str, ...]
    counted: float
    formula: float
    judged: bool
    agrees: bool
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Counted over formula; infinite where the formula knows of nothing."""
        return self.counted / self.formula if self.formula else float("inf")


def rows(counted: Sequence[Traffic], formula: Sequence[Transfer]) -> tuple[Row, ...]:
    """Puts both side by side, most counted bytes first."""
    table = {(row.kind, row.axes): (row.count, row.payload, 0.0) for row in counted}
    for transfer in formula:
        count, payload, known = table.get((transfer.kind, transfer.axes), (0, 0.0, 0.0))
        table[transfer.kind, transfer.axes] = (count, payload, known + transfer.payload)
    found = [
        Row(kind=kind, axes=axes, count=count, counted=payload, formula=known)
        for (kind, axes), (count, payload, known) in table.items()
    ]
    return tuple(sorted(found, key=lambda row: -max(row.counted, row.formula)))


def verdicts(
    found: Sequence[Collective], formula: Sequence[Transfer], *, platform: str
) -> tuple[AxisVerdict, ...]:
    """Judges each set of mesh axes.

    Args:
      found: collectives of the program.
      formula: from ``traffic.expected``.
      platform: "cuda", "tpu" or "cpu"; what is known of its compiler explains differences.
    """
    counted = traffic(found)
    together = rows(counted, formula)
    sent = _sums((row.axes, row.wire) for row in counted)
    due = _sums((transfer.axes, transfer.wire) for transfer in formula)
    everything = max(sum(sent.values()), sum(due.values()))
    result = []
    for axes in sorted({*sent, *due}, key=lambda axes: -sent.get(axes, 0.0)):
        there, known = sent.get(axes, 0.0), due.get(axes, 0.0)
        judged = max(there, known) > NEGLIGIBLE * everything
        agrees = abs(there - known) <= TOLERANCE * known
        notes = _notes(axes, found, together, platform=platform) if judged and not agrees else ()
        result.append(
            AxisVerdict(
                axes=axes, counted=there, formula=known, judged=judged, agrees=agrees, notes=notes
            )
        )
    return tuple(result)


def _sums(pairs: Iterable[tuple[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
    total: dict[tuple[str, ...], float] = {}
    for axes, amount in pairs:
        total[axes] = total.get(axes, 0.0) + amount
    return total


def _notes(
    axes: tuple[str, ...], found: Sequence[Collective], together: Sequence[Row], *, platform: str
) -> tuple[str, ...]:
    notes = [_CPU] if platform == "cpu" else []
    excess = {row.kind: row.counted - row.formula for row in together if row.axes == axes}
    if excess.get("reduce-scatter", 0.0) < 0.0 < excess.get("all-reduce", 0.0):
        notes.append(_NO_SCATTER)
    for kind, more in excess.items():
        if more <= 0.0:
            continue
        largest = sorted(
            (c for c in found if c.kind == kind and c.axes == axes),
            key=lambda c: -c.moved,
        )
        notes += [_describe(collective) for collective in largest[:3]]
    return tuple(notes)


def _describe(collective: Collective) -> str:
    shapes = " ".join("x".join(map(str, shape)) for shape in collective.shapes[:3])
    return (
        f"{collective.kind} of {collective.payload * collective.runs / 1e6:.1f} MB "
        f"({collective.runs} x {', '.join(collective.dtypes)} {shapes}) in "
        f"{collective.source or collective.name}"
    )
