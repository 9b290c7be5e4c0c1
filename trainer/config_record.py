"""The resolved configuration as text, as JSON, and what differs between two of them.

Imports the configuration modules and no jax. `describe` gives gin text that reads back to the same
configuration; `resolved` gives what is stored with every attempt; `check_resume` decides whether
an attempt may go on with a changed configuration.
"""

import dataclasses
import enum
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer import config_schema
from trainer.config import LoadedConfig, Node
from trainer.config_errors import COMMAND_LINE, ConfigError, Problem, nearest
from trainer.config_schema import Schema

VERSION = 1
CLASS = "@"
_ABSENT = "(absent)"
_WIDTH = 100


class Kind(enum.StrEnum):
    """What a changed key means for a run."""

    IDENTITY = "identity"
    EXECUTION = "execution"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A key whose value is not what the run had before.

    Attributes:
      key: ``Class.field``, with scopes in front where the class occurs at several places.
      old: value before, as JSON; "(absent)" where there was no such field.
      new: value now.
      kind: identity may not change silently, execution may.
      note: what the change does, added by whoever knows (a schedule that moves, for example).
    """

    key: str
    old: Any
    new: Any
    kind: Kind
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}{note}"


def describe(loaded: LoadedConfig, *, sources: bool = True) -> str:
    """Returns every resolved value as gin text that `load` and gin itself read back.

    Args:
      loaded: the configuration.
      sources: add a comment to each line that says where the value comes from.
    """
    prefixes = _prefixes(loaded.tree)
    blocks: dict[str, list[tuple[str, str]]] = {}
    for node in loaded.tree.walk():
        prefix = prefixes[node.scopes, node.cls]
        lines = []
        for entry in node.entries:
            text = _gin(entry.value, prefixes)
            lines.append((f"{prefix}.{entry.name} = {text}", entry.source))
        blocks.setdefault(prefix, lines)
    return "\n".join(_block(lines, sources=sources) for lines in blocks.values() if lines)


def resolved(loaded: LoadedConfig) -> dict[str, Any]:
    """Returns the configuration as JSON, with digests.

    ``run`` is the tree, with each class name under "@"; ``digest`` covers all of it and
    ``identity`` only what decides the run's result.
    """
    tree = _tree(loaded.tree.instance)
    identity = [
        (item.key, item.value)
        for item in _flatten(tree, loaded.schema)
        if item.kind is Kind.IDENTITY
    ]
    return {
        "version": VERSION,
        "digest": _digest(tree),
        "identity": _digest(identity),
        "run": tree,
    }


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, schema: Schema | None = None
) -> list[Difference]:
    """Returns what differs between two results of `resolved`, in the order of the new one.

    A field that the old record lacks differs only if it is not at its default now: the software
    gained a knob. Where the class at some place changed, that is one difference and its fields
    are not listed.

    Raises:
      ValueError: a record has another version.
    """
    schema = schema or config_schema.standard()
    for record in (old, new):
        if record.get("version") != VERSION:
            raise ValueError(
                f"A resolved configuration of version {record.get('version')!r} cannot be compared "
                f"by this software (version {VERSION})."
            )
    before = {item.path: item for item in _flatten(old["run"], schema)}
    after = {item.path: item for item in _flatten(new["run"], schema)}
    found: list[Difference] = []
    replaced: list[tuple[str, ...]] = []
    for path in [*after, *(path for path in before if path not in after)]:
        if any(path[: len(above)] == above for above in replaced):
            continue
        was, now = before.get(path), after.get(path)
        item = now or was
        assert item is not None
        old_value = was.value if was else _ABSENT
        new_value = now.value if now else _ABSENT
        if old_value == new_value and type(old_value) is type(new_value):
            continue
        if item.is_class or (was and was.is_class):
            replaced.append(path)
        if was is None and item.is_default:
            if item.is_class:
                replaced.append(path)
            continue
        found.append(Difference(item.key, old_value, new_value, item.kind))
    return found


def check_resume(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    allow_change: Sequence[str] = (),
    schema: Schema | None = None,
) -> list[Difference]:
    """Returns the permitted differences between a run's record and the configuration given now.

    Args:
      old: `resolved` of the run's last attempt.
      new: `resolved` of this attempt.
      allow_change: keys of identity differences that the user permits. A key that does not differ
        is accepted, so that the same command works again after the change.
      schema: registered classes.

    Raises:
      ConfigError: an identity difference is not permitted, or ``allow_change`` names no key.
    """
    schema = schema or config_schema.standard()
    found = differences(old, new, schema=schema)
    known = {item.key for run in (old, new) for item in _flatten(run["run"], schema)}
    problems = [
        Problem(
            f"--allow_change={key} names no parameter.", COMMAND_LINE, nearest(key, among=known)
        )
        for key in allow_change
        if key not in known
    ]
    refused = [d for d in found if d.kind is Kind.IDENTITY and d.key not in allow_change]
    problems += [
        Problem(
            f"{difference}: this changes what the run computes. Start another run directory, or "
            f"permit it with --allow_change={difference.key}"
        )
        for difference in refused
    ]
    if problems:
        raise ConfigError(problems)
    return found


@dataclasses.dataclass(frozen=True)
class _Item:
    """One key of a resolved tree."""

    path: tuple[str, ...]
    key: str
    value: Any
    kind: Kind
    is_class: bool
    is_default: bool


def _prefixes(tree: Node) -> dict[tuple[tuple[str, ...], str], str]:
    """(scopes, class) -> what a binding of it starts with; scopes only where they are needed."""
    places = Counter(cls for _, cls in {(node.scopes, node.cls) for node in tree.walk()})
    return {
        (node.scopes, node.cls): "/".join(
            (*(node.scopes if places[node.cls] > 1 else ()), node.cls)
        )
        for node in tree.walk()
    }


def _block(lines: list[tuple[str, str]], *, sources: bool) -> str:
    if not sources:
        return "".join(f"{text}\n" for text, _ in lines)
    width = max((len(text.splitlines()[-1]) for text, _ in lines), default=0)
    width = min(width, _WIDTH // 2)
    shown = []
    for text, source in lines:
        head, newline, last = text.rpartition("\n")
        shown.append(f"{head}{newline}{last.ljust(width)}  # {source}\n")
    return "".join(shown)


def _gin(value: Any, prefixes: Mapping[tuple[tuple[str, ...], str], str]) -> str:
    if isinstance(value, Node):
        return f"@{prefixes[value.scopes, value.cls]}()"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"Gin cannot write {value}; choose a finite number.")
    if not isinstance(value, tuple):
        return repr(value)
    items = [_gin(item, prefixes) for item in value]
    line = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(line) <= _WIDTH // 2:
        return line
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")"


def _tree(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _tree(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {CLASS: type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_tree(item) for item in value]
    return value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _flatten(tree: Mapping[str, Any], schema: Schema) -> list[_Item]:
    places = Counter(name for name, _ in _classes(tree, ()))
    return list(_items(tree, (), (), schema, places))


def _classes(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(value, Mapping):
        yield value[CLASS], path
        for name, item in value.items():
            yield from _classes(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _classes(item, path)


def _items(
    node: Mapping[str, Any],
    path: tuple[str, ...],
    scopes: tuple[str, ...],
    schema: Schema,
    places: Mapping[str, int],
    inherited: Kind = Kind.IDENTITY,
) -> Iterator[_Item]:
    cls = node[CLASS]
    prefix = "/".join((*(scopes if places[cls] > 1 else ()), cls))
    defaults = _defaults(cls, schema)
    for name, value in node.items():
        if name == CLASS:
            continue
        execution = inherited is Kind.EXECUTION or schema.is_execution(cls, name)
        kind = Kind.EXECUTION if execution else Kind.IDENTITY
        if isinstance(value, Mapping) and schema.is_execution(value[CLASS], ""):
            kind = Kind.EXECUTION
        children = list(_children(value))
        yield _Item(
            path=(*path, name),
            key=f"{prefix}.{name}",
            value=_reference(value),
            kind=kind,
            is_class=bool(children),
            is_default=name in defaults and defaults[name] == _reference(value),
        )
        for suffix, child in children:
            yield from _items(
                child, (*path, name, *suffix), (*scopes, name, *suffix), schema, places, kind
            )


def _children(value: Any, suffix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        yield suffix, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _children(item, (*suffix, str(index)))


def _reference(value: Any) -> Any:
    if isinstance(value, Mapping):
        return f"@{value[CLASS]}()"
    if isinstance(value, list):
        return [_reference(item) for item in value]
    return value


def _defaults(cls: str, schema: Schema) -> dict[str, Any]:
    """JSON of the defaults of a class's fields; empty for a class that no longer exists."""
    if cls not in schema.classes:
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(schema.classes[cls]):
        built = schema.default_class(schema.classes[cls], field)
        if built is not None:
            found[field.name] = f"@{built.__name__}()"
        elif field.default is not dataclasses.MISSING:
            found[field.name] = _reference(_tree(field.default))
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = _reference(_tree(field.default_factory()))
    return found


def _shown(value: Any) -> str:
    return value if value == _ABSENT else json.dumps(value)
