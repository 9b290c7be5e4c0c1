"""What the docstrings of the job file's classes say of each key. Imports the standard library only.

The same sentences stand in docs/launch.md and in messages about a missing key.
"""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any


@functools.cache
def documentation(cls: type) -> dict[str, str]:
    """Returns field -> what the class's docstring says of it, on one line."""
    _, _, attributes = inspect.getdoc(cls).partition("Attributes:\n")  # type: ignore[union-attr]
    found: dict[str, str] = {}
    for entry in re.split(r"^  (?=\w+: )", attributes, flags=re.MULTILINE)[1:]:
        name, _, text = entry.partition(": ")
        found[name] = " ".join(text.split())
    return found


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Returns field -> annotation."""
    return typing.get_type_hints(cls)


def without_none(annotation: Any) -> Any:
    """Returns the other member of ``X | None``, or the annotation itself."""
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def section(annotation: Any) -> type | None:
    """Returns the dataclass that a key's value, or each item of it, is; None for plain values."""
    inner = without_none(annotation)
    if typing.get_origin(inner) is tuple:
        inner = typing.get_args(inner)[0]
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a key has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def keys(cls: type, *, prefix: str = "") -> Iterator[tuple[str, type, dataclasses.Field[Any]]]:
    """Yields every key of a class and of what lies below it, as (path, class, field)."""
    for field in dataclasses.fields(cls):
        path = f"{prefix}{field.name}"
        yield path, cls, field
        annotation = hints(cls)[field.name]
        if below := section(annotation):
            listed = typing.get_origin(without_none(annotation)) is tuple
            yield from keys(below, prefix=f"{path}{'[]' if listed else ''}.")
