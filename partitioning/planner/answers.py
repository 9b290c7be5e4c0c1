"""What a calculator answers: quantities with their terms, as a table and as JSON.

Every quantity says how it came about. Where a document that teams learn from prints another value,
the quantity carries that one, too (`book`), and says why they differ (`note`); the policy decides
which of the two is the answer, and both are always shown. Standard library only.
"""

import dataclasses
import math
import textwrap
from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

Policy = Literal["right", "book"]

_SCALES = {
    "B": ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "FLOP": ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")),
    "FLOP/s": ((1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
    "s": ((86_400.0, "days"), (3_600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
}
_BINARY = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Report(Protocol):
    """What a command of the planner gives back."""

    def show(self, policy: Policy) -> str:
        """Returns text for people."""

    def as_dict(self, policy: Policy) -> dict[str, Any]:
        """Returns what ``--json`` prints."""

    @property
    def exit_code(self) -> int:
        """What the command leaves with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """One number.

    Attributes:
      name: key in JSON, lower case with underscores, unique in its section.
      value: the right value, in ``unit``; not a number where there is none.
      unit: "B", "B/s", "s", "FLOP", "FLOP/s", "share" (shown in percent), "USD", "" for plain
        numbers and counts, or any other word, such as "tokens/s".
      formula: the terms with their numbers, as in "16 B x 70e9 / (8 x 4 x 16)".
      book: the value that the documents print, or compute by their own formula; None where they
        agree or say nothing.
      book_formula: how.
      note: why the two differ, or what to mind; names the row of docs/errata.md, as in "E16: ...".
    """

    name: str
    value: float
    unit: str = ""
    formula: str = ""
    book: float | None = None
    book_formula: str = ""
    note: str = ""

    def under(self, policy: Policy) -> float:
        """Returns the value that a policy takes for the answer."""
        return self.book if policy == "book" and self.book is not None else self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Quantities that belong together.

    Attributes:
      name: key in JSON.
      title: heading.
      quantities: in the order in which they are shown.
      text: what has no number, one paragraph each; shown before the quantities.
    """

    name: str
    title: str
    quantities: tuple[Quantity, ...] = ()
    text: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Sections and remarks; a Report.

    Attributes:
      title: what was asked.
      sections: what was found.
      notes: what to mind, one line each.
      exit_code: 64 where the question has no good answer, as for a plan that does not fit.
    """

    title: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def show(self, policy: Policy) -> str:
        """Returns the answer as a table."""
        lines = [self.title]
        for section in self.sections:
            lines += ["", *textwrap.wrap(section.title, 98)]
            for paragraph in section.text:
                lines += textwrap.wrap(paragraph, 96, initial_indent="  ", subsequent_indent="  ")
            lines += [f"  {line}" for line in _rows(section.quantities, policy)]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)

    def as_dict(self, policy: Policy) -> dict[str, Any]:
        """Returns the answer for ``--json``; values stay in the unit that they name."""
        return {
            "title": self.title,
            "policy": policy,
            "sections": {section.name: _contents(section, policy) for section in self.sections},
            "notes": list(self.notes),
        }


def shown(value: float, unit: str) -> str:
    """Returns a number with its unit; bytes in decimal and binary multiples, both named."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return str(value)
    if unit == "share":
        return f"{100 * value:.2f}%"
    if unit == "USD":
        return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"
    if unit == "B":
        decimal, binary = _scaled(value, _SCALES["B"]), _scaled(value, _BINARY)
        return f"{decimal or f'{value:g} B'}{f' ({binary})' if binary else ''}"
    if unit == "s" and 86_400 <= abs(value) < 3 * 86_400:
        return f"{value / 3600:.4g} h"
    if unit in _SCALES:
        return _scaled(value, _SCALES[unit]) or f"{value:.4g} {unit}"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
    if not float(value).is_integer() and abs(value) >= 10_000:
        number = f"{value:,.1f}"
    return f"{number} {unit}".rstrip()


def aligned(rows: Sequence[tuple[str, ...]], *, left: Collection[int] = (0,)) -> list[str]:
    """Returns the lines of a table: the columns ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def amount(value: float) -> str:
    """Returns a number for a formula: 70e9, 989e12, 4,096, 0.125."""
    if value and abs(value) >= 1e6:
        power = int(math.log10(abs(value)) // 3 * 3)
        return f"{value / 10**power:.6g}e{power}"
    return f"{value:,.6g}"


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    for size, name in scales:
        if abs(value) >= size:
            return (
                f"{value / size:.4g} {name}"
                if value / size < 1000
                else f"{value / size:,.0f} {name}"
            )
    return ""


def _rows(quantities: tuple[Quantity, ...], policy: Policy) -> list[str]:
    cells = [
        (q.name.replace("_", " "), shown(q.under(policy), q.unit), _terms(q, policy))
        for q in quantities
    ]
    left = max((len(cell[0]) for cell in cells), default=0)
    middle = max((len(cell[1]) for cell in cells), default=0)
    lines = []
    for quantity, (name, value, terms) in zip(quantities, cells, strict=True):
        lines.append(f"{name:<{left}}  {value:>{middle}}  {terms}".rstrip())
        if quantity.book is not None:
            other = "right" if policy == "book" else "the book's"
            lines.append(f"{'':<{left}}  {'':>{middle}}  {other}: {_other(quantity, policy)}")
        if quantity.note:
            lines.append(f"{'':<{left}}  {'':>{middle}}  {quantity.note}")
    return lines


def _terms(quantity: Quantity, policy: Policy) -> str:
    formula = quantity.formula
    if policy == "book" and quantity.book is not None:
        formula = quantity.book_formula
    return f"= {formula}" if formula else ""


def _other(quantity: Quantity, policy: Policy) -> str:
    assert quantity.book is not None
    value, formula = (
        (quantity.value, quantity.formula)
        if policy == "book"
        else (quantity.book, quantity.book_formula)
    )
    return f"{shown(value, quantity.unit)}{f' = {formula}' if formula else ''}"


def _contents(section: Section, policy: Policy) -> dict[str, Any]:
    contents: dict[str, Any] = {q.name: _plain(q, policy) for q in section.quantities}
    return contents | ({"text": list(section.text)} if section.text else {})


def _plain(quantity: Quantity, policy: Policy) -> dict[str, Any]:
    value = quantity.under(policy)
    plain: dict[str, Any] = {"value": None if math.isnan(value) else value, "unit": quantity.unit}
    plain["formula"] = _terms(quantity, policy).removeprefix("= ")
    if quantity.book is not None:
        plain |= {"right": quantity.value, "book": quantity.book}
    if quantity.note:
        plain["note"] = quantity.note
    return plain
