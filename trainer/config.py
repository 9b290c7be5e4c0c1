"""Builds the run's configuration from gin files, or says everything that is wrong with them.

Imports the configuration modules and no jax. `load` is the one way from files to a `RunConfig`:
it parses, checks and only then builds; what it returns knows where every value came from. Nothing
is kept in gin's global registry, so configurations never leak from one load into another.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from trainer import config_lint, config_parser, config_ranges, config_schema, config_types
from trainer.config_errors import COMMAND_LINE, ConfigError, Problem
from trainer.config_lint import Binding, Checked
from trainer.config_schema import Schema
from trainer.config_types import Reference
from trainer.run_config import RunConfig

DEFAULT = "default"
DERIVED = "derived"
_DEPTH = 32


@dataclasses.dataclass(frozen=True)
class Entry:
    """One field of a built configuration.

    Attributes:
      name: field name.
      value: its value; `Node`, or a tuple that holds some, where the field holds configurables.
      source: "file:line", "command line", "default" or "derived".
    """

    name: str
    value: Any
    source: str


@dataclasses.dataclass(frozen=True)
class Node:
    """One built dataclass.

    Attributes:
      scopes: names of the fields that lead to it from the root.
      instance: the dataclass.
      entries: its fields in order.
    """

    scopes: tuple[str, ...]
    instance: Any
    entries: tuple[Entry, ...]

    @property
    def cls(self) -> str:
        """Class name."""
        return type(self.instance).__name__

    def walk(self) -> Iterator["Node"]:
        """Yields this node and all below it, in the order of the fields."""
        yield self
        for entry in self.entries:
            for child in nodes_in(entry.value):
                yield from child.walk()


@dataclasses.dataclass(frozen=True)
class LoadedConfig:
    """A run's configuration and where it came from.

    Attributes:
      run: the configuration.
      tree: the same with the source of every value.
      schema: the classes it was built from.
    """

    run: RunConfig
    tree: Node
    schema: Schema


def load(
    files: Sequence[str], bindings: Sequence[str] = (), *, schema: Schema | None = None
) -> LoadedConfig:
    """Builds the configuration of a run.

    A field that is not bound and whose annotation (or default) is a registered class is built from
    that class's own bindings, and so on down. The names of the fields are the gin scopes of what
    is below them: ``model/DecoderConfig.layers`` binds only the decoder below a field ``model``.
    Among several bindings that apply, the one with more scopes wins, then the deeper one.

    Args:
      files: gin files, later ones override earlier ones.
      bindings: ``NAME=VALUE`` as given on the command line; they override files.
      schema: registered classes; None takes those of `config_schema.standard`.

    Raises:
      ConfigError: anything is wrong; it holds all problems with their places.
    """
    tree, schema = build(files, bindings, schema=schema)
    return LoadedConfig(run=cast(RunConfig, tree.instance), tree=tree, schema=schema)


def build(
    files: Sequence[str], bindings: Sequence[str] = (), *, schema: Schema | None = None
) -> tuple[Node, Schema]:
    """Builds the root class of a schema; see `load`.

    Raises:
      ConfigError: anything is wrong; it holds all problems with their places.
    """
    parsed = config_parser.read(files, bindings=bindings)
    schema = schema or config_schema.standard()  # after parsing: imports may register classes
    checked = config_lint.check(parsed, schema=schema)
    if checked.problems:
        raise ConfigError(checked.problems)
    builder = _Builder(schema, checked)
    tree = builder.build(schema.root, (), "")
    if not builder.problems:
        builder.check_unused()
    if tree is None or builder.problems:
        raise ConfigError(tuple(dict.fromkeys(builder.problems)))
    return tree, schema


def nodes_in(value: Any) -> Iterator[Node]:
    """Yields the nodes that a field's value holds."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from nodes_in(item)


