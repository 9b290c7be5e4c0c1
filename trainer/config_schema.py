"""What gin files may bind: classes, their fields, scopes and documentation.

Imports the standard library and trainer.config_registry. A `Schema` answers the questions that
checks and error messages ask about the registered dataclasses; it never builds one.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from trainer import config_registry, run_config


@dataclasses.dataclass(frozen=True)
class Schema:
    """The registered classes and the root that is built from them.

    Attributes:
      root: class of the whole configuration.
      classes: name -> class.
      execution: classes and fields that may differ between attempts of one run.
    """

    root: type
    classes: Mapping[str, type]
    execution: frozenset[str]

    def scopes(self) -> set[str]:
        """Names of the fields that hold a configurable; each is the scope of its subtree."""
        return {
            field.name
            for cls in self.classes.values()
            for field in dataclasses.fields(cls)
            if any(self.kinds(base) for base in _classes(hints(cls)[field.name]))
        }

    def kinds(self, base: type) -> list[str]:
        """Names of the registered classes that are ``base`` or a kind of it."""
        return [name for name, cls in self.classes.items() if issubclass(cls, base)]

    def places(self, cls: type) -> list[str]:
        """Fields (``Class.field``) that may hold ``cls``."""
        return [
            f"{owner.__name__}.{field.name}"
            for owner in self.classes.values()
            for field in dataclasses.fields(owner)
            if any(issubclass(cls, base) for base in _classes(hints(owner)[field.name]))
        ]

    def default_class(self, cls: type, field: dataclasses.Field[Any]) -> type | None:
        """Class that an unbound field is built as; None where it has a plain default or nothing."""
        registered = self.classes.values()
        factory: Any = field.default_factory
        if factory in registered:
            return typing.cast(type, factory)
        if field.default is not dataclasses.MISSING or (
            field.default_factory is not dataclasses.MISSING
        ):
            return None
        annotation = hints(cls)[field.name]
        return annotation if annotation in registered else None

    def is_execution(self, cls: str, field: str) -> bool:
        """Whether ``cls.field`` may differ between attempts of one run."""
        return cls in self.execution or f"{cls}.{field}" in self.execution

    def parameters(self) -> list[str]:
        """Every ``Class.field`` that a file may bind, sorted."""
        return sorted(
            f"{name}.{field.name}"
            for name, cls in self.classes.items()
            for field in dataclasses.fields(cls)
        )


def standard() -> Schema:
    """Returns the schema of `RunConfig`, with the classes that imported modules registered."""
    classes = {cls.__name__: cls for cls in config_registry.configurables()}
    return Schema(run_config.RunConfig, classes, config_registry.EXECUTION)


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Field name -> annotation, with names resolved."""
    return typing.get_type_hints(cls)


@functools.cache
def documentation(cls: type) -> dict[str, str]:
    """Field name -> its text in the class's ``Attributes:`` section, inherited ones included."""
    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        section = inspect.cleandoc(ancestor.__doc__ or "").partition("Attributes:\n")[2]
        for match in re.finditer(r"^  (\w+): (.*(?:\n {4,}.*)*)", section, re.MULTILINE):
            found[match[1]] = " ".join(match[2].split())
    return found


def _classes(annotation: Any) -> Iterator[type]:
    """Dataclasses that occur anywhere in an annotation."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)
