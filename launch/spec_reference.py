"""``python -m launch.spec_reference``: writes the tables of keys into docs/launch.md.

What a key means is said once, in the docstring of its class in launch/spec.py; the page repeats it,
and a test sees that it still does.
"""

import dataclasses
import enum
import pathlib
import sys
import typing
from collections.abc import Iterator
from typing import Any

from launch import spec_fields
from launch.console import say
from launch.spec import JobSpec, Seconds

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "launch.md"
BEGIN = "<!-- keys: written by python -m launch.spec_reference -->\n"
END = "<!-- end of keys -->\n"


def reference() -> str:
    """Returns the tables of all keys as Markdown."""
    return "\n".join(_tables(JobSpec, path=""))


def written(page: str) -> str:
    """Returns a page with the tables as they are now.

    Raises:
      ValueError: the page lacks the marks between which they stand.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the lines {BEGIN.strip()!r} and {END.strip()!r}.")
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def _tables(cls: type, *, path: str) -> Iterator[str]:
    summary = (cls.__doc__ or "").split("\n\n")[0].strip()
    title = f"### `{path}`" if path else "### At the top"
    yield f"{title}\n\n{' '.join(summary.split())}\n\n| key | value | default | meaning |"
    yield "|---|---|---|---|"
    hints, meanings = spec_fields.hints(cls), spec_fields.documentation(cls)
    below = []
    for field in dataclasses.fields(cls):
        section = spec_fields.section(hints[field.name])
        if section is not None:
            listed = typing.get_origin(spec_fields.without_none(hints[field.name])) is tuple
            name = f"{path}.{field.name}" if path else field.name
            below.append((section, f"{name}[]" if listed else name))
        meaning = meanings.get(field.name, "version of this format: 1.")
        yield (
            f"| `{field.name}` | {_kind(hints[field.name])} | {_default(field, section)} "
            f"| {_escaped(meaning)} |"
        )
    yield ""
    for section, name in below:
        yield from _tables(section, path=name)


def _kind(annotation: Any) -> str:
    inner = spec_fields.without_none(annotation)
    if inner is Seconds:
        return "duration"
    origin = typing.get_origin(inner)
    if origin is tuple:
        return f"list of {_kind(typing.get_args(inner)[0])}s"
    if origin is dict:
        return "texts by name"
    if dataclasses.is_dataclass(inner):
        return "section"
    if issubclass(inner, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in inner)
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[inner]


def _default(field: dataclasses.Field[Any], section: type | None) -> str:
    if spec_fields.is_required(field) or field.name == "version":
        return "**required**"
    value = field.default
    if section is not None or value is dataclasses.MISSING or value in ("", (), None):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value == int(value):
        return f"`{int(value)}`"
    return f"`{value}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def main() -> int:
    """Writes the page; returns 0."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    say(f"{PAGE} is up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
