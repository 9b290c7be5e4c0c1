"""From a job file in YAML to a `JobSpec`, or everything that is wrong with it, at once.

Every value keeps its line. Nothing is guessed: an unknown key, a value of another type and a key
that stands twice are errors, each with the line, the key, what is allowed and what comes nearest.
Imports PyYAML; supervisor and agents read job.json instead.
"""

import dataclasses
import functools
import pathlib
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from launch import spec_checks, spec_fields
from launch.records import Schema
from launch.spec import JobSpec, Seconds
from launch.spec_problems import Problem, Severity, SpecError, nearest, within
from launch.spec_program_checks import may_be_secret
from launch.spec_scalars import Wrong, duration, is_empty, scalar, shown
from launch.yaml_nodes import line_of, nodes_of, read_text

SUPPORTED = 1
_ABSENT = object()
_UNREPEATED = "the value is no text (it may be secret and is not repeated); put quotes around it."


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFile:
    """A job file that can be used.

    Attributes:
      spec: what it says.
      text: what is written there.
      places: key -> line.
      warnings: what may not do what was meant.
    """

    spec: JobSpec
    text: str
    places: Mapping[str, int]
    warnings: tuple[Problem, ...]


def load(path: pathlib.Path, *, engine: str | None = None) -> JobFile:
    """Reads and checks a job file.

    Args:
      path: the file.
      engine: name of the engine that it is meant for; None checks what holds on every engine.

    Raises:
      SpecError: anything is wrong; it holds all errors in the order of the file.
    """
    check = functools.partial(spec_checks.check, engine=engine)
    text = read_text(path)
    spec, reader, problems = _loaded(path, JobSpec, check, text=text)
    return JobFile(spec=spec, text=text, places=reader.places, warnings=tuple(problems))


def load_as[T: Schema](
    path: pathlib.Path, cls: type[T], *, check: Callable[[T], Iterable[Problem]]
) -> T:
    """Reads another kind of file, as strictly as a job file.

    Args:
      path: the file.
      cls: what it holds.
      check: what is wrong with it beyond keys and types.

    Raises:
      SpecError: anything is wrong; it holds all errors in the order of the file.
    """
    return _loaded(path, cls, check, text=read_text(path))[0]


def _loaded[T: Schema](
    path: pathlib.Path, cls: type[T], check: Callable[[T], Iterable[Problem]], *, text: str
) -> tuple[T, "_Reader", list[Problem]]:
    reader = _Reader(str(path), cls)
    value = typing.cast(T, reader.read(nodes_of(text, file=str(path))))
    found = [
        dataclasses.replace(problem, file=str(path), line=reader.line(problem.path))
        for problem in check(value)
        if not reader.is_broken((problem.path, *problem.also))
    ]
    problems = sorted([*reader.problems, *found], key=lambda problem: problem.line)
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise SpecError(errors)
    return value, reader, problems


