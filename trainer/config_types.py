"""Checks bound values against the annotations of dataclass fields.

Imports the standard library only. An int is accepted for a float and a list for a tuple (both are
converted, so that equal configurations have equal records); nothing else is.
"""

import dataclasses
import math
import types
import typing
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Reference:
    """A request to build a dataclass: ``@scope/Class()`` after its name was looked up."""

    cls: type
    scopes: tuple[str, ...] = ()


class TypeMismatch(ValueError):
    """A value does not fit an annotation."""


def conform(value: Any, annotation: Any) -> Any:
    """Returns ``value`` as ``annotation`` wants it.

    Raises:
      TypeMismatch: it does not fit; the message says what was expected and given.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _conform_union(value, annotation, arguments)
    if origin is Literal:
        if any(value == allowed and type(value) is type(allowed) for allowed in arguments):
            return value
        raise _mismatch(value, annotation)
    if origin is tuple or annotation is tuple:
        return _conform_tuple(value, annotation, arguments)
    return _conform_plain(value, annotation)


def _conform_union(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> Any:
    if type(value) in arguments:
        return value
    failures = []
    for argument in arguments:
        try:
            return conform(value, argument)
        except TypeMismatch as failure:
            failures.append(failure)
    inner = [a for a in arguments if a is not type(None)]
    if len(inner) == 1 and isinstance(value, (tuple, list)):
        raise failures[arguments.index(inner[0])]  # names the element that does not fit
    raise _mismatch(value, annotation)


def _conform_tuple(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, (tuple, list)):
        hint = (
            f"; a tuple of one is written ({value!r},)" if not isinstance(value, Reference) else ""
        )
        raise TypeMismatch(f"{_mismatch(value, annotation)}{hint}")
    if not arguments:
        return tuple(value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        elements = [arguments[0]] * len(value)
    elif len(arguments) == len(value):
        elements = list(arguments)
    else:
        raise TypeMismatch(
            f"expected {shown(annotation)} ({len(arguments)} elements), got {len(value)} elements"
        )
    result = []
    for index, (item, element) in enumerate(zip(value, elements, strict=True)):
        try:
            result.append(conform(item, element))
        except TypeMismatch as failure:
            raise TypeMismatch(f"element {index}: {failure}") from None
    return tuple(result)


def _conform_plain(value: Any, annotation: Any) -> Any:
    if annotation is None or annotation is type(None):
        if value is None:
            return None
        raise _mismatch(value, annotation)
    if not isinstance(annotation, type):
        raise TypeError(f"Fields of configuration cannot be annotated {annotation!r}.")
    if isinstance(value, Reference):
        if issubclass(value.cls, annotation):
            return value
        raise _mismatch(value, annotation)
    if dataclasses.is_dataclass(annotation):
        raise _mismatch(value, annotation)
    if annotation is float and type(value) is int:
        return float(value)
    if type(value) is float and not math.isfinite(value):
        raise TypeMismatch(f"expected a finite number, got {value}")
    if type(value) is annotation:
        return value
    raise _mismatch(value, annotation)


def _mismatch(value: Any, annotation: Any) -> TypeMismatch:
    if isinstance(value, Reference):
        given = f"@{value.cls.__name__}()"
    else:
        given = f"{value!r} ({type(value).__name__})"
    message = f"expected {shown(annotation)}, got {given}"
    return TypeMismatch(message + _advice(value, annotation))


def _advice(value: Any, annotation: Any) -> str:
    allowed = (annotation, *typing.get_args(annotation))
    if isinstance(value, str) and _is_number(value) and (int in allowed or float in allowed):
        return f"; write {value} without quotes"
    if isinstance(value, float) and int in allowed and value.is_integer():
        return f"; write {int(value)}"
    if bool in allowed and value in (0, 1):
        return f"; write {bool(value)}"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def shown(annotation: Any) -> str:
    """Returns the annotation as a user would write it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if origin in (typing.Union, types.UnionType):
        return " or ".join(shown(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return f"@{annotation.__name__}() or a kind of it"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(shown(argument) for argument in arguments)}]"
    return getattr(annotation, "__name__", str(annotation))