class _Builder:
    def __init__(self, schema: Schema, checked: Checked) -> None:
        self.schema, self.replaced = schema, checked.replaced
        self.problems: list[Problem] = []
        self.bindings: dict[tuple[str, str], list[Binding]] = {}
        for binding in checked.bindings:
            self.bindings.setdefault((binding.cls, binding.field), []).append(binding)
        self.used: set[str] = set()
        self.built: set[str] = set()

    def build(self, cls: type, scopes: tuple[str, ...], place: str) -> Node | None:
        """Returns the node, or None where a problem below it was recorded."""
        self.built.add(cls.__name__)
        if len(scopes) > _DEPTH:
            self.problems.append(Problem(f"{place} refers to itself without end."))
            return None
        entries = [self._entry(cls, field, scopes) for field in dataclasses.fields(cls)]
        complete = [entry for entry in entries if entry is not None]
        if len(complete) < len(entries):
            return None
        values = {entry.name: _instances(entry.value) for entry in complete}
        wrong = list(config_ranges.problems(cls, values))
        self.problems += [self._rejected(cls, complete, scopes, message) for message in wrong]
        if wrong:
            return None
        try:
            instance = cls(**values)
        except ValueError as error:
            self.problems.append(self._rejected(cls, complete, scopes, str(error)))
            return None
        return Node(scopes, instance, tuple(_derived(entry, instance) for entry in complete))

    def _entry(
        self, cls: type, field: dataclasses.Field[Any], scopes: tuple[str, ...]
    ) -> Entry | None:
        below, name = (*scopes, field.name), f"{cls.__name__}.{field.name}"
        binding = self._select(cls.__name__, field.name, scopes)
        if binding is not None:
            value = self._realise(binding.value, below, name)
            return (
                None
                if value is None and binding.value is not None
                else Entry(field.name, value, binding.source)
            )
        default = self.schema.default_class(cls, field)
        if default is not None:
            node = self.build(default, below, name)
            return None if node is None else Entry(field.name, node, DEFAULT)
        if field.default is not dataclasses.MISSING:
            return Entry(field.name, field.default, DEFAULT)
        if field.default_factory is not dataclasses.MISSING:
            return Entry(field.name, field.default_factory(), DEFAULT)
        self.problems.append(self._missing(cls, field, scopes))
        return None

    def _select(self, cls: str, field: str, scopes: tuple[str, ...]) -> Binding | None:
        best: tuple[tuple[int, int], Binding] | None = None
        for binding in self.bindings.get((cls, field), ()):
            depth = _match(binding.scope, scopes)
            if depth is None:
                continue
            self.used.add(binding.name)
            rank = (len(binding.scope), depth)
            if best is None or rank >= best[0]:
                best = rank, binding
        return best[1] if best else None

    def _realise(self, value: Any, scopes: tuple[str, ...], place: str) -> Any:
        """Builds the references in a bound value; None where one could not be built."""
        if isinstance(value, Reference):
            below = value.scopes
            if below[: len(scopes)] != scopes:
                below = scopes + below
            return self.build(value.cls, below, place)
        if isinstance(value, tuple):
            items = [self._realise(item, scopes, place) for item in value]
            failed = any(new is None and old is not None for new, old in zip(items, value))
            return None if failed else tuple(items)
        return value

    def _missing(
        self, cls: type, field: dataclasses.Field[Any], scopes: tuple[str, ...]
    ) -> Problem:
        name = f"{cls.__name__}.{field.name}"
        annotation = config_schema.hints(cls)[field.name]
        text = config_schema.documentation(cls).get(field.name)
        meaning = f" ({text.rstrip('.')})" if text else ""
        kinds = self.schema.kinds(annotation) if isinstance(annotation, type) else []
        if dataclasses.is_dataclass(annotation):
            values = [f"@{kind}()" for kind in kinds]
            how = (
                f"bind it to one of {', '.join(values)}: {name} = {values[0]}"
                if values
                else (
                    f"no kind of {config_types.shown(annotation)} is registered; import a module "
                    "that has one"
                )
            )
        else:
            how = f"bind it in a gin file, {name} = ..., or with --gin.{name}=VALUE"
        where = f" for {'.'.join(scopes)}" if scopes else ""
        return Problem(f"{name} is not set{where}{meaning}: {how}.")

    def _rejected(
        self, cls: type, entries: list[Entry], scopes: tuple[str, ...], complaint: str
    ) -> Problem:
        """Points at the bindings that a check of the values complains about."""
        bound = {entry.name: self._select(cls.__name__, entry.name, scopes) for entry in entries}
        named = [b for name, b in bound.items() if b and re.search(rf"\b{name}\b", complaint)]
        first = next(iter([*named, *filter(None, bound.values())]), None)
        others = ", ".join(f"{b.name} at {b.source}" for b in named[1:])
        message = f"{complaint}{f' ({others})' if others else ''}"
        return Problem(message, first.location if first else None)

    def check_unused(self) -> None:
        """Records every binding that no built configuration asked for."""
        for binding in (b for group in self.bindings.values() for b in group):
            if binding.name in self.used:
                continue
            if binding.cls in self.replaced and binding.location is not COMMAND_LINE:
                continue
            cls = self.schema.classes[binding.cls]
            places = self.schema.places(cls)
            if binding.cls in self.built:
                reason = f"no {binding.cls} of this run is in that scope"
            elif places:
                reason = f"this run builds no {binding.cls}; bind {places[0]} = @{binding.cls}()"
            else:
                reason = f"this run builds no {binding.cls}"
            self.problems.append(
                Problem(f"{binding.name} has no effect: {reason}.", binding.location)
            )


def _match(scope: tuple[str, ...], path: tuple[str, ...]) -> int | None:
    """Depth at which ``scope`` ends when it occurs in order in ``path``; None if it does not."""
    ends, depth = 0, len(path)
    for name in reversed(scope):
        while depth and path[depth - 1] != name:
            depth -= 1
        if not depth:
            return None
        ends = ends or depth
        depth -= 1
    return ends


def _instances(value: Any) -> Any:
    if isinstance(value, Node):
        return value.instance
    if isinstance(value, tuple):
        return tuple(_instances(item) for item in value)
    return value


def _derived(entry: Entry, instance: Any) -> Entry:
    """A class may fill in a value itself (``head_dim``); the record shows what it chose."""
    value = getattr(instance, entry.name)
    if value == _instances(entry.value):
        return entry
    return Entry(entry.name, value, DERIVED)