class _Reader:
    def __init__(self, file: str, cls: type) -> None:
        self.file, self.cls = file, cls
        self.places: dict[str, int] = {}
        self.problems: list[Problem] = []
        self.broken: set[str] = set()

    def read(self, root: yaml.MappingNode) -> object:
        """Returns what the file holds; where a key is broken, the default or something like it.

        Raises:
          SpecError: the file is of another version, so that no other message would help.
        """
        self._check_version(root)
        return self._section(root, self.cls, "")

    def line(self, path: str) -> int:
        """Returns the line of a key, or of the nearest key above it."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, 0)

    def is_broken(self, paths: tuple[str, ...]) -> bool:
        """Whether one of the keys, or something below or above it, could not be read."""
        return any(
            within(path, above=bad) or within(bad, above=path)
            for path in paths
            if path
            for bad in self.broken
        )

    def _complain(
        self, node: yaml.Node, path: str, message: str, *, close: tuple[str, ...] = ()
    ) -> None:
        self.broken.add(path)
        self.problems.append(
            Problem(message=message, path=path, file=self.file, line=line_of(node), nearest=close)
        )

    def _check_version(self, root: yaml.MappingNode) -> None:
        found = next((value for key, value in root.value if key.value == "version"), None)
        if isinstance(found, yaml.ScalarNode) and found.value == str(SUPPORTED) and not found.style:
            return
        given = f"given {shown(found)}; " if found is not None else "is missing; "
        line = line_of(found or root)
        message = f"{given}this software reads version: {SUPPORTED}."
        raise SpecError([Problem(message=message, path="version", file=self.file, line=line)])

    def _section(self, node: yaml.Node, cls: type, path: str) -> Any:
        """Returns an instance of a dataclass of the job file."""
        given = self._pairs(node, path)
        if given is None:
            return _stand_in(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, (key, _) in given.items():
            if name not in fields:
                message, close = _unknown(name, cls=cls, path=path, top=self.cls)
                self._complain(key, _join(path, name), message, close=close)
        values = {}
        for name, field in fields.items():
            annotation, here = spec_fields.hints(cls)[name], _join(path, name)
            if name in given:
                value = self._value(given[name][1], annotation, here)
            else:
                value = self._missing(node, field, cls, here)
            if value is _ABSENT and spec_fields.is_required(field):
                value = _stand_in(annotation)
            if value is not _ABSENT:
                values[name] = value
        return cls(**values)

    def _missing(
        self, node: yaml.Node, field: dataclasses.Field[Any], cls: type, path: str
    ) -> object:
        if spec_fields.is_required(field):
            meaning = spec_fields.documentation(cls)[field.name].rstrip(".")
            self._complain(node, path, f"is missing: {meaning}.")
        return _ABSENT

    def _pairs(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]] | None:
        """Returns key -> its node and the value's; None where there are no keys at all."""
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, path, f"given {shown(node)}, but keys with values are wanted.")
            return None
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._complain(key, path, f"given {shown(key)} as a key; a key is one word.")
                continue
            here = _join(path, key.value)
            if key.value in found:
                first = line_of(found[key.value][0])
                self._complain(key, here, f"stands here again, first on line {first}; keep one.")
                continue
            self.places[here] = line_of(key)
            found[key.value] = key, value
        return found

    def _value(self, node: yaml.Node, annotation: Any, path: str) -> Any:
        """Returns a value as annotated; `_ABSENT` where it was complained of."""
        inner = spec_fields.without_none(annotation)
        if is_empty(node) and inner is not annotation:
            return None
        if is_empty(node) and inner is not str:
            self._complain(node, path, "given nothing; give a value, or leave the key out.")
            return _ABSENT
        if dataclasses.is_dataclass(inner):
            return self._section(node, inner, path)  # type: ignore[arg-type]  # never an instance
        if typing.get_origin(inner) is tuple:
            return self._items(node, typing.get_args(inner)[0], path)
        if typing.get_origin(inner) is dict:
            return self._texts(node, path)
        return self._plain(node, inner, path)

    def _plain(self, node: yaml.Node, kind: Any, path: str) -> Any:
        try:
            return duration(node) if kind is Seconds else scalar(node, kind=kind)
        except Wrong as wrong:
            message = str(wrong) if not may_be_secret(path) else _UNREPEATED
            self._complain(node, path, message, close=wrong.nearest)
            return _ABSENT

    def _items(self, node: yaml.Node, annotation: Any, path: str) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            self._complain(node, path, f"given {shown(node)}, but a list is wanted: - in front.")
            return _ABSENT
        values = []
        for index, item in enumerate(node.value):
            here = f"{path}[{index}]"
            self.places[here] = line_of(item)
            values.append(self._value(item, annotation, here))
        return _ABSENT if _ABSENT in values else tuple(values)

    def _texts(self, node: yaml.Node, path: str) -> Any:
        given = self._pairs(node, path)
        if given is None:
            return _ABSENT
        values = {}
        for name, (key, value) in given.items():
            here = _join(path, name)
            values[name] = self._plain(value, str, here)
            if self._plain(key, str, here) is _ABSENT:
                values[name] = _ABSENT
        return {name: value for name, value in values.items() if value is not _ABSENT}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _stand_in(annotation: Any) -> Any:
    """Returns something in the place of a required value that is missing or wrong.

    Nothing that is said about it is shown: see `_Reader.is_broken`.
    """
    if not dataclasses.is_dataclass(annotation):
        assert annotation is str, f"{annotation}: required keys are texts or sections"
        return ""
    required = filter(spec_fields.is_required, dataclasses.fields(annotation))
    types = spec_fields.hints(annotation)  # type: ignore[arg-type]  # never an instance
    return annotation(**{field.name: _stand_in(types[field.name]) for field in required})  # type: ignore[operator]


def _unknown(name: str, *, cls: type, path: str, top: type) -> tuple[str, tuple[str, ...]]:
    """Returns what to say of a key that does not exist, and what may have been meant."""
    names = [field.name for field in dataclasses.fields(cls)]
    where = f"under {path}" if path else "at the top"
    message = f"there is no such key {where}; there are {', '.join(names)}."
    if close := nearest(name, among=names):
        return message, close
    known = [key for key, _, _ in spec_fields.keys(top)]
    return message, tuple(key for key in known if key.rpartition(".")[2] == name)
