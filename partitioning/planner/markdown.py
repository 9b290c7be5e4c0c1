"""An answer as Markdown, for pages under docs/. Standard library only."""

from collections.abc import Iterable

from partitioning.planner.answers import Answer, Policy, Quantity, Section, shown


def matrix(answer: Answer, *, policy: Policy = "right") -> str:
    """Returns one table: a row for each section, a column for each quantity.

    Raises:
      ValueError: the sections do not hold the same quantities.
    """
    names = [q.name for q in answer.sections[0].quantities]
    for section in answer.sections:
        if [q.name for q in section.quantities] != names:
            raise ValueError(
                f"{section.title!r} holds other quantities than {answer.sections[0].title!r}: no "
                "table has them as columns. Write `sections` instead of `matrix` in the mark."
            )
    rows = [
        [s.title, *(shown(q.under(policy), q.unit) for q in s.quantities)] for s in answer.sections
    ]
    return _table(["", *(name.replace("_", " ") for name in names)], rows)


def sections(answer: Answer, *, policy: Policy = "right") -> str:
    """Returns a heading, the text and a table of each section, and the notes."""
    parts = [part for section in answer.sections for part in _section(section, policy)]
    return "\n\n".join([*parts, *map(_escaped, answer.notes)])


def _section(section: Section, policy: Policy) -> Iterable[str]:
    yield f"### {_escaped(section.title)}"
    yield from map(_escaped, section.text)
    if section.quantities:
        columns = ["", "value", "terms", "the documents print", "why"]
        rows = [_cells(q, policy) for q in section.quantities]
        used = [n for n in range(len(columns)) if n < 2 or any(row[n] for row in rows)]
        yield _table([columns[n] for n in used], [[row[n] for n in used] for row in rows])


def _cells(quantity: Quantity, policy: Policy) -> list[str]:
    book = ""
    if quantity.book is not None:
        terms = f" = {quantity.book_formula}" if quantity.book_formula else ""
        book = shown(quantity.book, quantity.unit) + terms
    return [
        quantity.name.replace("_", " "),
        shown(quantity.under(policy), quantity.unit),
        quantity.formula,
        book,
        quantity.note,
    ]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
